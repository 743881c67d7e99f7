"""Smooth functions from their values on an equidistant grid, by polynomials through the nearest points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POINTS = 8  # through which a curve's polynomial goes


def lagrange(at: Tensor, points: int) -> Tensor:
    """The weights of the values at 0, 1, ..., points - 1 in the polynomial through them, at `at`.

    >>> lagrange(torch.tensor([0.5]), 2)
    tensor([[0.5000],
            [0.5000]])
    """
    distances = [at - k for k in range(points)]
    below, above = [torch.ones_like(at)], [torch.ones_like(at)]
    for k in range(points - 1):
        below.append(below[-1] * distances[k])
        above.append(above[-1] * distances[points - 1 - k])
    norms = torch.ones(points, dtype=torch.float64)
    for i in range(points):
        for j in range(points):
            norms[i] *= (i - j) if i != j else 1
    weights = torch.stack([b * a for b, a in zip(below, reversed(above), strict=True)])
    return weights / norms.to(at).reshape(-1, *[1] * at.dim())  # (points, *at.shape)


def window(at: Tensor, count: int, points: int) -> tuple[Tensor, Tensor]:
    """The first of the `points` grid points around `at` (in steps of the grid of `count`), and the weights of all."""
    first = (at.floor() - (points // 2 - 1)).clamp(0, count - points)
    return first.long(), lagrange(at - first, points)


@dataclass(frozen=True, eq=False)
class Curve:
    """A smooth function of one number, -inf outside its grid.

    Args:
        low: where the grid begins.
        step: of the grid.
        values: on it.

    >>> x = torch.arange(0, 3, 0.05, dtype=torch.float64)
    >>> f"{float(Curve(0.0, 0.05, x.sin())(torch.tensor(1.234, dtype=torch.float64))):.10f}"  # sin(1.234)
    '0.9438182094'
    """

    low: float
    step: float
    values: Tensor

    def __call__(self, t: Tensor) -> Tensor:
        at = (t - self.low) / self.step
        values = self.values.to(t)
        last = len(values) - 1
        first, weights = window(at.clamp(0, last), last + 1, POINTS)
        total = torch.zeros_like(t)
        for k in range(POINTS):
            total.addcmul_(values[first + k], weights[k])
        return torch.where((at < 0) | (at > last), -torch.inf, total)


@dataclass(frozen=True, eq=False)
class Surface:
    """Smooth functions of two numbers, on a grid in both; a dimension of one point is a constant.

    Args:
        lows: where the grid begins.
        steps: of the grid.
        values: on it, (functions, first, second).
    """

    lows: Sequence[float]
    steps: Sequence[float]
    values: Tensor
    points: int = 6

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """The functions at pairs of numbers inside the grid, (functions, pairs)."""
        across, down = (min(self.points, n) for n in self.values.shape[1:])
        i, along_first = window((first - self.lows[0]) / self.steps[0], self.values.shape[1], across)
        j, along_second = window((second - self.lows[1]) / self.steps[1], self.values.shape[2], down)
        columns = self.values.shape[2]
        total = first.new_zeros(len(self.values), len(first))
        table = self.values.flatten(1)
        for a in range(across):
            row = (i + a) * columns + j
            for b in range(down):
                total.addcmul_(table[:, row + b], along_first[a] * along_second[b])
        return total
