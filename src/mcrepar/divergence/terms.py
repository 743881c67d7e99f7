"""What a plan looks at: the static sides of a pair, and what one statistic of the prior allows.

A statistic has a finite tuple, or an expectation in closed form (math.md D3; a row of `CLOSED_FORMS`), or neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP, IDENTITY, Entry, Form, expand
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.parameters import Interval, Number
from mcrepar.distributions.posterior import Posterior, PosteriorRow
from mcrepar.distributions.prior import Prior, Term
from mcrepar.distributions.statistics import General, Monomial, Statistic
from mcrepar.divergence.average import refuse_second_derivatives
from mcrepar.divergence.sums import summed
from mcrepar.errors import ParameterError

CLOSE = 1e-6  # relative; closed forms that hold at equal scales are right to first order around them
_ONE = torch.ones(())


@dataclass(frozen=True)
class PosteriorKey:
    """What a plan needs of a posterior; `loc` is None where it is learned or a tensor."""

    row: PosteriorRow = field(compare=False)
    name: str
    noise: Noise
    form: Form
    support: Interval
    loc: float | None

    @classmethod
    def of(cls, q: Posterior) -> PosteriorKey:
        """The key of `q`."""
        return cls(q.row, q.name, q.noise, q.form, q.row.support, q.fixed_loc)


@dataclass(frozen=True)
class PriorKey:
    """What a plan needs of a prior, or of a statistic whose expectation is asked for; a centre is None for a tensor."""

    name: str
    terms: tuple[tuple[Statistic, float | None], ...]
    support: Interval
    improper: bool
    simplex: bool
    kernel: bool
    external: bool
    expected: bool
    penalised: bool = False

    @classmethod
    def of(cls, p: Prior) -> PriorKey:
        """The key of `p`."""
        p = p.sketch()
        density, kernel = p.density, p.row is not None and p.row.kernel
        terms = tuple((t.statistic, None if isinstance(t.center, Tensor) else float(t.center)) for t in density.terms)
        penalised = isinstance(density.penalty, Tensor) or density.penalty != 0
        external = p.row is None
        return cls(p.name, terms, p.support, p.improper, p.simplex, kernel, external, p.expected, penalised)

    @property
    def value(self) -> str:
        """What is computed of it."""
        return "expectation" if self.expected else "KL"


def pair_of(q: PosteriorKey | Posterior, p: PriorKey | Prior) -> str:
    """The pair as errors name it."""
    return f"E {p.name} under {q.name}" if p.expected else f"KL({q.name} || {p.name})"


@dataclass(frozen=True)
class TermPlan:
    """What one statistic of the prior allows."""

    statistic: Statistic  # of the weight
    center: float | None  # subtracted from the weight, None where it is a tensor
    entries: tuple[Entry, ...] | None  # its tuple, None where Theorem F says that there is none
    closed: ClosedForm | None = None  # the closed expectation of a statistic without a tuple, None where none is known

    @property
    def text(self) -> str:
        """How the statistic is printed."""
        return self.statistic.text("w" if self.center == 0 else "(w - c)")

    @property
    def condition(self) -> str:
        """When the closed form holds, "" for always."""
        return "" if self.closed is None else self.closed.condition


def plan_term(q: PosteriorKey, statistic: Statistic, center: float | None) -> TermPlan:
    """The tuple of a statistic under a posterior, or its closed expectation, or neither."""
    above = center is not None and center <= q.support.lower
    if isinstance(statistic, Monomial) and statistic.absolute and above:
        statistic = Monomial(statistic.power)  # |w - c| = w - c
    entries = expand(statistic, q.form, q.loc, center, q.noise.positive)
    if entries is not None:
        return TermPlan(statistic, center, entries)
    closed = next((form for form in CLOSED_FORMS.values() if form.applies(q, statistic, center)), None)
    return TermPlan(statistic, center, None, closed)


def moments(q: PosteriorKey, term: TermPlan) -> tuple[float, ...]:
    """The powers p for which E |xi|^p must exist; exponential and logarithmic outer maps have rules of their own."""
    if term.entries is not None:
        return tuple(e.tau.power for e in term.entries)
    if q.form.outer is not IDENTITY:
        return ()
    pole = term.statistic.pole if isinstance(term.statistic, General) else 0.0
    return (term.statistic.growth, -pole) if pole else (term.statistic.growth,)


@contextmanager
def named_extremes(q: Posterior, p: Prior) -> Iterator[None]:
    """Name the pair whose numbers leave float64 on the way: a scale of 1e-200 squared, a power of 1000."""
    try:
        yield
    except ArithmeticError as error:
        why = f"a parameter is too extreme for float64 ({error})"
        pair = f"E {p.name} under {q!r}" if p.expected else f"KL({q!r} || {p!r})"
        raise ParameterError(pair, why, "milder values") from error


# ---- expectations in closed form


@dataclass(frozen=True)
class ClosedForm:
    """A statistic whose expectation is known under some posteriors."""

    # whether it is known, from the families: the posterior, the statistic and its centre (None: a tensor)
    applies: Callable[[PosteriorKey, Statistic, float | None], bool]
    mean: Callable[[Posterior, Term], Tensor | None]  # E statistic(W - center), by weight, or summed where it is joint
    condition: str = ""  # when it holds, in words; "" for always
    holds: Callable[[Posterior, Term], bool] = lambda q, term: True  # whether these tensors meet the condition

    def total(self, q: Posterior, term: Term) -> Tensor:
        """coefficient * E statistic(W - center), summed over the weights, in float64."""
        mean = self.mean(q, term)
        assert mean is not None
        if self.condition:
            mean = _FirstOrder.apply(mean)  # type: ignore[no-untyped-call]
        return summed(term.coefficient * mean) if mean.shape == q.shape else mean


class _FirstOrder(torch.autograd.Function):
    """The identity, for a form that has the right value and gradient where it holds, but no curvature."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor) -> Tensor:
        return mean.view_as(mean)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_second_derivatives("a closed form that holds under a condition")
        return grad


def _shift(q: Posterior, term: Term) -> Tensor:
    return torch.as_tensor(q.loc - term.center, dtype=q.dtype, device=q.device).expand(q.shape)


def _length(term: Term) -> Number:
    assert isinstance(term.statistic, General)
    return term.statistic.length


def _kind(statistic: Statistic) -> str:
    return statistic.kind if isinstance(statistic, General) else ""


def _has_mgf(q: PosteriorKey, statistic: Statistic, center: float | None) -> bool:
    if not isinstance(statistic, Monomial) or q.form.outer is not EXP or not q.noise.mgf_limit > 0:
        return False
    return (center == 0 or statistic.polynomial) and not statistic.absolute


def _mgf(q: Posterior, term: Term) -> Tensor:
    """E (e^v - c)^p = sum_k binom(p, k) (-c)^(p-k) E e^(k v), and E e^(p v) for c = 0 and any real p."""
    assert isinstance(term.statistic, Monomial)
    p = term.statistic.power
    if not isinstance(term.center, Tensor) and term.center == 0:
        return q.raw_moment(p)
    mean: Tensor = (-term.center) ** int(p) * torch.ones_like(q.scale)
    for k in range(1, int(p) + 1):
        mean = mean + math.comb(int(p), k) * (-term.center) ** (int(p) - k) * q.raw_moment(float(k))
    return mean


def _equal_scales(q: Posterior, term: Term) -> bool:
    return bool(((q.scale / _length(term) - 1).detach().abs() <= CLOSE).all())


def _proportional(q: Posterior, term: Term) -> bool:
    ratio = (q.scale / _length(term)).detach()
    same = torch.as_tensor(q.loc - term.center).detach()
    return bool((same == 0).all()) and float(ratio.max() - ratio.min()) <= CLOSE * float(ratio.max())


CLOSED_FORMS = {
    "|w|": ClosedForm(
        lambda q, g, center: (
            q.form.outer is IDENTITY and g == Monomial(1.0, absolute=True) and q.noise.mean_abs(_ONE, _ONE) is not None
        ),
        lambda q, term: q.noise.mean_abs(_shift(q, term), q.scale),
    ),
    "w^p of w = exp(v)": ClosedForm(_has_mgf, _mgf),
    "softplus": ClosedForm(
        lambda q, g, center: (
            q.form.outer is IDENTITY and _kind(g) == "softplus" and q.noise.mean_softplus(_ONE, _ONE) is not None
        ),
        lambda q, term: q.noise.mean_softplus(
            torch.as_tensor((q.loc - term.center) / _length(term)), q.scale / _length(term)
        ),
        "posterior and prior have equal scales",
        _equal_scales,
    ),
    "norm": ClosedForm(
        lambda q, g, center: _kind(g) == "norm" and q.noise.mean_norm(_ONE) is not None,
        lambda q, term: q.noise.mean_norm(q.scale / _length(term)),
        "posterior and prior have equal locations and proportional scales",
        _proportional,
    ),
}
