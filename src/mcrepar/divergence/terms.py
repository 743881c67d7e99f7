"""What a plan looks at: the static sides of a pair, and what one statistic of the prior allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP, IDENTITY, Entry, Form, expand
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.parameters import Interval
from mcrepar.distributions.posterior import Posterior, PosteriorRow
from mcrepar.distributions.prior import Prior, Term
from mcrepar.distributions.statistics import General, Monomial, Statistic

CLOSE = 1e-6  # relative; closed forms that hold at equal scales are right to first order around them


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
        loc = None if q.form.learned_loc else q.loc
        return cls(q.row, q.name, q.noise, q.form, q.row.support, None if isinstance(loc, Tensor) else loc)


@dataclass(frozen=True)
class PriorKey:
    """What a plan needs of a prior; a centre is None where it is a tensor."""

    name: str
    terms: tuple[tuple[Statistic, float | None], ...]
    support: Interval
    improper: bool
    simplex: bool
    kernel: bool
    foreign: bool
    penalised: bool = False

    @classmethod
    def of(cls, p: Prior) -> PriorKey:
        """The key of `p`."""
        p = p.sketch()
        density, kernel = p.density, p.row is not None and p.row.kernel
        terms = tuple((t.statistic, None if isinstance(t.center, Tensor) else float(t.center)) for t in density.terms)
        penalised = isinstance(density.penalty, Tensor) or density.penalty != 0
        return cls(p.name, terms, p.support, p.improper, p.simplex, kernel, p.row is None, penalised)


@dataclass(frozen=True)
class TermPlan:
    """What one statistic of the prior allows.

    Args:
        statistic: of the weight.
        center: subtracted from the weight, None where it is a tensor.
        entries: its tuple, None where Theorem F says that there is none.
        closed: the name of the closed expectation of a statistic without a tuple, "" where none is known.
        condition: when that closed form holds, "" for always.
    """

    statistic: Statistic
    center: float | None
    entries: tuple[Entry, ...] | None
    closed: str = ""
    condition: str = ""

    @property
    def text(self) -> str:
        """How the statistic is printed."""
        return self.statistic.text("w" if self.center == 0 else "(w - c)")


def plan_term(q: PosteriorKey, statistic: Statistic, center: float | None) -> TermPlan:
    """The tuple of a statistic under a posterior, or its closed expectation, or neither."""
    above = center is not None and center <= q.support.lower
    if isinstance(statistic, Monomial) and statistic.absolute and above:
        statistic = Monomial(statistic.power)  # |w - c| = w - c
    entries = expand(statistic, q.form, q.loc, center, q.noise.positive)
    if entries is not None:
        return TermPlan(statistic, center, entries)
    return TermPlan(statistic, center, None, *_closed(q, statistic, center))


def _closed(q: PosteriorKey, statistic: Statistic, center: float | None) -> tuple[str, str]:
    """The closed expectation of a statistic without a tuple (math.md D3), and when it holds."""
    probe = torch.ones(())
    outer, noise = q.form.outer, q.noise
    if isinstance(statistic, Monomial):
        if outer is IDENTITY and statistic == Monomial(1.0, absolute=True):
            return ("abs", "") if noise.mean_abs(probe, probe) is not None else ("", "")
        expandable = center == 0 or statistic.polynomial
        if outer is EXP and expandable and not statistic.absolute and noise.mgf_limit > 0:
            return "mgf", ""
        return "", ""
    if outer is IDENTITY and statistic.kind == "softplus" and noise.mean_softplus(probe, probe) is not None:
        return "softplus", "posterior and prior have equal scales"
    if statistic.kind == "norm" and noise.joint:
        return "norm", "posterior and prior have equal locations and proportional scales"
    return "", ""


def moments(q: PosteriorKey, term: TermPlan) -> tuple[float, ...]:
    """The powers p for which E |xi|^p must exist; exponential and logarithmic outer maps have rules of their own."""
    if term.entries is not None:
        return tuple(e.tau.power for e in term.entries)
    if q.form.outer is not IDENTITY:
        return ()
    pole = term.statistic.pole if isinstance(term.statistic, General) else 0.0
    return (term.statistic.growth, -pole) if pole else (term.statistic.growth,)


def unmet_condition(plans: Sequence[TermPlan], q: Posterior, p: Prior) -> str | None:
    """The condition of a closed form that holds for some values only, where these are not among them."""
    for term, plan in zip(p.density.terms, plans, strict=True):
        if plan.entries is None and plan.condition and not _holds(plan.closed, term, q):
            return plan.condition
    return None


def _holds(closed: str, term: Term, q: Posterior) -> bool:
    assert isinstance(term.statistic, General)
    ratio = (q.scale / term.statistic.length).detach()
    if closed == "softplus":
        return bool(((ratio - 1).abs() <= CLOSE).all())
    same = torch.as_tensor(q.loc - term.center).detach()
    return bool((same == 0).all()) and float(ratio.max() - ratio.min()) <= CLOSE * float(ratio.max())
