"""The chunks over the noise: replayable, the same for any number of threads, exact in distribution over blocks.

Statistical tests fix their seeds; false alarms, for another seed: 6e-7 per |z| < 5, 1e-4 per Kolmogorov-Smirnov test.
"""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from scipy import stats

from mcrepar import posterior
from mcrepar.distributions.noises import GammaPower, Normal
from mcrepar.distributions.radial import Radial
from mcrepar.distributions.random import new_seed
from mcrepar.divergence.chunks import CPU_BLOCK, Chunks
from mcrepar.divergence.methods import DEFAULT_BYTES
from tests.conftest import seeded, z_score

CPU = torch.device("cpu")
SMALL = 2**16  # the smallest max_bytes: 512 doubles per block


def chunks(noise, draws, size, *, seed=1, max_bytes=DEFAULT_BYTES, dtype=torch.float64, whole=False):
    return Chunks(noise, draws, size, dtype, CPU, seed, max_bytes, whole)


@pytest.fixture
def threads(monkeypatch):
    """Sets what torch says of its threads, without starting any."""
    before = torch.get_num_threads()
    yield lambda count: monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    torch.set_num_threads(before)  # a walk gave back the number that it was told


# ---- seeds


def test_a_seed_is_one_draw_of_the_generator():
    """Equal states give equal seeds, and the next seed differs."""
    generator = seeded(3)
    first, second = new_seed(generator), new_seed(generator)
    assert new_seed(seeded(3)) == first != second


def test_without_a_generator_the_default_one_gives_the_seed():
    with torch.random.fork_rng():
        torch.manual_seed(8)
        first = new_seed(None)
        torch.manual_seed(8)
        assert new_seed(None) == first != new_seed(None)


def test_every_place_has_a_seed_of_its_own(threads):
    """No two chunks of a chunks share a seed, even in the 32 bits that torch's CPU generator looks at."""
    threads(1)
    noise = chunks(Normal(), 40, 20_000, max_bytes=SMALL)
    seeds = [noise._seed(place, first) for place in range(len(noise.blocks) + 1) for first in range(40)]
    assert len({s % 2**32 for s in seeds}) == len(seeds) > 1000


# ---- shape and replay


@pytest.mark.parametrize("draws", [1, 2, 9])
@pytest.mark.parametrize("size", [1, 5, CPU_BLOCK, CPU_BLOCK + 1, 2 * CPU_BLOCK + 3])
def test_every_weight_is_visited_once_per_draw(size, draws, threads):
    threads(1)
    noise = chunks(Normal(), draws, size, dtype=torch.float32)
    counts = torch.zeros(size, dtype=torch.long)

    def visit(block, xi):
        assert xi.shape[1] == block.stop - block.start
        assert xi.numel() <= CPU_BLOCK
        counts[block] += len(xi)

    noise.each(visit)
    assert (counts == draws).all()
    assert noise.all().shape == (draws, size)


@pytest.mark.parametrize("distribution", [Normal(), GammaPower(2.5), Radial(40_000)], ids=lambda n: n.label)
def test_a_walk_can_be_walked_again(distribution, threads):
    """The noise is a function of the seed alone."""
    threads(1)
    one, same, other = (chunks(distribution, 3, 40_000, seed=s).all() for s in (5, 5, 6))
    assert torch.equal(one, same)
    assert not (one == other).any()


def test_weights_and_draws_do_not_repeat(threads):
    """No number occurs twice: blocks and chunks are seeded apart."""
    threads(1)
    xi = chunks(Normal(), 30, 3000, max_bytes=SMALL).all()
    assert xi.unique().numel() == xi.numel()


# ---- threads


@pytest.mark.parametrize("distribution", [Normal(), Radial(CPU_BLOCK * 3 + 5)], ids=["normal", "radial"])
@pytest.mark.parametrize("count", [2, 3, 8, 16])
def test_threads_do_not_change_a_bit(distribution, count, threads):
    """The noise of several blocks, with real worker threads."""
    size = CPU_BLOCK * 3 + 5
    threads(1)
    expected = chunks(distribution, 2, size).all()
    threads(count)
    noise = chunks(distribution, 2, size)
    assert noise.threads == min(count, 4)
    assert torch.equal(noise.all(), expected)


@pytest.mark.parametrize(("count", "max_bytes"), [(64, DEFAULT_BYTES), (2, SMALL)], ids=["64 threads", "small blocks"])
def test_many_threads_or_small_blocks_do_not_change_a_bit(count, max_bytes, threads):
    """The same on a large machine (above 16 threads in float64), or with little memory."""
    threads(1)
    expected = chunks(Normal(), 2, CPU_BLOCK, max_bytes=max_bytes).all()
    threads(count)
    assert torch.equal(chunks(Normal(), 2, CPU_BLOCK, max_bytes=max_bytes).all(), expected)


def test_blocks_really_run_in_parallel(threads):
    """Two workers meet at a barrier inside their first visits."""
    threads(2)
    barrier, seen = threading.Barrier(2, timeout=20), itertools.count()

    def visit(block, xi):
        if next(seen) < 2:
            barrier.wait()

    chunks(Normal(), 1, 2 * CPU_BLOCK).each(visit)
    assert not barrier.broken


def test_grad_mode_reaches_the_workers(threads):
    """Grad mode belongs to a thread: workers have that of the caller."""
    threads(2)
    modes = []
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            chunks(Normal(), 1, 2 * CPU_BLOCK).each(lambda block, xi: modes.append(torch.is_grad_enabled()))
    assert modes == [True, True, False, False]


def test_an_error_in_a_worker_reaches_the_caller(threads):
    threads(2)

    def visit(block, xi):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        chunks(Normal(), 1, 2 * CPU_BLOCK).each(visit)


# ---- memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_bytes", [SMALL, 2**20, DEFAULT_BYTES])
def test_blocks_keep_within_max_bytes(dtype, max_bytes, threads):
    """16 temporaries of a block's size on every thread stay below the bound."""
    for count in (1, 4):
        threads(count)
        noise = chunks(Normal(), 5, 10**6, max_bytes=max_bytes, dtype=dtype)
        largest = max(b.stop - b.start for b in noise.blocks)
        assert largest == noise.budget
        assert 16 * dtype.itemsize * largest * noise.threads <= max_bytes


# ---- the joint distribution over blocks


@pytest.mark.parametrize("max_bytes", [SMALL, DEFAULT_BYTES])
def test_radial_over_blocks_is_one_vector(max_bytes, threads):
    """The norm of a whole draw is |N(0, 1)| and is what `norms` says; a block has its share of it.

    d = 3000 weights in 6 blocks or in 1: KS of 400 norms, and E |xi_block|^2 = block / d with |z| < 5.
    """
    threads(1)
    d = 3000
    noise = chunks(Radial(d), 400, d, max_bytes=max_bytes)
    xi = noise.all()
    norms = xi.norm(dim=1)
    torch.testing.assert_close(norms, noise.norms(), rtol=1e-12, atol=0)
    assert stats.kstest(norms.numpy(), stats.halfnorm.cdf).pvalue > 1e-4
    block = noise.blocks[0]
    share = xi[:, block].square().sum(1)
    assert abs(z_score(share, (block.stop - block.start) / d)) < 5
    directions = xi / norms[:, None]
    assert abs(z_score(d * directions[:, 0] ** 2, 1.0)) < 5
    assert abs(z_score(d * directions[:, 0] * directions[:, -1], 0.0)) < 5


def test_radial_shares_vary_as_they_should(threads):
    """Var |u_block|^2 = 2 b (d - b) / (d^2 (d + 2)) for a direction u: blocks are not given fixed shares."""
    threads(1)
    d, b = 1024, 512
    noise = chunks(Radial(d), 2000, d, max_bytes=SMALL)
    assert len(noise.blocks) == 2
    xi = noise.all()
    share = xi[:, :b].square().sum(1) / xi.square().sum(1)
    expected = 2 * b * (d - b) / (d**2 * (d + 2))
    assert abs(z_score((share - 0.5) ** 2, expected)) < 5


def test_a_joint_prior_sees_all_weights_at_once(threads):
    threads(1)
    noise = chunks(Normal(), 3, 5000, max_bytes=SMALL, whole=True)
    blocks = []
    noise.each(lambda block, xi: blocks.append((block, tuple(xi.shape))))
    assert blocks == [(slice(0, 5000), (1, 5000))] * 3


def test_many_radial_draws_need_no_large_table(threads):
    """Block radii come in groups of draws; the norms of all groups are those of the chunks."""
    threads(1)
    noise = chunks(Radial(1025), 400_000, 1025, max_bytes=SMALL)
    assert len(noise._group_sizes()) == 2
    assert noise.norms().shape == (400_000,)


def test_one_noise_object_serves_the_forward():
    """The posterior's own draw and the chunks use one distribution: equal second moments, |z| < 5."""
    q = posterior("radial", loc=torch.zeros(50, dtype=torch.float64), scale=torch.ones(50, dtype=torch.float64))
    drawn = q.draw(2000, seeded(1)).square().sum(1)
    walked = chunks(q.noise, 2000, 50).all().square().sum(1)
    assert abs(z_score(drawn - walked, 0.0)) < 5
    assert abs(z_score(walked, 1.0)) < 5
