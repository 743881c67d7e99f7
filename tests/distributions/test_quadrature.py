"""The panels of a noise: all its mass is on them, with the moments that the noise says it has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import special

from mcrepar.distributions.heavy_tails import Horseshoe
from mcrepar.distributions.noises import GammaPower, InverseGaussian, Logistic, Normal, SignedGammaPower
from mcrepar.distributions.quadrature import Curve, Surface, axis, lagrange
from mcrepar.distributions.radial import Radial
from mcrepar.distributions.statistics import Monomial

NOISES = [
    Normal(), Logistic(), SignedGammaPower(1.0), SignedGammaPower(1.5), SignedGammaPower(0.3), GammaPower(2.5),
    GammaPower(0.3), GammaPower(1e6), GammaPower(9.0, -1.0), GammaPower(1.0, 0.5, 2**0.5), InverseGaussian(1.0),
    InverseGaussian(1e4), Horseshoe(1.6), Horseshoe(1e-2), Radial(1), Radial(2), Radial(3), Radial(1000),
    Radial(10**7),
]  # fmt: skip

DOUBLE = torch.float64


def integral(noise, line, power):
    """E |xi|^power over the panels, by 16 x 40 Gauss-Legendre nodes in each."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    ends = np.concatenate([np.linspace(a, b, 17)[:-1] for a, b in itertools.pairwise(line.edges)] + [line.edges[-1:]])
    half = np.diff(ends)[:, None] / 2
    t = ends[:-1, None] + half + half * nodes
    density = noise.log_weight(torch.tensor(t)).exp().numpy()
    size = np.abs(t) if noise.linear else np.exp(t)
    return len(line.signs) * float((half * weights * density * size**power).sum())


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.label)
def test_mass_and_moments(noise):
    """Large shapes have normalising constants of 1e7 nats, rounded to 1e-9: log_mass takes that out."""
    line = axis(noise, 4.0, 0.0, False)
    mass = integral(noise, line, 0.0)
    assert mass == pytest.approx(np.exp(line.log_mass), rel=1e-10)
    assert mass == pytest.approx(1.0, abs=1e-8)
    for power in (2.0, 4.0):
        assert integral(noise, line, power) / mass == pytest.approx(noise.moment(Monomial(power)), rel=2e-10)
    assert line.capped == (False, False)


def test_a_heavy_tail_is_followed_as_far_as_float64_goes():
    near, far = axis(GammaPower(2.1, -1.0), 0.0, 0.0, False), axis(GammaPower(2.1, -1.0), 2.0, 0.0, False)
    assert far.edges[-1] > 10 * near.edges[-1]
    assert far.capped == (False, True)  # E xi^2 falls as e^(-t / 10)


def test_a_coordinate_of_radial_noise_in_three_dimensions():
    """There a coordinate of a direction is uniform on [-1, 1], so that q(x) = E1(x^2 / 2) / (2 sqrt(2 pi))."""
    t = np.linspace(-40, 1.5, 300)
    expected = np.log(special.exp1(np.exp(2 * t) / 2)) - 0.5 * np.log(8 * np.pi) + t
    np.testing.assert_allclose(Radial(3).log_weight(torch.tensor(t)), expected, atol=1e-10)


@pytest.mark.parametrize("points", [2, 6, 8])
def test_weights_reproduce_polynomials(points):
    at = torch.linspace(0, points - 1, 23, dtype=DOUBLE)
    grid = torch.arange(points, dtype=DOUBLE)
    weights = lagrange(at, points)
    for degree in range(points):
        torch.testing.assert_close((weights * grid[:, None] ** degree).sum(0), at**degree, rtol=1e-11, atol=1e-11)


def test_a_curve_inside_and_outside():
    x = torch.linspace(-2, 2, 81, dtype=DOUBLE)
    curve = Curve(-2.0, 0.05, x.exp())
    at = torch.tensor([-2.0, -1.987, 0.3333, 1.99, 2.0], dtype=DOUBLE)
    torch.testing.assert_close(curve(at), at.exp(), rtol=1e-10, atol=1e-10)
    assert curve(torch.tensor([-2.1, 2.1], dtype=DOUBLE)).tolist() == [-torch.inf, -torch.inf]


def test_a_surface_of_two_functions():
    first, second = torch.linspace(0, 1, 21, dtype=DOUBLE), torch.linspace(-1, 1, 31, dtype=DOUBLE)
    a, b = torch.meshgrid(first, second, indexing="ij")
    surface = Surface([0.0, -1.0], [0.05, 2 / 30], torch.stack([(a * b).sin(), a - b]))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(50, generator=generator, dtype=DOUBLE), 2 * torch.rand(50, generator=generator, dtype=DOUBLE) - 1
    torch.testing.assert_close(surface(x, y), torch.stack([(x * y).sin(), x - y]), rtol=1e-9, atol=1e-9)
    thin = Surface([0.0, -1.0], [1.0, 2 / 30], torch.stack([second.exp()])[:, None])
    torch.testing.assert_close(thin(torch.zeros(50, dtype=DOUBLE), y)[0], y.exp(), rtol=1e-7, atol=1e-7)
