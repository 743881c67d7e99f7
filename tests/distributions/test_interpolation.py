"""Polynomials through grid points: exact for polynomials, -inf outside a curve, one point is a constant."""

from __future__ import annotations

import pytest
import torch

from mcrepar.distributions.interpolation import Curve, Surface, lagrange

DOUBLE = torch.float64


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
