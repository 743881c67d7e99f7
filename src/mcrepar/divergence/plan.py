"""What a pair of families allows: the tuple (n, t), its size, the verdict, the methods, every refusal.

A plan looks at families, never at tensor values, and is cached. Four questions decide everything:
is the posterior's support inside the prior's? does every moment that the KL needs exist? has every statistic
of the prior a finite tuple (Theorem F)? if not, is its expectation known in closed form?
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mcrepar.distributions.forms import EXP, LOG, Entry, Form, expand
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import prior
from mcrepar.distributions.sample_means import Law
from mcrepar.distributions.statistics import Monomial
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence.methods import DEFAULT_DEGREE, DEFAULT_DRAWS, METHODS, SAMPLED, Estimator
from mcrepar.divergence.refusals import method_refusals, moment_refusal, named_extremes, support_refusal, threshold
from mcrepar.divergence.terms import PosteriorKey, PriorKey, TermPlan, moments, plan_term, unmet_condition
from mcrepar.divergence.verdicts import VERDICTS, reason, theorem
from mcrepar.errors import InfiniteKLError, InfiniteVarianceError, McreparError, MethodError, ParameterError


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
    """

    q: PosteriorKey
    p: PriorKey
    verdict: str
    reason: str
    terms: tuple[TermPlan, ...] = ()
    refusals: Mapping[str, McreparError] = field(default_factory=dict)
    infinite_variance: str = ""
    largest_power: float = 0.0
    met: bool = False

    @property
    def pair(self) -> str:
        """The pair as errors name it."""
        return f"KL({self.q.name} || {self.p.name})"

    @property
    def has_tuple(self) -> bool:
        """Whether every statistic has a tuple of a size independent of M, whether the KL is finite or not."""
        return all(t.entries is not None for t in self.terms)

    @property
    def right(self) -> bool:
        """Whether every statistic has such a tuple, and the KL is finite."""
        return VERDICTS[self.verdict].right

    @property
    def finite(self) -> bool:
        """Whether the KL is finite."""
        return not self.verdict.startswith("INF")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that apply."""
        return tuple(m for m in METHODS if self.finite and m not in self.refusals)

    @property
    def method(self) -> str | None:
        """What `auto` takes without M; None where the KL is infinite or only a forced method is left."""
        try:
            return self.choose(Estimator())
        except McreparError:
            return None

    @property
    def taus(self) -> tuple[Monomial, ...]:
        """The distinct statistics of the noise, without the constant."""
        entries = (e for t in self.terms for e in t.entries or ())
        return tuple(dict.fromkeys(e.tau for e in entries if not e.tau.constant))

    @property
    def law(self) -> Law | None:
        """Where `stats` draws its statistics from."""
        return self.q.noise.law(self.taus) if self.right and self.taus else None

    @property
    def statistics(self) -> tuple[tuple[str, str], ...]:
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

    def choose(self, estimator: Estimator) -> str:
        """The method for `estimator`, or the error that says why there is none."""
        if not self.finite:
            raise self.refusals["exact"]
        wanted, draws = estimator.method, estimator.n_mc_iter
        if wanted == "auto":
            wanted = self._auto(draws) if estimator.entropy == "exact" else self._auto_sampled(draws or DEFAULT_DRAWS)
        if wanted in self.refusals:
            raise self.refusals[wanted]
        if wanted in SAMPLED and self.infinite_variance and not estimator.force:
            raise self.variance_error(wanted, self.infinite_variance)
        if wanted == "taylor":
            self._check_taylor(estimator)
        law = self.law if wanted == "stats" else None
        if law is not None and estimator.draws < law.from_draws:
            return "repar"  # too few draws for a law of their means
        if wanted == "stats" and estimator.entropy == "mc" and self.q.noise.density_terms is None:
            raise MethodError(
                f"{self.pair} by stats with entropy='mc'",
                f"log q of {self.q.noise.label} is not one of the statistics that stats draws",
                "entropy='exact', or method='repar'",
            )
        return wanted

    @property
    def conditions(self) -> tuple[str, ...]:
        """When the closed forms of statistics without a tuple hold, of those that do not always."""
        return tuple(t.condition for t in self.terms if t.entries is None and t.condition)

    def at(self, q: Posterior, p: Prior) -> Plan:
        """The plan for these very tensors, of which some closed forms and moments depend on the values."""
        plan = _at_scale(self, q) if self.largest_power else self
        if not plan.conditions or "exact" in plan.refusals:
            return plan
        unmet = unmet_condition(plan.terms, q, p)
        if unmet is None:
            return replace(plan, met=True)
        instead = f"method={' or '.join(repr(m) for m in ('quad', 'stream') if m in plan.methods)}"
        error = MethodError(f"{plan.pair} by exact", f"it is closed only if {unmet}", instead)
        return replace(plan, refusals={**plan.refusals, "exact": error})

    def variance_error(self, method: str, why: str) -> InfiniteVarianceError:
        """The refusal of a Monte Carlo method without variance."""
        others = [f"method={m!r} or " for m in ("exact", "quad") if m in self.methods]
        return InfiniteVarianceError(
            f"{self.pair} by {method}",
            f"the KL is finite, but its Monte Carlo estimate has infinite variance: {why}",
            f"{''.join(others)}force=True to run it all the same",
        )

    def _auto(self, draws: int | None) -> str:
        """Rules of math.md H: the best method without M, one of stats, repar and stream with it."""
        exact = "exact" not in self.refusals and (self.met or not self.conditions)
        if self.infinite_variance or draws is None:
            if exact:
                return "exact"
            return "quad" if "quad" not in self.refusals and not self.p.foreign else "stream"
        return self._auto_sampled(draws, stats=True)

    def _auto_sampled(self, draws: int, stats: bool | None = None) -> str:
        """A method that draws: stats where it can (log q must be among its statistics to be sampled too)."""
        if not self.right:
            return "stream"
        stats = self.q.noise.density_terms is not None if stats is None else stats
        law = self.law
        return "stats" if stats and (law is None or draws >= law.from_draws) else "repar"

    def _check_taylor(self, estimator: Estimator) -> None:
        """A polynomial of degree K needs the moments up to K, and those up to 2K for its variance."""
        degree = estimator.degree or DEFAULT_DEGREE
        if self.q.form.outer is LOG:
            return
        if not self.q.noise.finite(degree):
            others = [repr(m) for m in ("exact", "quad", "stream") if m in self.methods]
            raise MethodError(
                f"{self.pair} by taylor of degree {degree}",
                f"it needs the moments of {self.q.noise.label} up to {degree}, and not all of them exist",
                f"a smaller degree, or method={' or '.join(others)}",
            )
        if not self.q.noise.finite(2 * degree) and not estimator.force:
            raise self.variance_error(f"taylor of degree {degree}", f"it needs E |xi|^{2 * degree}")

    def _keys(self) -> set[tuple[float, ...]]:
        entries = (e for t in self.terms for e in t.entries or ())
        return {key for e in entries if (key := _key(e, self.q.form)) is not None}

    def __str__(self) -> str:
        from mcrepar.divergence.prose import describe

        return describe(self)


def inner(form: Form) -> Form:
    """The form of the variable in which a Taylor polynomial is taken: log w for w = exp(v), else w."""
    return Form(form.learned_loc) if form.outer is EXP else form


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


def explain(q: str | Posterior, p: object) -> Plan:
    """The plan of a pair: verdict, methods, tuple, d_P, reason.

    Args:
        q: a name of `POSTERIORS` or a posterior.
        p: a name of `PRIORS`, a prior, or any torch.distributions object.

    >>> plan = explain("gamma", "inverse_gaussian")
    >>> plan.verdict, plan.method, plan.d_P, plan.d_P_total
    ('T1', 'exact', 3, 3)
    """
    if not isinstance(q, str | Posterior):
        raise ParameterError(
            f"explain({type(q).__name__}, ...)", "it is no posterior", "a name or posterior(name, ...)"
        )
    q = posterior(q) if isinstance(q, str) else q
    p = prior(p) if isinstance(p, str) else as_prior(p)
    plan = plan_pair(q, p)
    return plan if p.words or p.relative or not q.learned else plan.at(q, p)


def plan_pair(q: Posterior, p: Prior) -> Plan:
    """The cached plan of two objects."""
    with named_extremes(q, p):
        return _plan(PosteriorKey.of(q), PriorKey.of(p.over(q.numel) if q.learned else p))


def _at_scale(plan: Plan, q: Posterior) -> Plan:
    """The plan for the scales of `q`, where E exp(p v) exists for p scale < limit alone."""
    largest = plan.largest_power * float(q.scale.detach().max())
    limit = q.noise.mgf_limit
    if largest >= limit:
        why = f"E w^{plan.largest_power:g} needs that power times scale < {limit:g}, but the largest is {largest:g}"
        error = InfiniteKLError(plan.pair, why, "a smaller scale")
        return replace(plan, verdict="INF-M", reason=why, refusals=dict.fromkeys(METHODS, error))
    if 2 * largest >= limit:
        why = f"it needs {2 * plan.largest_power:g} * scale < {limit:g}, but the largest is {2 * largest:g}"
        return replace(plan, infinite_variance=why)
    return plan


@functools.lru_cache(maxsize=4096)
def _plan(q: PosteriorKey, p: PriorKey) -> Plan:
    terms = tuple(plan_term(q, statistic, center) for statistic, center in p.terms)
    refusal = support_refusal(q, p)
    if refusal is not None:
        return Plan(q, p, "INF-S", refusal.why, terms, dict.fromkeys(METHODS, refusal))
    diverging = next((s for t in terms for s in moments(q, t) if not q.noise.finite(s)), None)
    if diverging is not None:
        refusal = moment_refusal(q, p, diverging)
        return Plan(q, p, "INF-M", refusal.why, terms, dict.fromkeys(METHODS, refusal))
    wide = next((s for t in terms for s in moments(q, t) if not q.noise.finite(2 * s)), None)
    variance = "" if wide is None else f"it needs E |xi|^{2 * wide:g}{threshold(q, 2 * wide)}"
    verdict = "N" if any(t.entries is None for t in terms) else theorem(q, terms)
    powers = [t.statistic.growth for t in terms if t.entries is None and q.form.outer is EXP]
    return Plan(
        q,
        p,
        verdict,
        reason(q, p, verdict, terms),
        terms,
        method_refusals(q, p, terms),
        variance,
        max([0.0, *powers]),
    )
