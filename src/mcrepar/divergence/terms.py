"""What a plan looks at: the static sides of a pair, and what one statistic of the prior allows.

A statistic has a finite tuple, or an expectation in closed form (math.md D3; a row of `CLOSED_FORMS`), or neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from mcrepar.distributions.forms import IDENTITY, Entry, Form, expand
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.parameters import Interval
from mcrepar.distributions.posterior import Posterior, PosteriorRow
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.statistics import General, Monomial, Statistic
from mcrepar.divergence.closed_forms import CLOSED_FORMS, ClosedForm
from mcrepar.errors import ParameterError


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
