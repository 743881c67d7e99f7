"""What is averaged: the statistics g(w) of a prior's log density, and tau(xi) of the noise.

Theorem F: under W = scale * xi a finite tuple exists iff g lies in the span of w^p (log w)^j; under
W = loc + scale * xi iff g is a polynomial. So one class, `Monomial`, names every statistic that has a
tuple, of the weight and of the noise alike; `General` holds the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Monomial:
    """The statistic x^power (log x)^log, or |x|^power when `absolute`.

    Args:
        power: real for positive x, a non-negative integer for signed x, real >= 0 when `absolute`.
        log: how often log x is multiplied in; needs positive x.
        absolute: whether |x| stands in for x.

    >>> Monomial(2.0)(torch.tensor([-1.0, 3.0])).tolist()
    [1.0, 9.0]
    """

    power: float = 0.0
    log: int = 0
    absolute: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        base = x.abs() if self.absolute else x
        out = _power(base, self.power) if self.power or not self.log else None
        if self.log:
            logs = base.log() ** self.log if self.log > 1 else base.log()
            out = logs if out is None else out * logs
        assert out is not None
        return out

    @property
    def constant(self) -> bool:
        """Whether the statistic is 1 for every x."""
        return not self.power and not self.log

    @property
    def even(self) -> bool:
        """Whether it is a polynomial of even degree, so that |x| and x give the same."""
        return not self.log and self.power >= 0 and self.power % 2 == 0

    @property
    def polynomial(self) -> bool:
        """Whether it is a non-negative integer power of x itself."""
        whole = float(self.power).is_integer() and self.power >= 0
        return whole and not self.log and (self.even or not self.absolute)

    @property
    def smooth(self) -> bool:
        """Whether it has no kink, as |x|^p has."""
        return not self.absolute

    @property
    def growth(self) -> float:
        """The power of |x| that bounds it at infinity (logarithms count as 0)."""
        return self.power

    @property
    def features(self) -> tuple[float, ...]:
        """The distances from its centre at which it is not smooth: a kink of |x|^p at 0."""
        return (0.0,) if self.absolute and not self.even else ()

    def text(self, x: str = "w") -> str:
        """How the statistic is printed."""
        base = f"|{x}|" if self.absolute else x
        parts = []
        if self.power:
            parts.append(base if self.power == 1 else f"{base}^{self.power:g}")
        if self.log:
            parts.append(f"log {x}" if self.log == 1 else f"(log {x})^{self.log}")
        return " ".join(parts) or "1"


@dataclass(frozen=True)
class General:
    """A statistic without a finite tuple: any elementwise function of u = w - center.

    Args:
        fn: the function, from a tensor to a tensor of the same shape.
        label: how it is printed, with `u` for the argument; also its identity.
        growth: the power of |u| that bounds it at infinity (0 for logarithms).
        smooth: whether it has neither a kink nor a spike.
        kind: the key under which a noise may know its expectation in closed form.
        joint: whether it looks at the whole tensor: (draws, size) -> (draws,).
        pole: the power of 1 / u that bounds it at 0.
        length: the scale of its argument, a number or a tensor.
        features: the distances from its centre, on both sides, at which a quadrature must look closely.
    """

    fn: Callable[[Tensor], Tensor] = field(compare=False, repr=False)
    label: str
    growth: float
    smooth: bool = True
    kind: str = ""
    joint: bool = False
    pole: float = 0.0
    length: float | Tensor = field(default=1.0, compare=False, repr=False)
    features: tuple[float | Tensor, ...] = field(default=(0.0,), compare=False, repr=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.fn(x)

    def text(self, x: str = "w") -> str:
        """How the statistic is printed."""
        return re.sub(r"\bu\b", x, self.label)


Statistic = Monomial | General


def _power(x: Tensor, p: float) -> Tensor:
    """x^p, by products or a root where that is exact and cheap."""
    if p == 0:
        return torch.ones_like(x)
    if p == 1:
        return x
    if p == 2:
        return x * x
    if p == -1:
        return x.reciprocal()
    return x**p
