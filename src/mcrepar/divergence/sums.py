"""Sums of n(theta) t over the weights, and their gradient, as one autograd.Function, in blocks.

It saves theta and t for the backward and nothing else; with create_graph=True its backward is plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.random import on_cores
from mcrepar.distributions.statistics import Monomial

# In which order the dimensions of a tensor are gone through: as it lies in memory; None is the logical order.
Order = list[int] | None


def weight_order(q: Posterior, p: Prior) -> Order:
    """The memory order of the parameters, or the logical one where the prior has values for single weights."""
    tensors = [*q.learned, *([q.loc] if isinstance(q.loc, Tensor) else [])]
    tied = p.density.joint or any(t.numel() > 1 for t in p.tensors.values())
    return None if tied else memory_order(tensors)


def memory_order(tensors: Sequence[Tensor]) -> Order:
    """The order in which tensors of one shape lie in memory, the logical one where they differ."""
    strides = tensors[0].stride()
    if any(t.stride() != strides for t in tensors):
        return None
    return sorted(range(len(strides)), key=lambda k: -strides[k])


def flat(x: Tensor, order: Order) -> Tensor:
    """All weights in one row."""
    return x.reshape(-1) if order is None else x.permute(order).reshape(-1)


def unflat(row: Tensor, shape: torch.Size, order: Order) -> Tensor:
    """The weights of a row in their shape, without a copy."""
    if order is None:
        return row.reshape(shape)
    inverse = sorted(range(len(order)), key=lambda k: order[k])
    return row.view([shape[k] for k in order]).permute(inverse)


def empty_like(x: Tensor, order: Order) -> Tensor:
    """A tensor of the shape of `x`, whose memory goes through the weights in `order`: `flat` makes a view of it."""
    strides, step = [0] * x.dim(), 1
    for k in reversed(range(x.dim()) if order is None else order):
        strides[k], step = step, step * x.shape[k]
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)


def block_size(max_bytes: int, dtype: torch.dtype, device: torch.device, copies: int, most: int) -> int:
    """How many elements a block may hold whose temporaries are `copies` of it; on a CPU at most `most`."""
    affordable = max(1, max_bytes // (copies * dtype.itemsize))
    return min(affordable, most) if device.type == "cpu" else affordable


def wide_sum(device: torch.device) -> torch.dtype:
    """The precision in which sums over weights are added up."""
    return torch.float32 if device.type == "mps" else torch.float64


def summed(x: Tensor) -> Tensor:
    """The sum over all weights in that precision, with a graph; on devices no large tensor has it."""
    wide = wide_sum(x.device)
    return x.sum(dtype=wide) if x.device.type == "cpu" else x.sum().to(wide)  # devices sum in a tree


@dataclass(frozen=True)
class Factor:
    """n(theta) as numbers: factor u^a scale^b r^j, u = loc - center, r = log scale - center."""

    factor: float
    a: int
    b: float
    j: int
    center: float


class Sums(torch.autograd.Function):
    """sum_d n_j(theta_d) t_jd for every j: value and gradient without a graph, in blocks that stay in the cache.

    theta comes in its shape and the gradient leaves in it, as no view of anything: autograd then adds the likelihood's
    gradient into it instead of allocating their sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        factors: tuple[Factor, ...],
        ts: tuple[Number, ...],
        loc: Tensor | None,
        scale: Tensor,
        is_log: bool,
        block: int,
        order: Order,
    ) -> Tensor:
        ctx.factors, ctx.is_log, ctx.block, ctx.order = factors, is_log, block, order
        ctx.numbers = [None if isinstance(t, Tensor) else t for t in ts]
        ctx.save_for_backward(loc, scale, *(t for t in ts if isinstance(t, Tensor)))
        wide = wide_sum(scale.device)
        points = _points(ts, loc, scale, is_log, block, order)
        parts: list[Tensor] = [scale.new_empty(0)] * len(points)

        def work(share: Iterable[int]) -> None:
            for k in share:
                point, at, _ = points[k]()
                parts[k] = torch.stack([point.sum(f, t) for f, t in zip(factors, at, strict=True)]).to(wide)

        _on_cores(points, scale, work)
        return torch.stack(parts).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        loc, scale, *tensors = ctx.saved_tensors
        kept = iter(tensors)
        ts = tuple(next(kept) if number is None else number for number in ctx.numbers)
        if torch.is_grad_enabled() or grad.device.type != "cpu":  # create_graph=True; or grad is not to be read
            point = Point(None if loc is None else flat(loc, ctx.order), flat(scale, ctx.order), ctx.is_log)
            slopes = point.slopes(zip(ctx.factors, ts, grad.to(scale.dtype).unbind(), strict=True))
            d_loc, d_scale = (unflat(d, scale.shape, ctx.order) for d in slopes)
            return None, None, None if loc is None else d_loc, d_scale, None, None, None
        weights = grad.tolist()
        wanted = zip((loc, scale), ctx.needs_input_grad[2:4], strict=True)
        found = [empty_like(x, ctx.order) if x is not None and need else None for x, need in wanted]
        rows = [None if d is None else flat(d, ctx.order) for d in found]
        points = _points(ts, loc, scale, ctx.is_log, ctx.block, ctx.order)

        def work(share: Iterable[int]) -> None:
            for k in share:
                point, at, cut = points[k]()
                jobs = list(zip(ctx.factors, at, weights, strict=True))
                for row, slope in zip(rows, (point.slope_loc, point.slope_scale), strict=True):
                    if row is not None:
                        combine([slope(f, t, g) for f, t, g in jobs], row[cut])

        _on_cores(points, scale, work)
        return None, None, *found, None, None, None


Block = Callable[[], tuple["Point", list[Number], slice]]  # makes a block of weights with their t


def _points(
    ts: Sequence[Number], loc: Tensor | None, scale: Tensor, is_log: bool, block: int, order: Order
) -> list[Block]:
    """The blocks, made when they are worked on."""
    loc, scale = None if loc is None else flat(loc, order), flat(scale, order)

    def made(cut: slice) -> tuple[Point, list[Number], slice]:
        at = [t[cut] if isinstance(t, Tensor) else t for t in ts]
        return Point(None if loc is None else loc[cut], scale[cut], is_log), at, cut

    return [partial(made, slice(start, start + block)) for start in range(0, scale.numel(), block)]


def _on_cores(blocks: Sequence[Block], scale: Tensor, work: Callable[[Iterable[int]], None]) -> None:
    """Each block on one core, where there are several on a CPU: the sums do not depend on the number of cores."""
    if len(blocks) == 1:
        work([0])
    else:
        on_cores(len(blocks), torch.get_num_threads() if scale.device.type == "cpu" else 1, work)


class Point:
    """theta on one block of weights, with the powers that its entries share."""

    def __init__(self, loc: Tensor | None, scale: Tensor, is_log: bool) -> None:
        self.loc, self.given, self.is_log = loc, scale, is_log
        self.size = scale.numel()
        self.cache: dict[tuple[str, float], Tensor] = {}

    @property
    def scale(self) -> Tensor:
        return self._once("scale", 0.0, lambda: self.given.exp() if self.is_log else self.given)

    def u(self, center: float) -> Tensor:
        loc = self.loc
        assert loc is not None
        return self._once("u", center, lambda: loc - center if center else loc)

    def r(self, center: float) -> Tensor:
        log = self._once("log", 0.0, lambda: self.given if self.is_log else self.given.log())
        return self._once("r", center, lambda: log - center if center else log)

    def sum(self, f: Factor, t: Number) -> Tensor:
        """The sum over the block of n t."""
        parts = self.powers(f, f.a, f.b, f.j)
        factor = f.factor
        if isinstance(t, Tensor):
            parts.append(t)
        else:
            factor = factor * t
        if not parts:
            return self.given.new_full((), factor * self.size)
        if len(parts) == 1:
            return factor * parts[0].sum()
        left = parts[0]
        for part in parts[1:-1]:
            left = left * part
        return factor * torch.dot(left, parts[-1])

    def slope_loc(self, f: Factor, t: Number, weight: float) -> tuple[float, list[Tensor]]:
        """weight * d(n t)/d loc as a number and tensors to be multiplied."""
        return _scaled(weight * f.factor * f.a, self.powers(f, f.a - 1, f.b, f.j) if f.a else [], t)

    def slope_scale(self, f: Factor, t: Number, weight: float) -> tuple[float, list[Tensor]]:
        """weight * d(n t)/d scale, or d log_scale where that is the free parameter."""
        power = f.b if self.is_log else f.b - 1
        if not f.j:
            return _scaled(weight * f.factor * f.b, self.powers(f, f.a, power, 0) if f.b else [], t)
        if not f.b:
            return _scaled(weight * f.factor * f.j, self.powers(f, f.a, power, f.j - 1), t)
        mixed = f.b * self.r(f.center) + f.j  # d (scale^b r^j) = scale^(b-1) r^(j-1) (b r + j)
        return _scaled(weight * f.factor, [*self.powers(f, f.a, power, f.j - 1), mixed], t)

    def slopes(self, jobs: Iterable[tuple[Factor, Number, Tensor]]) -> list[Tensor]:
        """The sums of both, as graphs of their own for second derivatives; the weights are tensors here."""
        total = [torch.zeros_like(self.given), torch.zeros_like(self.given)]
        for f, t, weight in jobs:
            for k, (number, parts) in enumerate((self.slope_loc(f, t, 1.0), self.slope_scale(f, t, 1.0))):
                if number:
                    total[k] = total[k] + math.prod(parts, start=number * weight)
        return total

    def powers(self, f: Factor, a: int, b: float, j: int) -> list[Tensor]:
        """u^a scale^b r^j as tensors to be multiplied."""
        out = []
        if a:
            out += [self.u(f.center)] * a if a <= 2 else [self.u(f.center) ** a]
        if b:
            out += self._scale_power(b)
        if j:
            out += [self.r(f.center)] * j if j <= 2 else [self.r(f.center) ** j]
        return out

    def _scale_power(self, b: float) -> list[Tensor]:
        if b in (1, 2):
            return [self.scale] * int(b)
        if self.is_log:
            return [self._once("power", b, lambda: (self.given * b).exp())]
        return [self._once("power", b, lambda: Monomial(b)(self.given))]

    def _once(self, kind: str, key: float, make: Any) -> Tensor:
        if (kind, key) not in self.cache:
            self.cache[kind, key] = make()
        return self.cache[kind, key]


def _scaled(weight: float, parts: list[Tensor], t: Number) -> tuple[float, list[Tensor]]:
    if isinstance(t, Tensor):
        return weight, [*parts, t]
    return weight * t, parts


def combine(slopes: list[tuple[float, list[Tensor]]], out: Tensor, fresh: bool = True) -> None:
    """out = sum of weight * product of tensors, in few passes; not `fresh`, it is added to."""
    live = [s for s in slopes if s[0]]
    constant = sum(weight for weight, parts in live if not parts)
    for weight, parts in live:
        if not parts:
            continue
        left = parts[0]
        for part in parts[1:-1]:
            left = left * part
        if len(parts) == 1:
            torch.mul(left, weight, out=out) if fresh else out.add_(left, alpha=weight)
        elif fresh:
            torch.mul(left, parts[-1], out=out).mul_(weight)
        else:
            out.addcmul_(left, parts[-1], value=weight)
        fresh = False
    if fresh:
        out.fill_(constant)
    elif constant:
        out.add_(constant)
