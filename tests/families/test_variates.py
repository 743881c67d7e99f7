"""Normals that are drawn in blocks on all cores are normals, and the same on any number of cores."""

import itertools

import pytest
import torch
from scipy import stats
from tests.conftest import seeded

from mcrepar.families.variates import ALONE, BLOCK, Source

MANY = ALONE + BLOCK // 3


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def drawn(size, seed=0, **moments):
    return Source(torch.float32, "cpu", seeded(seed)).normal(size, **moments)


def test_many_are_the_same_on_any_number_of_cores(threads):
    threads(1)
    alone = drawn(MANY)
    threads(3)
    assert torch.equal(drawn(MANY), alone)
    assert not torch.equal(drawn(MANY, seed=1), alone)


def test_many_are_normal_and_no_block_repeats_another():
    """Kolmogorov and Smirnov at 1e-6; the correlation of neighbouring blocks at 5 standard errors (6e-7 each)."""
    z = drawn(MANY, mean=2.0, std=3.0).double()
    assert stats.kstest(z.numpy(), "norm", (2.0, 3.0)).pvalue > 1e-6
    blocks = ((z - 2) / 3)[: 4 * BLOCK].view(4, BLOCK)
    for a, b in itertools.pairwise(blocks):
        assert abs(torch.dot(a, b).item()) < 5 * BLOCK**0.5


def test_the_generator_goes_on():
    generator = seeded(0)
    source = Source(torch.float32, "cpu", generator)
    assert not torch.equal(source.normal(MANY), source.normal(MANY))
    assert torch.equal(drawn(5), torch.empty(5).normal_(generator=seeded(0)))
