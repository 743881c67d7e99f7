"""What a pair of families allows: the tuple (n, t), its size, the verdict, the methods, every refusal.

A plan looks at families, never at tensor values, and is cached. Four questions decide everything:
is the posterior's support inside the prior's? does every moment that the KL needs exist? has every statistic
of the prior a finite tuple (Theorem F)? if not, is its expectation known in closed form?
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from mcrepar.errors import InfiniteKLError, InfiniteVarianceError, McreparError, MethodError, ParameterError
from mcrepar.families.foreign import as_prior
from mcrepar.families.forms import EXP, LOG, Entry, Form, expand
from mcrepar.families.noises import Law
from mcrepar.families.posterior import Posterior
from mcrepar.families.posteriors import posterior
from mcrepar.families.prior import Prior
from mcrepar.families.priors import prior
from mcrepar.families.statistics import Monomial
from mcrepar.kl.estimator import DEFAULT_DEGREE, DEFAULT_DRAWS, METHODS, SAMPLED, Estimator
from mcrepar.kl.refusals import method_refusals, moment_refusal, support_refusal, threshold
from mcrepar.kl.terms import PosteriorKey, PriorKey, TermPlan, moments, plan_term
from mcrepar.kl.verdicts import VERDICTS


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
    """

    q: PosteriorKey
    p: PriorKey
    verdict: str
    reason: str
    terms: tuple[TermPlan, ...] = ()
    refusals: Mapping[str, McreparError] = field(default_factory=dict)
    infinite_variance: str = ""
    largest_power: float = 0.0

    @property
    def pair(self) -> str:
        """The pair as errors name it."""
        return f"KL({self.q.name} || {self.p.name})"

    @property
    def right(self) -> bool:
        """Whether every statistic has a finite tuple."""
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
        """What `auto` takes without M; None where the KL is infinite or only a forced method is left.

        A call may still go from quad to stream, where the tensors are wide against the prior, or to a closed form
        whose condition they meet (`checks.settle`).
        """
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
        parts = (expand(Monomial(float(k)), form, self.q.loc, None, False) or () for k in range(1, degree + 1))
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
        if wanted == "stats" and estimator.entropy == "mc" and self.q.noise.density_terms is None:
            raise MethodError(
                f"{self.pair} by stats with entropy='mc'",
                f"log q of {self.q.noise.label} is not one of the statistics that stats draws",
                "entropy='exact', or method='repar'",
            )
        return wanted

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
        exact = "exact" not in self.refusals and not any(t.condition for t in self.terms)
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
            raise InfiniteKLError(
                f"{self.pair} by taylor of degree {degree}",
                f"it needs the moments of {self.q.noise.label} up to {degree}, and not all of them exist",
                "a smaller degree, or method='exact' or 'stream'",
            )
        if not self.q.noise.finite(2 * degree) and not estimator.force:
            raise self.variance_error(f"taylor of degree {degree}", f"it needs E |xi|^{2 * degree}")

    def _keys(self) -> set[tuple[float, ...]]:
        entries = (e for t in self.terms for e in t.entries or ())
        return {key for e in entries if (key := _key(e, self.q.form)) is not None}

    def __str__(self) -> str:
        from mcrepar.kl.prose import describe

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
    return plan_pair(q, p)


def plan_pair(q: Posterior, p: Prior) -> Plan:
    """The cached plan of two objects."""
    return _plan(PosteriorKey.of(q), PriorKey.of(p))


@functools.lru_cache(maxsize=4096)
def _plan(q: PosteriorKey, p: PriorKey) -> Plan:
    refusal = support_refusal(q, p)
    if refusal is not None:
        return Plan(q, p, "INF-S", refusal.why, refusals=dict.fromkeys(METHODS, refusal))
    terms = tuple(plan_term(q, statistic, center) for statistic, center in p.terms)
    diverging = next((s for t in terms for s in moments(q, t) if not q.noise.finite(s)), None)
    if diverging is not None:
        refusal = moment_refusal(q, p, diverging)
        return Plan(q, p, "INF-M", refusal.why, terms, dict.fromkeys(METHODS, refusal))
    wide = next((s for t in terms for s in moments(q, t) if not q.noise.finite(2 * s)), None)
    variance = "" if wide is None else f"it needs E |xi|^{2 * wide:g}{threshold(q, 2 * wide)}"
    verdict = "N" if any(t.entries is None for t in terms) else _right(q, terms)
    powers = [t.statistic.growth for t in terms if t.entries is None and q.form.outer is EXP]
    return Plan(
        q,
        p,
        verdict,
        _reason(q, p, verdict, terms),
        terms,
        method_refusals(q, p, terms),
        variance,
        max([0.0, *powers]),
    )


def _right(q: PosteriorKey, terms: tuple[TermPlan, ...]) -> str:
    """Which theorem of the paper gives the tuple, X where it needs a formula that the paper lacks."""
    if q.form.outer is EXP:
        return "C2" if q.form.learned_loc else "C1"
    logs = any(e.log_power + e.tau.log > 1 for t in terms for e in t.entries or ())
    if q.form.outer is LOG or logs:
        return "X"
    signed = not q.noise.positive
    same_center = all(isinstance(t.statistic, Monomial) and t.statistic.absolute and len(t.entries or ()) == 1
                      for t in terms)  # fmt: skip
    return "T2" if q.form.learned_loc or (signed and not same_center) else "T1"


def _reason(q: PosteriorKey, p: PriorKey, verdict: str, terms: tuple[TermPlan, ...]) -> str:
    """One sentence on the verdict."""
    if verdict == "N":
        term = next(t for t in terms if t.entries is None)
        closed = next((t for t in terms if t.entries is None and not t.closed), None) is None
        end = "its expectation is known in closed form" if closed else "its expectation has no closed form"
        if closed and term.condition:
            end += f" when {term.condition}"
        return f"{term.text} has no tuple of a size independent of M (Theorem F); {end}"
    law = q.noise.law(tuple(dict.fromkeys(e.tau for t in terms for e in t.entries or () if not e.tau.constant)))
    theorem = {
        "T1": "every statistic is a power or a logarithm of a scaled noise (Theorem 1)",
        "T2": "every statistic is a polynomial of a location-scale weight (Theorem 2)",
        "C1": "every statistic is a power of the scaled noise inside the outer map (Corollary 1)",
        "C2": "every statistic is a polynomial of the location-scale variable inside the outer map (Corollary 2)",
        "X": "every statistic is a power of log(scale xi), a tuple that the paper's list lacks (Theorem F)",
    }[verdict]
    if p.improper:
        theorem += "; the prior is a kernel, so the value is defined up to a constant"
    if p.penalised:
        theorem += "; the prior has a mean of its own, integrated out, which adds a penalty on the posterior's variance"
    if law.kind == "drawn":
        return f"{theorem}; for stats {law.note}"
    below = f", from M = {law.from_draws} on (below, the noise is drawn and averaged)" if law.from_draws > 1 else ""
    kind = "the exact law" if law.kind == "exact" else "a law with the exact mean and covariance"
    return f"{theorem}; stats draws from {kind} of the means, {law.note}{below}"
