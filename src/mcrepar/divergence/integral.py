"""E log p(W) of every weight by adaptive quadrature: its value, its gradient and an estimate of its error.

The axis of the noise is cut into panels, at the points where the prior has a kink or a feature too. In each panel two
nested rules, Gauss with 10 and Kronrod with 21 nodes, must agree in the value and in the gradient; where they do not,
the panel is halved. What has not agreed at the end is the estimate of the error.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP, IDENTITY
from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import LogDensity, Prior
from mcrepar.distributions.quadrature import Axis, axis, locate, place

TOLERANCE = 1e-10  # of a value, absolute and relative to E |log p|
SLOPE_TOLERANCE = 1e-7  # of a gradient, likewise, per standard deviation
PASSES = 48  # halvings: a kink that is not known to the prior costs one each
PANELS = 512  # of one weight, at most
LARGEST = 660.0  # of p v, where w^p = e^(p v) or w^2 is needed: float64 holds e^709
PIECES = 6  # into which panels are cut where a prior does not say where its features are

# Kronrod's 21 nodes (1, 3, 5, ... are those of Gauss) and both weights, from 1 down to 0; the other half mirrors it.
_NODES = (
    0.995657163025808080735527280689003, 0.973906528517171720077964012084452, 0.930157491355708226001207180059508,
    0.865063366688984510732096688423493, 0.780817726586416897063717578345042, 0.679409568299024406234327365114874,
    0.562757134668604683339000099272694, 0.433395394129247190799265943165784, 0.294392862701460198131126603103866,
    0.148874338981631210884826001129720, 0.0,
)  # fmt: skip
_KRONROD = (
    0.011694638867371874278064396062192, 0.032558162307964727478818972459390, 0.054755896574351996031381300244580,
    0.075039674810919952767043140916190, 0.093125454583697605535065465083366, 0.109387158802297641899210590325805,
    0.123491976262065851077958109831074, 0.134709217311473325928054001771707, 0.142775938577060080797094273138717,
    0.147739104901338491374841515972068, 0.149445554002916905664936468389821,
)  # fmt: skip
_GAUSS = (
    0.066671344308688137593568809893332, 0.149451349150580593145776339657697, 0.219086362515982043995534934228163,
    0.269266719309996355091226921569469, 0.295524224714752870173892994651338,
)  # fmt: skip
NODES = torch.tensor([*_NODES, *(-x for x in reversed(_NODES[:-1]))], dtype=torch.float64)
KRONROD = torch.tensor([*_KRONROD, *reversed(_KRONROD[:-1])], dtype=torch.float64)
GAUSS = torch.zeros(21, dtype=torch.float64)
GAUSS[1:10:2], GAUSS[11::2] = torch.tensor(_GAUSS, dtype=torch.float64), torch.tensor(_GAUSS[::-1], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Expectation:
    """E log p(W) of some weights."""

    value: Tensor  # (weights,)
    error: Tensor  # its estimated error, (weights,)
    # by the scale, the location and the prior's tensors, (weights,) each, or of the shape of a tensor that does not go
    # weight by weight; None where it was not asked for
    slopes: list[Tensor | None]


@dataclass(frozen=True, eq=False)
class Weights:
    """Some weights of a pair, flat, in the precision in which they are integrated."""

    q: Posterior  # their posterior, for its noise and form
    p: Prior  # their prior
    scale: Tensor  # (weights,)
    loc: Number  # (weights,), or one number
    zeta: Sequence[Tensor]  # the prior's tensors
    spread: Sequence[bool]  # which of them go weight by weight
    # which gradients are wanted: by scale, by loc (where it is a tensor) and by the prior's tensors
    needed: Sequence[bool]

    def __getitem__(self, places: slice | Tensor) -> Weights:
        loc = self.loc[places] if isinstance(self.loc, Tensor) else self.loc
        zeta = [z[places] if spread else z for z, spread in zip(self.zeta, self.spread, strict=True)]
        return replace(self, scale=self.scale[places], loc=loc, zeta=zeta)

    @property
    def theta(self) -> int:
        """How many tensors the posterior has: scale, and loc where it is one."""
        return len(self.needed) - len(self.zeta)

    @property
    def learned(self) -> Sequence[bool]:
        """Which of the prior's tensors need a gradient."""
        return self.needed[self.theta :]

    @property
    def shared(self) -> Sequence[bool]:
        """Which of those have several numbers for all weights, so that their gradient is not one number per weight."""
        return [
            need and z.numel() > 1 and not s for need, z, s in zip(self.learned, self.zeta, self.spread, strict=True)
        ]

    def draw(self, xi: Tensor) -> Tensor:
        """The weights of some noise, (nodes, weights)."""
        w = self.q.form.weights(self.loc, self.scale, xi)
        return w.clamp_(min=torch.finfo(w.dtype).tiny) if self.q.row.support.lower >= 0 else w

    def density(self, zeta: Sequence[Tensor]) -> LogDensity:
        """The prior's log density with these tensors."""
        return self.p.build({**self.p.values, **dict(zip(self.p.tensors, zeta, strict=True))})

    def log_prob(self, zeta: Sequence[Tensor], w: Tensor) -> Tensor:
        """The terms of log p with these tensors, elementwise."""
        rows = torch.zeros_like(w)
        for term in self.density(zeta).terms:
            rows = rows + term(w)
        return rows

    @cached_property
    def powers(self) -> list[float]:
        """The powers of |xi| as which the terms grow; inf for one that grows as an exponential."""
        outer = self.q.form.outer
        growths = [t.statistic.growth for t in self.density(self.zeta).terms]
        return growths if outer is IDENTITY else [math.inf] if outer is EXP else []

    @property
    def far(self) -> bool:
        """Whether the mean may lie far in the tail of the noise."""
        return math.inf in self.powers

    @cached_property
    def axis(self) -> Axis:
        """The panels of the noise."""
        powers = [0.0, *(p for p in self.powers if math.isfinite(p))]
        return axis(self.q.noise, max(powers), max(-p for p in powers), self.far)

    @cached_property
    def breaks(self) -> list[Tensor]:
        """The noise at which log p has a kink or a feature, (weights,) each."""
        sides = []
        for term in self.density(self.zeta).terms:
            for distance in term.statistic.features:
                centred = not isinstance(distance, Tensor) and distance == 0
                sides += [term.center] if centred else [term.center + distance, term.center - distance]
        outer, like = self.q.form.outer, self.scale
        inner = (outer.inverse(torch.as_tensor(side, dtype=like.dtype, device=like.device)) for side in sides)
        return [((v - self.loc) / like).nan_to_num(-torch.inf, torch.inf, -torch.inf) for v in inner]


def integrate(weights: Weights, max_elements: int) -> Expectation:
    """E log p(W) of all `weights`, in blocks whose nodes hold about `max_elements` numbers."""
    width = max(1, max_elements // (len(NODES) * (len(weights.axis.edges) * len(weights.axis.signs) + 2)))
    blocks = [_integrate(weights[start : start + width]) for start in range(0, len(weights.scale), width)]
    whole = [False] * weights.theta + list(weights.shared)
    slopes = [
        None if not need else torch.stack(parts).sum(0) if one else torch.cat(parts)
        for need, one, parts in zip(weights.needed, whole, zip(*(b.slopes for b in blocks), strict=True), strict=True)
    ]
    return Expectation(torch.cat([b.value for b in blocks]), torch.cat([b.error for b in blocks]), slopes)


@dataclass(frozen=True, eq=False)
class _Panels:
    """Pieces of the axis, (panels,) each: of which weight, from where to where, and the sign of xi on it."""

    index: Tensor
    low: Tensor
    high: Tensor
    sign: Tensor

    def __getitem__(self, chosen: Tensor) -> _Panels:
        return _Panels(self.index[chosen], self.low[chosen], self.high[chosen], self.sign[chosen])

    def __add__(self, other: _Panels) -> _Panels:
        return _Panels(*(torch.cat([a, b]) for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def halved(self) -> _Panels:
        """The halves of all."""
        middle = (self.low + self.high) / 2
        return replace(self, high=middle) + replace(self, low=middle)

    def by_weight(self, x: Tensor, count: int) -> Tensor:
        """The sums of numbers of panels over the panels of each weight."""
        return torch.zeros(count, dtype=x.dtype, device=x.device).index_add_(0, self.index, x)


@dataclass(frozen=True, eq=False)
class _Sums:
    """What the nodes of panels sum to, (panels,) each."""

    parts: list[Tensor]  # of log p, and of the gradients that were asked for
    # how far two rules are apart, in the value and in the gradient per standard deviation
    errors: tuple[Tensor, Tensor]
    sizes: tuple[Tensor, Tensor]  # the sums of magnitudes of the same


def _integrate(weights: Weights) -> Expectation:
    panels, error = _first_panels(weights)
    count = len(weights.scale)
    totals: list[Tensor] = []
    bounds: list[Tensor] = []
    whole = [torch.zeros_like(z) for z, one in zip(weights.zeta, weights.shared, strict=True) if one]
    for step in range(PASSES):
        sums = _summed(weights, panels)
        if not step:  # what is enough, from the first look at the magnitudes
            tolerances = zip((TOLERANCE, SLOPE_TOLERANCE), sums.sizes, strict=True)
            bounds = [tolerance / 4 * (1 + panels.by_weight(size, count)) for tolerance, size in tolerances]
            totals = [torch.zeros_like(error) for _ in sums.parts]
        agree = [e <= b[panels.index] for e, b in zip(sums.errors, bounds, strict=True)]
        done = agree[0] & agree[1]
        if step == PASSES - 1 or 2 * int((~done).sum()) > PANELS + 64 * count:
            done = torch.ones_like(done)
        kept = panels[done]
        totals = [t + kept.by_weight(part[done], count) for t, part in zip(totals, sums.parts, strict=True)]
        whole = [t + more for t, more in zip(whole, _whole_slopes(weights, kept), strict=True)]
        error = error + kept.by_weight(sums.errors[0][done], count)
        panels = panels[~done].halved()
        if not len(panels.index):
            break
    single, shared = iter(totals[1:]), iter(whole)
    kinds = zip(weights.needed, [False] * weights.theta + list(weights.shared), strict=True)
    return Expectation(totals[0], error, [None if not need else next(shared if one else single) for need, one in kinds])


def _first_panels(weights: Weights) -> tuple[_Panels, Tensor]:
    """The panels of the noise, cut at the prior's features, and the error of ending the range where it ends."""
    scale, noise, line = weights.scale, weights.q.noise, weights.axis
    edges = torch.tensor(line.edges, dtype=scale.dtype, device=scale.device)
    if weights.p.row is None:  # nothing is known of its features
        parts = [a + (b - a) * torch.arange(PIECES).to(edges) / PIECES for a, b in pairwise(edges)]
        edges = torch.cat([*parts, edges[-1:]])
    low, high = edges[0].expand(scale.shape), edges[-1].expand(scale.shape)
    if weights.q.form.outer is EXP:  # end where e^v does
        powers = [t.statistic.growth for t in weights.density(weights.zeta).terms]
        most = locate((LARGEST / max([2.0, *powers]) - torch.as_tensor(weights.loc).to(scale)) / scale, noise, 1)
        high = torch.where(most > edges[len(edges) // 2], torch.minimum(high, most), high)
    found, error = [], torch.zeros_like(scale)
    for sign in line.signs:
        cuts = torch.stack([*edges[:, None].expand(-1, len(scale)), *(locate(x, noise, sign) for x in weights.breaks)])
        cuts = torch.minimum(torch.maximum(cuts, low), high).sort(0).values
        piece, index = (cuts[1:] > cuts[:-1]).nonzero(as_tuple=True)
        found.append(_Panels(index, cuts[piece, index], cuts[piece + 1, index], torch.full_like(scale[index], sign)))
        for end, capped, inward in ((low, line.capped[0], 0.25), (high, line.capped[1], -0.25)):
            error = error + _tail(weights, end, inward, sign) if capped or weights.far else error
    return functools.reduce(operator.add, found), error


def _tail(weights: Weights, end: Tensor, inward: float, sign: int) -> Tensor:
    """What lies beyond an end of the range, if the integrand goes on falling as it does there."""
    heights = []
    for t in (end, end + inward):
        w = weights.draw(place(t, weights.q.noise, torch.full_like(t, sign)))
        heights.append(weights.log_prob(weights.zeta, w).abs().log() + weights.q.noise.log_weight(t))
    rate = (heights[1] - heights[0]) / abs(inward)
    beyond = torch.where(rate > 0, heights[0].exp() / rate, torch.inf)
    return torch.where(heights[0] == -torch.inf, 0.0, beyond)


def _nodes(weights: Weights, panels: _Panels) -> tuple[Tensor, Tensor]:
    """The noise at Kronrod's nodes of all panels and its weights, (nodes, panels) each."""
    noise, half = weights.q.noise, (panels.high - panels.low) / 2
    t = (panels.high + panels.low) / 2 + half * NODES.to(half)[:, None]
    omega = (noise.log_weight(t) - weights.axis.log_mass).exp_() * half * KRONROD.to(half)[:, None]
    return place(t, noise, panels.sign), omega


def _summed(weights: Weights, panels: _Panels) -> _Sums:
    """Both rules on every panel."""
    xi, omega = _nodes(weights, panels)
    here = weights[panels.index]
    w, scale = here.draw(xi), here.scale
    theta, form = any(weights.needed[: weights.theta]), weights.q.form
    with torch.enable_grad():
        w.requires_grad_(theta)
        single = [need and not whole for need, whole in zip(weights.learned, weights.shared, strict=True)]
        zeta = [
            z.expand(len(scale)).detach().requires_grad_() if s else z for z, s in zip(here.zeta, single, strict=True)
        ]
        rows = weights.log_prob(zeta, w)
        sources = [w] * theta + [z for z, s in zip(zeta, single, strict=True) if s]
        slopes = [torch.zeros_like(x) for x in sources]
        if rows.requires_grad:
            slopes = list(torch.autograd.grad((rows * omega).sum(), sources, materialize_grads=True))
    values = rows.detach() * omega
    total, differing = values.sum(0), (1 - GAUSS / KRONROD).to(values)
    spread = (values - total * (KRONROD.to(values) / 2)[:, None]).abs().sum(0)
    ratio = 200 * (differing @ values).abs() / spread.clamp(min=torch.finfo(spread.dtype).tiny)
    error, slope_error, slope_size = (
        spread * ratio.clamp(max=1) ** 1.5,
        torch.zeros_like(total),
        torch.zeros_like(total),
    )
    parts = [total]
    if theta:
        by_loc = slopes.pop(0)
        if form.outer.derivative is not None:
            by_loc = by_loc * form.outer.derivative(w.detach())
        for by, need in zip((by_loc * xi, by_loc), weights.needed[: weights.theta], strict=False):
            slope_error = slope_error + (differing @ by).abs() * scale
            slope_size = slope_size + by.abs().sum(0) * scale
            parts += [by.sum(0)] if need else []
    return _Sums([*parts, *slopes], (error, slope_error), (values.abs().sum(0), slope_size))


def _whole_slopes(weights: Weights, panels: _Panels) -> list[Tensor]:
    """The gradients by the prior's tensors that several weights share, number by number."""
    if not any(weights.shared):
        return []
    xi, omega = _nodes(weights, panels)
    here = weights[panels.index]
    with torch.enable_grad():
        zeta = [z.detach().requires_grad_(one) for z, one in zip(here.zeta, weights.shared, strict=True)]
        value = (weights.log_prob(zeta, here.draw(xi)) * omega).sum()
        return list(torch.autograd.grad(value, [z for z in zeta if z.requires_grad], materialize_grads=True))
