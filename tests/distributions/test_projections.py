"""What a dense layer's outputs meet of the noise, against its moments (20,000 draws in float64, |z| > 5: 6e-7)."""

import pytest
import torch

from mcrepar.distributions.noises import Normal
from mcrepar.distributions.radial import Radial
from mcrepar.distributions.random import Source
from tests.conftest import seeded, z_score


@pytest.mark.parametrize("noise", [Normal(), *map(Radial, (1, 3, 7, 400))], ids=lambda noise: noise.label)
def test_projections_have_their_moments(noise):
    size = getattr(noise, "size", 1)
    zeta = noise.project(Source(torch.float64, "cpu", seeded(0)), 20_000, min(3, size))
    assert (z_score(zeta, 0.0).abs() < 5).all()
    assert (z_score(zeta.square(), 1 / size).abs() < 5).all()
    assert (z_score(zeta**4, 9 / (size * (size + 2))).abs() < 5).all()
    if size > 1:
        assert z_score((zeta[:, 0] * zeta[:, 1]).square(), 3 / (size * (size + 2))).abs() < 5


@pytest.mark.parametrize("draws", [30, 1000])
@pytest.mark.parametrize("noise", [Normal(), *map(Radial, (1, 3, 7, 400))], ids=lambda noise: noise.label)
def test_means_of_projections_have_the_mean_and_covariance_of_averaged_draws(noise, draws):
    size = getattr(noise, "size", 1)
    t1, t2 = noise.project_means(Source(torch.float64, "cpu", seeded(0)), draws, 20_000, min(3, size))
    m2, m4, m22 = 1 / size, 9 / (size * (size + 2)), 3 / (size * (size + 2))
    assert (z_score(t1, 0.0).abs() < 5).all()
    assert (z_score(t2, m2).abs() < 5).all()
    assert (z_score(t1.square(), m2 / draws).abs() < 5).all()
    assert (z_score((t2 - m2).square(), (m4 - m2**2) / draws).abs() < 5).all()
    assert (z_score(t1 * (t2 - m2), 0.0).abs() < 5).all()
    if size > 1:
        assert z_score((t2[:, 0] - m2) * (t2[:, 1] - m2), (m22 - m2**2) / draws).abs() < 5
