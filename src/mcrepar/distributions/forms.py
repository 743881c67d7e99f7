"""How noise becomes a weight, W(theta, xi) = f(loc + scale * xi), and what a statistic of W becomes.

A statistic with a finite tuple turns into a sum of products n(theta) * tau(xi); each product is an `Entry`.
The location is learned (location-scale families) or fixed (scale families); f is the outer map of the
paper's Corollaries 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mcrepar.distributions.parameters import Number
from mcrepar.distributions.statistics import Monomial, Statistic


@dataclass(frozen=True)
class Entry:
    """One product n(theta) tau(xi), n = factor u^loc_power scale^scale_power (log scale - c)^log_power, u = loc - c."""

    factor: float  # a number, such as a binomial coefficient
    loc_power: int  # power of the centred location u
    scale_power: float  # power of the scale
    log_power: int  # power of the centred logarithm of the scale
    tau: Monomial  # the statistic of the noise

    def text(self, learned_loc: bool, centred: bool) -> str:
        """How n(theta) is printed."""
        loc, log = ("(loc - c)", "(log scale - c)") if centred else ("loc", "log scale")
        if not learned_loc:
            loc = "(loc0 - c)" if centred else "loc0"
        powers = ((loc, self.loc_power), ("scale", self.scale_power), (log, self.log_power))
        parts = [x if p == 1 else f"{x}^{p:g}" for x, p in powers if p]
        if self.factor != 1 or not parts:
            parts.insert(0, f"{self.factor:g}")
        return " ".join(parts)


@dataclass(frozen=True, repr=False)
class Outer:
    """The outer map f of W = f(loc + scale * xi)."""

    name: str  # "identity", "exp" or "log"
    apply: Callable[[Tensor], Tensor]  # f
    inverse: Callable[[Tensor], Tensor]  # its inverse
    slope: tuple[float, Monomial] | None = None  # log f'(v) = coefficient * statistic(v), or None where it is 0
    derivative: Callable[[Tensor], Tensor] | None = None  # f'(v) as a function of w = f(v), or None where it is 1

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], Outer], tuple[str]]:
        return _outer, (self.name,)  # a map is pickled as its name

    def compose(self, statistic: Monomial) -> Monomial | None:
        """The statistic of v = f^-1(w) that equals `statistic` of w, where it is a monomial again."""
        if self.name == "exp" and not statistic.power:
            return Monomial(float(statistic.log))  # (log w)^j = v^j
        if self.name == "log" and statistic.polynomial:
            return Monomial(0.0, int(statistic.power))  # w^k = (log v)^k
        return statistic if self.name == "identity" else None


IDENTITY = Outer("identity", lambda v: v, lambda w: w)
EXP = Outer("exp", torch.exp, torch.log, (1.0, Monomial(1.0)), lambda w: w)
LOG = Outer("log", torch.log, torch.exp, (-1.0, Monomial(0.0, 1)), lambda w: (-w).exp())


def _outer(name: str) -> Outer:
    return next(outer for outer in (IDENTITY, EXP, LOG) if outer.name == name)


@dataclass(frozen=True)
class Form:
    """W = f(loc + scale * xi)."""

    learned_loc: bool  # whether loc is learned (S = 2) or fixed (S = 1)
    outer: Outer = IDENTITY  # the outer map f

    @property
    def learned(self) -> int:
        """S, the number of learned parameters per weight."""
        return 2 if self.learned_loc else 1

    def weights(self, loc: Number, scale: Tensor, xi: Tensor) -> Tensor:
        """The weights of the noise `xi`, whose leading dimensions may be draws."""
        moved = scale * xi
        if isinstance(loc, Tensor) or loc:
            moved = loc + moved
        return self.outer.apply(moved)

    def pull_back(self, slope: Tensor, w: Tensor, xi: Tensor) -> tuple[Tensor, Tensor]:
        """dF/dloc and dF/dscale from dF/dw, summed over draws: all arguments are (draws, size)."""
        if self.outer.derivative is not None:
            slope = slope * self.outer.derivative(w)
        if len(slope) == 1:
            return slope[0], slope[0] * xi[0]
        return slope.sum(0), (slope * xi).sum(0)


def expand(
    statistic: Statistic, form: Form, loc: float | None, center: float | None, positive: bool
) -> tuple[Entry, ...] | None:
    """The entries of `statistic` under `form`, or None where Theorem F says that there are none.

    (loc - c + scale xi)^k = sum_b binom(k, b) (loc - c)^(k-b) scale^b xi^b

    Args:
        statistic: of the weight, centred at c.
        form: how noise becomes a weight.
        loc: the fixed location, None where it is a tensor or learned.
        center: c, None where it is a tensor.
        positive: whether the noise is positive.

    >>> scale = Form(learned_loc=False)
    >>> [entry.text(False, False) for entry in expand(Monomial(-1.0), scale, 0.0, 0.0, True)]
    ['scale^-1']
    """
    if not isinstance(statistic, Monomial):
        return None
    composed = form.outer.compose(statistic)
    if composed is None:
        return None
    statistic = composed
    offset = None if loc is None or center is None or form.learned_loc else loc - center
    if statistic.log and not statistic.power:
        j = statistic.log
        if form.learned_loc or loc != 0 or not positive:
            return None
        return tuple(Entry(math.comb(j, i), 0, 0.0, j - i, Monomial(0.0, i)) for i in range(j + 1))
    if not (positive or statistic.absolute or statistic.polynomial):
        return None  # a real power of a negative number
    if offset == 0:
        tau = replace(statistic, absolute=False) if positive or statistic.even else statistic
        return (Entry(1.0, 0, statistic.power, 0, tau),)
    if statistic.absolute and positive and offset is not None and offset > 0:
        statistic = replace(statistic, absolute=False)  # |w - c| = w - c when c lies below every weight
    if statistic.polynomial:
        k = int(statistic.power)
        return tuple(Entry(math.comb(k, b), k - b, float(b), 0, Monomial(float(b))) for b in range(k + 1))
    return None
