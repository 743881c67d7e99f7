"""Normals that are drawn in blocks on all cores are normals, and the same on any number of cores."""

import itertools

import pytest
import torch
from scipy import stats
from torch import nn

import mcrepar
from mcrepar.distributions import random as variates
from mcrepar.distributions.random import ALONE, BLOCK, Source, device_generator
from tests.conftest import seeded

MANY = ALONE + BLOCK // 3
CPU = seeded(7)


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


class Elsewhere:
    """A generator of a device that this machine does not have."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device(device)

    def manual_seed(self, seed: int):
        self.seed = seed
        return self


def test_a_cpu_generator_seeds_one_of_the_weights_device(monkeypatch):
    monkeypatch.setattr(variates.torch, "Generator", Elsewhere)
    monkeypatch.setattr(variates, "new_seed", lambda generator: generator.initial_seed())
    for device in ("cuda", "cuda:1", "xpu:0"):
        found = Source(torch.float32, device, CPU).generator
        assert isinstance(found, Elsewhere)
        assert (found.device, found.seed) == (torch.device(device), 7)


def test_a_generator_of_the_same_device_is_used_as_it_is():
    for device in ("cpu", torch.device("cpu")):
        assert device_generator(CPU, device) is CPU
    assert device_generator(None, "cuda") is None


def test_whatever_draws_asks_for_a_generator_of_its_device(monkeypatch):
    """Every way in takes a generator of any device, for each draw goes through `device_generator`."""
    asked, real = [], variates.device_generator
    monkeypatch.setattr(variates, "device_generator", lambda g, device: asked.append(g) or real(g, device))
    bnn, x, y = mcrepar.bayesian(nn.Linear(3, 2), "radial"), torch.ones(4, 3), torch.ones(4, 2)
    likelihood = mcrepar.likelihoods.Normal()
    q = mcrepar.posterior("normal", loc=torch.zeros(3), scale=torch.ones(3))
    ways = {
        "predict": lambda g: mcrepar.predict(bnn, x, draws=1, generator=g),
        "kl": lambda g: bnn.kl("stats", 100, generator=g),
        "kl_divergence": lambda g: mcrepar.kl_divergence(q, mcrepar.prior("normal"), "stats", 100, generator=g),
        "last layer": lambda g: mcrepar.elbo(bnn, likelihood, x, y, 4, last_layer_draws=50, generator=g),
    }
    for name, way in ways.items():
        generator = seeded(1)
        asked.clear()
        way(generator)
        assert any(g is generator for g in asked), name
