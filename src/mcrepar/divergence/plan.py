"""What a pair of families allows: the tuple (n, t), its size, the verdict, the methods, every refusal.

A plan looks at families and at the rows of `METHODS`, never at tensor values, and is cached. Four questions decide
everything: is the posterior's support inside the prior's? does every moment that the KL needs exist? has every
statistic of the prior a finite tuple (Theorem F)? if not, is its expectation known in closed form?
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace

import torch

from mcrepar import checks
from mcrepar.distributions.forms import EXP, LOG, Entry, Form, expand
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import prior
from mcrepar.distributions.sample_means import MeansDistribution
from mcrepar.distributions.statistics import Monomial
from mcrepar.distributions.torch_priors import as_expected, as_prior
from mcrepar.divergence import reasons
from mcrepar.divergence.contraction import Tuple
from mcrepar.divergence.methods import METHODS, Estimator, Method, unmet_refusal, variance_error
from mcrepar.divergence.taylor import inner
from mcrepar.divergence.terms import PosteriorKey, PriorKey, TermPlan, moments, named_extremes, pair_of, plan_term
from mcrepar.errors import InfiniteKLError, McreparError, ParameterError

Names = tuple[str, ...]  # `Plan.tuple` hides the type inside the class
Pairs = tuple[tuple[str, str], ...]
Terms = tuple[TermPlan, ...]
Statistics = tuple[Monomial, ...]
Sides = tuple[Posterior, Prior]
Keys = set[tuple[float, ...]]
Rows = tuple[tuple[str, Method], ...]


@dataclass(frozen=True)
class Plan:
    """Which estimators a pair allows and why; printed, it reads as prose.

    Args:
        verdict: "T1", "T2", "C1", "C2", "X" (right), "N" (no finite tuple), "INF-S", "INF-M" (infinite KL).
        reason: one sentence.
        terms: what each statistic of the prior allows.
        refusals: the error of every method that does not apply.
        infinite_variance: why Monte Carlo has no variance, "" where it has.
        largest_power: E exp(p v) is needed for p up to this (exponential outer map), under the noise's limit.
        met: whether tensors are known that meet the conditions of the closed forms.
        sides: the objects that it was asked for with.
    """

    q: PosteriorKey
    p: PriorKey
    verdict: str
    reason: str
    terms: Terms = ()
    refusals: Mapping[str, McreparError] = field(default_factory=dict)
    infinite_variance: str = ""
    largest_power: float = 0.0
    met: bool = False
    sides: Sides | None = field(default=None, compare=False, repr=False)

    @property
    def pair(self) -> str:
        """The pair as errors name it."""
        return pair_of(self.q, self.p)

    @property
    def has_tuple(self) -> bool:
        """Whether every statistic has a tuple of a size independent of M, whether the KL is finite or not."""
        return all(t.entries is not None for t in self.terms)

    @property
    def right(self) -> bool:
        """Whether every statistic has such a tuple, and the KL is finite."""
        return reasons.VERDICTS[self.verdict].right

    @property
    def finite(self) -> bool:
        """Whether the KL is finite."""
        return not self.verdict.startswith("INF")

    @property
    def methods(self) -> Names:
        """The methods that apply."""
        return tuple(m for m in METHODS if self.finite and m not in self.refusals)

    @property
    def method(self) -> str | None:
        """What `auto` takes without M; None where the KL is infinite or that method is refused."""
        found = self.outcome(Estimator())
        return found.method if isinstance(found, Decision) else None

    @property
    def taus(self) -> Statistics:
        """The distinct statistics of the noise, without the constant."""
        entries = (e for t in self.terms for e in t.entries or ())
        return tuple(dict.fromkeys(e.tau for e in entries if not e.tau.constant))

    @property
    def means_distribution(self) -> MeansDistribution | None:
        """Where `stats` draws its statistics from."""
        return self.q.noise.means_distribution(self.taus) if self.right and self.taus else None

    @property
    def statistics(self) -> Pairs:
        """The products n(theta), t(xi) of the tuple, as text."""
        centred = any(center != 0 for _, center in self.p.terms)
        return tuple(
            (e.text(self.q.form.learned_loc, centred), "1" if e.tau.constant else f"mean {e.tau.text('xi')}")
            for t in self.terms
            for e in t.entries or ()
        )

    @property
    def d_P(self) -> int | None:
        """The paper's size of the tuple: distinct non-constant n of the cross-entropy; None without a tuple."""
        return len(self._keys()) if self.right else None

    @property
    def d_P_total(self) -> int | None:
        """d_P with the entropy's entries."""
        return len(self._keys() | _entropy_keys(self.q)) if self.right else None

    @property
    def d_P_merged(self) -> int | None:
        """The smallest size known: entries that share a statistic of the noise are one."""
        if not self.right:
            return None
        live = [e for t in self.terms for e in t.entries or () if _key(e, self.q.form) is not None]
        return min(len({e.tau for e in live}), len(self._keys()))

    def d_P_direct(self, draws: int, factored: bool = False) -> int | None:
        """The size of the naive graph: d_P per draw (Figure 4), or S per draw when `factored` (Remark 2)."""
        if factored:
            return draws * self.q.form.learned
        return None if self.d_P is None else draws * self.d_P

    def d_P_taylor(self, degree: int) -> int:
        """The size of a Taylor polynomial's tuple, binom(K + S, S) - 1."""
        form = inner(self.q.form)
        powers = (Monomial(float(k)) for k in range(1, degree + 1))
        parts = (expand(power, form, self.q.loc, None, self.q.noise.positive) or () for power in powers)
        return len({key for part in parts for e in part if (key := _key(e, form)) is not None})

    @property
    def tuple(self) -> Tuple | None:
        """The paper's tuple as functions G, n and t of this pair's values; None where there is none."""
        if not self.right or self.sides is None:
            return None
        q, p = self.sides
        return Tuple(q, p.sketch().density.terms, [t.entries or () for t in self.terms])

    def decide(self, request: Estimator) -> Decision:
        """The method that a request runs, or the error that says why none does: the only place that decides.

        It looks at the objects that this plan was asked for with. Where there are none, where the posterior has no
        tensors, or where a network has still to fill the prior in, the families alone decide.

        Args:
            request: what was asked for.

        Raises:
            McreparError: the refusal of the method that was asked for, before any tensor is touched where families
                refuse.

        >>> explain("normal", "normal").decide(Estimator(n_mc_iter=1000)).method
        'stats'
        """
        found = self.outcome(request)
        if isinstance(found, Decision):
            return found
        raise copy(found)  # plans are kept: an error of theirs that was raised would keep the tensors of its traceback

    def outcome(self, request: Estimator) -> Decision | McreparError:
        """The same, with the error where nothing runs."""
        found = _chosen(self, request)
        if isinstance(found, McreparError) or self.sides is None:
            return found
        q, p = self.sides
        if not q.learned or p.words or p.relative:
            return found
        at = self.at(q, p)
        if at is not self:
            found = _chosen(at, request)
        if isinstance(found, Decision) and METHODS[found.method].weights:
            return reasons.range_refusal(at, q) or found
        return found

    @property
    def conditions(self) -> Names:
        """When the closed forms of statistics without a tuple hold, of those that do not always."""
        return tuple(t.condition for t in self.terms if t.entries is None and t.condition)

    @property
    def closed(self) -> bool:
        """Whether every statistic has a tuple or a closed expectation, on some condition or on none."""
        return all(t.entries is not None or t.closed is not None for t in self.terms)

    def at(self, q: Posterior, p: Prior) -> Plan:
        """The plan for these very tensors, of which some closed forms and moments depend on the values."""
        plan = _at_scale(self, q) if self.largest_power else self
        if not plan.conditions or not plan.closed:
            return plan
        pairs = zip(p.density.terms, plan.terms, strict=True)
        forms = [(t.closed, term) for term, t in pairs if t.entries is None and t.closed is not None]
        unmet = next((form.condition for form, term in forms if not form.holds(q, term)), None)
        if unmet is None:
            return replace(plan, met=True)
        return replace(plan, refusals={**plan.refusals, **unmet_refusal(plan, unmet)})

    def _keys(self) -> Keys:
        entries = (e for t in self.terms for e in t.entries or ())
        return {key for e in entries if (key := _key(e, self.q.form)) is not None}

    def __str__(self) -> str:
        return reasons.describe(self)


def _key(entry: Entry, form: Form) -> tuple[float, ...] | None:
    """The identity of n(theta), None where it does not depend on learned parameters."""
    key = (entry.loc_power if form.learned_loc else 0, entry.scale_power, entry.log_power)
    return key if any(key) else None


def _entropy_keys(q: PosteriorKey) -> set[tuple[float, ...]]:
    """The entries of the entropy, H0 + log scale + E log f'."""
    if q.form.outer is LOG:
        return set()
    keys: set[tuple[float, ...]] = {(0, 0.0, 1)}
    if q.form.outer is EXP:
        keys |= {(1, 0.0, 0)} if q.form.learned_loc else {(0, 1.0, 0)}
    return keys


@dataclass(frozen=True)
class Decision:
    """The method that runs, why it is this one, and why its Monte Carlo estimate has no variance ("" where it has)."""

    method: str
    reason: str
    infinite_variance: str = ""


def _chosen(plan: Plan, request: Estimator) -> Decision | McreparError:
    """The decision on families, and on the values that a plan knows already."""
    if not plan.finite:
        return next(iter(plan.refusals.values()))
    method, why = request.method, "it was asked for"
    if method not in METHODS:  # auto
        taken = ((name, row.auto(plan, request)) for name, row in METHODS.items())
        method, why = next((name, because) for name, because in taken if because)
    if method in plan.refusals:
        return plan.refusals[method]
    row = METHODS[method]
    if row.samples and plan.infinite_variance and not request.force:
        return variance_error(plan, method, plan.infinite_variance)
    fallback = row.fallback(plan, request)
    error = row.check(plan, request) if fallback is None else None
    return error or Decision(*(fallback or (method, why)), plan.infinite_variance if row.samples else "")


def explain(q: str | Posterior, p: object) -> Plan:
    """The plan of a pair: verdict, methods, tuple, d_P, reason.

    Args:
        q: a name of `POSTERIORS` or a posterior.
        p: a name of `PRIORS`, a prior, any torch.distributions object, or what `expectation` takes for g.

    >>> plan = explain("gamma", "inverse_gaussian")
    >>> plan.verdict, plan.method, plan.d_P, plan.d_P_total
    ('T1', 'exact', 3, 3)
    """
    if not isinstance(q, str | Posterior):
        raise ParameterError(
            f"explain({type(q).__name__}, ...)", "it is no posterior", "a name or posterior(name, ...)"
        )
    q = posterior(q) if isinstance(q, str) else q
    if isinstance(p, str):
        p = prior(p)
    elif isinstance(p, Prior | torch.distributions.Distribution):
        p = as_prior(p)
    else:
        p = as_expected(p, q.shape if q.learned else (1,))
    plan = replace(plan_pair(q, p), sides=(q, p.over(q.numel) if q.learned else p))
    return plan if p.words or p.relative or not q.learned else plan.at(q, p)


def plan_pair(q: Posterior, p: Prior) -> Plan:
    """The cached plan of two objects."""
    with named_extremes(q, p):
        return _plan(PosteriorKey.of(q), PriorKey.of(p.over(q.numel) if q.learned else p), tuple(METHODS.items()))


def _at_scale(plan: Plan, q: Posterior) -> Plan:
    """The plan for the scales of `q`, where E exp(p v) exists for p scale < limit alone."""
    limit = q.noise.mgf_limit
    if math.isinf(limit):
        return plan
    if not checks.waits(q.device):
        beyond = plan.largest_power * q.scale.detach().max() >= limit
        why = "a scale has left the range in which it is finite"
        checks.refuse(lambda: beyond, lambda: InfiniteKLError(plan.pair, why, "a smaller scale"), f"{plan.pair}: {why}")
        return plan
    largest = plan.largest_power * float(q.scale.detach().max())
    if largest >= limit:
        why = f"E w^{plan.largest_power:g} needs that power times scale < {limit:g}, but the largest is {largest:g}"
        error = InfiniteKLError(plan.pair, why, "a smaller scale")
        return replace(plan, verdict="INF-M", reason=why, refusals=dict.fromkeys(METHODS, error))
    if 2 * largest >= limit:
        why = f"it needs {2 * plan.largest_power:g} * scale < {limit:g}, but the largest is {2 * largest:g}"
        return replace(plan, infinite_variance=why)
    return plan


@functools.lru_cache(maxsize=4096)
def _plan(q: PosteriorKey, p: PriorKey, rows: Rows) -> Plan:
    terms = tuple(plan_term(q, statistic, center) for statistic, center in p.terms)
    refusal = reasons.support_refusal(q, p)
    if refusal is not None:
        return Plan(q, p, "INF-S", refusal.why, terms, {name: refusal for name, _ in rows})
    diverging = next((s for t in terms for s in moments(q, t) if not q.noise.finite(s)), None)
    if diverging is not None:
        refusal = reasons.moment_refusal(q, p, diverging)
        return Plan(q, p, "INF-M", refusal.why, terms, {name: refusal for name, _ in rows})
    wide = next((s for t in terms for s in moments(q, t) if not q.noise.finite(2 * s)), None)
    variance = "" if wide is None else f"it needs E |xi|^{2 * wide:g}{reasons.threshold(q, 2 * wide)}"
    verdict = "N" if any(t.entries is None for t in terms) else reasons.theorem(q, terms)
    powers = [t.statistic.growth for t in terms if t.entries is None and q.form.outer is EXP]
    plan = Plan(q, p, verdict, reasons.reason(q, p, verdict, terms), terms, {}, variance, max([0.0, *powers]))
    refusals = {name: error for name, row in rows if (error := row.refusal(plan, name)) is not None}
    return replace(plan, refusals=refusals)
