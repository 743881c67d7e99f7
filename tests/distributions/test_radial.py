"""Radial noise for several tensors at once."""

import pytest
import torch

from mcrepar.distributions.radial import Radial
from mcrepar.distributions.random import Source
from mcrepar.distributions.statistics import Monomial
from tests.conftest import seeded, z_score


@pytest.mark.parametrize("draws", [40, 200])
def test_means_of_several_tensors_at_once_have_the_moments_of_each(draws):
    """|z| < 5 in 16 numbers: a false alarm in 1e5 runs."""
    sizes, count = [30, 6], 4_000
    source = Source(torch.float64, "cpu", seeded(3))
    places = torch.tensor([0] * 30 + [1] * 6)
    taus = (Monomial(2.0), Monomial(1.0))
    rows = [Radial(1).draw_means_rows(taus, source, draws, sizes, places) for _ in range(count)]
    t2, t1 = (torch.stack(column) for column in zip(*rows, strict=True))
    for part1, part2, d in zip(t1.split(sizes, 1), t2.split(sizes, 1), sizes, strict=True):
        square = (9 / (d * (d + 2)) - 1 / d**2) / draws
        assert z_score(part1[:, 0].square(), 1 / (d * draws)).abs() < 5
        assert z_score(part2[:, 1], 1 / d).abs() < 5
        assert z_score((part2[:, 1] - 1 / d).square(), square).abs() < 5
        assert z_score((part2.sum(1) - 1).square(), 2 / draws).abs() < 5
