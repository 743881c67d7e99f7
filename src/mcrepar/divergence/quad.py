"""The method quad: every weight by adaptive quadrature, or, where there are many, from a table over (loc, scale).

All weights of a tensor share the noise and, mostly, the prior, so E log p(W) is one smooth function of loc and scale.
It is computed on a grid, in asinh((loc - centre) / length) and log scale, and interpolated; the grid is refined until
the table agrees with the quadrature of some of the weights, else every weight is integrated. Tables are kept: training
builds one when its weights leave the range of the last, and checks it at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import IDENTITY
from mcrepar.distributions.quadrature import Surface
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.average import Integrand, refuse_second_derivatives
from mcrepar.divergence.chunks import COPIES, CPU_BLOCK
from mcrepar.divergence.integral import Expectation, Weights, integrate
from mcrepar.divergence.sums import block_size, wide_sum

FROM = 5_000  # weights from which a table is cheaper
CHECKED = 200  # weights at random whose quadrature a table must meet
TABLE_ERROR = 1e-8  # how near a table's values must be in the mean, absolute and relative
SLOPES, ONE = 100, 100  # how many times that its gradients may miss, and a single weight
LEAST = 0.01  # of the gradient by log scale, which is added to the entropy's, of 1
FIRST = (25, 13)  # points of the first grid
SHARE = 4  # a table has at most one point for so many weights
AT_A_TIME = 2**14  # weights that are interpolated at once
CELL = 0.5  # the ends of a table lie on multiples of it, in both of its coordinates


def integrated(integrand: Integrand, max_bytes: int, total: bool = True) -> tuple[Tensor, Tensor]:
    """E log p(W) without its constant, with S tensors saved for the backward, and its error.

    Args:
        integrand: of the pair.
        max_bytes: bound on the temporaries.
        total: the sum over all weights; else one number for each of them, in a row, none of them from a table.
    """
    inputs, split = [*integrand.theta, *integrand.zeta], len(integrand.theta)
    needed = [x.requires_grad and torch.is_grad_enabled() for x in inputs]
    with torch.no_grad():
        weights = _wide(integrand, inputs, needed)
        most = block_size(max_bytes, weights.scale.dtype, weights.scale.device, COPIES, CPU_BLOCK)
        found = (_tabulated(weights, most) if total else None) or integrate(weights, most)
        slopes = [
            None if s is None else (integrand.folded(s, x.shape) if total and k >= split else s).to(x.dtype)
            for k, (s, x) in enumerate(zip(found.slopes, inputs, strict=True))
        ]
        value = found.value.sum() if total else found.value
    known: Tensor = _Known.apply(integrand, value, slopes, *inputs)  # type: ignore[no-untyped-call]
    return known, found.error.sum()


def _wide(integrand: Integrand, inputs: Sequence[Tensor], needed: Sequence[bool]) -> Weights:
    """The weights in double precision, with the prior's values for each of them."""
    dtype, split = wide_sum(inputs[0].device), len(integrand.theta)
    scale, *rest = (x.detach().to(dtype) if x.is_floating_point() else x for x in inputs)
    loc, zeta = rest[0] if split == 2 else integrand.q.loc, rest[split - 1 :]
    spread = [integrand.spread(z) for z in zeta]
    zeta = [z.reshape(()) if z.numel() == 1 else integrand.each(z) for z in zeta]
    return Weights(integrand.q, integrand.p, scale, loc, zeta, spread, needed)


class _Known(torch.autograd.Function):
    """A value whose gradient is known already: a sum over weights, or one number for each of them."""

    @staticmethod
    def forward(ctx: Any, integrand: Integrand, value: Tensor, slopes: list[Tensor | None], *inputs: Tensor) -> Tensor:
        ctx.integrand, ctx.shapes = integrand, [x.shape for x in inputs]
        ctx.save_for_backward(*slopes)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        refuse_second_derivatives("quad")
        own = [None if s is None else s * grad.to(s.dtype) for s in ctx.saved_tensors]
        pairs = zip(own, ctx.shapes, strict=True)
        return None, None, None, *(s if s is None else ctx.integrand.folded(s, shape) for s, shape in pairs)


@dataclass(frozen=True)
class _Chart:
    """The coordinates of a table, asinh((loc - centre) / length) and log scale, and its range in them.

    A table is a function of its chart alone, whose ends lie on multiples of `CELL` and whose length is a power of 2:
    steps of training share it while their weights stay in it, and a step that is repeated later gives the same bits.
    """

    weights: Weights = field(compare=False)  # one of the pair, for its noise, form, prior and types
    pair: tuple[Any, ...]  # what a table depends on besides the range
    centre: float
    length: float
    ends: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, weights: Weights) -> _Chart:
        """With the centre of the prior, and the larger of its shortest feature and the narrowest weight as length."""
        q, p, fixed = weights.q, weights.p, None if isinstance(weights.loc, Tensor) else weights.loc
        # charts are kept: a copy of one weight has the types of all, without their storage
        one = replace(
            weights,
            q=replace(q, free_loc=None, free_scale=None, free_log_scale=None),
            scale=weights.scale[:1].clone(),
            loc=weights.loc[:1].clone() if isinstance(weights.loc, Tensor) else weights.loc,
        )
        pair = (q.noise, q.form, p.name, tuple(p.values.items()), fixed, tuple(weights.needed), weights.scale.dtype)
        centre, length = 0.0, 1.0
        if q.form.outer is IDENTITY:
            terms = weights.density(weights.zeta).terms
            spread = math.sqrt(q.noise.moment(Monomial(2.0))) if q.noise.finite(2.0) else 1.0
            least = spread * float(weights.scale.min())
            features = [float(d) for t in terms for d in t.statistic.features if float(d) > 0]
            centre, length = float(terms[-1].center), max(min(features, default=least), least)
        chart = cls(one, (*pair, weights.scale.device), centre, 2.0 ** math.floor(math.log2(length)))
        ends = [(float(x.min()), float(x.max())) for x in chart.coordinates(weights)]
        cells = [(CELL * math.floor(low / CELL), CELL * (math.floor(high / CELL) + 1)) for low, high in ends]
        return replace(chart, ends=(cells[0] if fixed is None else (0.0, 0.0), cells[1]))

    def coordinates(self, w: Weights) -> tuple[Tensor, Tensor]:
        """Of weights."""
        log_scale = w.scale.log()
        if not isinstance(w.loc, Tensor):
            return torch.zeros_like(log_scale), log_scale
        return ((w.loc - self.centre) / self.length).asinh(), log_scale

    def table(self, shape: tuple[int, int], most: int) -> tuple[Surface, float]:
        """The table of a grid, and the largest error of its quadratures."""
        steps = [(high - low) / max(n - 1, 1) or 1.0 for (low, high), n in zip(self.ends, shape, strict=True)]
        like = self.weights.scale
        axes = [
            low + step * torch.arange(n, dtype=like.dtype, device=like.device)
            for (low, _), step, n in zip(self.ends, steps, shape, strict=True)
        ]
        a, b = (x.flatten() for x in torch.meshgrid(*axes, indexing="ij"))
        loc = self.centre + self.length * a.sinh() if isinstance(self.weights.loc, Tensor) else self.weights.loc
        grid = replace(self.weights, scale=b.exp(), loc=loc)
        found = integrate(grid, most)
        surface = Surface([low for low, _ in self.ends], steps, _fields(grid, found).view(-1, *shape))
        return surface, float(found.error.max())


@lru_cache(maxsize=64)
def _kept(chart: _Chart, shape: tuple[int, int], most: int) -> tuple[Surface, float]:
    return chart.table(shape, most)


def _tabulated(weights: Weights, most: int) -> Expectation | None:
    """E log p(W) of many weights from a table; None where they are few, the prior is not one, or it did not agree."""
    count = len(weights.scale)
    if count < FROM or weights.p.row is None or any(weights.spread):
        return None
    chart = _Chart.of(weights)
    coordinates = chart.coordinates(weights)
    chosen = weights[_picked(coordinates)]
    true, points = _fields(chosen, integrate(chosen, most)), chart.coordinates(chosen)
    bound = _bound(true, weights)
    shape = (1 if chart.ends[0][0] == chart.ends[0][1] else FIRST[0], FIRST[1])
    while shape[0] * shape[1] * SHARE <= count:
        # a prior with tensors of its own has another table at every step
        surface, error = chart.table(shape, most) if weights.zeta else _kept(chart, shape, most)
        misses = (surface(*points) - true).abs()
        if bool((misses.mean(1) <= bound).all() and (misses.amax(1) <= ONE * bound).all()):
            return _read(surface, coordinates, weights, float(misses[0].mean()) + error)
        shape = _finer(surface.values, _bound(surface.values.flatten(1), weights), shape)
    return None


def _bound(fields: Tensor, weights: Weights) -> Tensor:
    """How far a table of these fields may miss in the mean."""
    sizes = fields[1:].abs().mean(1)
    if weights.needed[0]:
        sizes[0].clamp_(min=LEAST)
    return TABLE_ERROR * torch.cat([1 + fields[:1].abs().mean(1), SLOPES * sizes])


def _picked(coordinates: tuple[Tensor, Tensor]) -> Tensor:
    """The weights by which a table is judged: at random, nearest to the prior's centre, and at the ends."""
    first, second = coordinates
    chance = torch.randint(len(first), (CHECKED,), generator=torch.Generator().manual_seed(0)).to(first.device)
    nearest = first.abs().topk(CHECKED // 2, largest=False).indices
    ends = [end for x in (first, second) for end in (x.argmin(), x.argmax())]
    return torch.cat([chance, nearest, torch.stack(ends)])


def _fields(weights: Weights, found: Expectation) -> Tensor:
    """What is tabulated: the value, and the gradients, those by loc and scale per standard deviation."""
    own = [s * weights.scale for s in found.slopes[: weights.theta] if s is not None]
    return torch.stack([found.value, *own, *(s for s in found.slopes[weights.theta :] if s is not None)])


def _finer(values: Tensor, bound: Tensor, shape: tuple[int, int]) -> tuple[int, int]:
    """The next grid: finer in the directions in which every second point does not give those between."""
    out = []
    for dimension, n in zip((1, 2), shape, strict=True):
        x = values.movedim(dimension, -1)
        middle = (
            150 * (x[..., 4:-6] + x[..., 6:-4]) - 25 * (x[..., 2:-8] + x[..., 8:-2]) + 3 * (x[..., :-10] + x[..., 10:])
        )
        miss = (middle / 256 - x[..., 5:-5]).abs().flatten(1).amax(1) / 64 if n > 10 else torch.zeros_like(bound)
        out.append(bool((miss > ONE * bound).any()))
    if not any(out):
        out = [n > 1 for n in shape]
    first, second = (2 * n - 1 if finer else n for n, finer in zip(shape, out, strict=True))
    return first, second


def _read(surface: Surface, coordinates: tuple[Tensor, Tensor], weights: Weights, error: float) -> Expectation:
    """Every weight from the table."""
    blocks = [
        surface(first, second) for first, second in zip(*(torch.split(x, AT_A_TIME) for x in coordinates), strict=True)
    ]
    fields = iter(torch.cat(blocks, 1))
    value = next(fields)
    own = [next(fields) / weights.scale if need else None for need in weights.needed[: weights.theta]]
    slopes = [*own, *(next(fields) if need else None for need in weights.learned)]
    return Expectation(value, torch.full_like(value, error), slopes)
