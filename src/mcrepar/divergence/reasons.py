"""Why: the verdict on a pair (math.md C), the refusals that concern all methods, and a plan in prose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mcrepar import checks
from mcrepar.distributions.forms import EXP, LOG
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.methods import DEFAULT_DRAWS, METHODS, Estimator, wide_dtype
from mcrepar.divergence.terms import PosteriorKey, PriorKey, TermPlan, pair_of
from mcrepar.errors import InfiniteKLError, InfiniteVarianceError, McreparError, ParameterError, SupportMismatchError

if TYPE_CHECKING:
    from mcrepar.divergence.plan import Plan


@dataclass(frozen=True)
class Verdict:
    """What a code means, whether a claim of a finite tuple is right there, and its colour on a terminal."""

    meaning: str
    right: bool
    colour: str


VERDICTS = {
    "T1": Verdict("right by Theorem 1", True, "green"),
    "T2": Verdict("right by Theorem 2", True, "green"),
    "C1": Verdict("right by Corollary 1", True, "green"),
    "C2": Verdict("right by Corollary 2", True, "green"),
    "X": Verdict("right, by a closed form that the paper lacks", True, "cyan"),
    "N": Verdict("no finite tuple", False, "yellow"),
    "INF-S": Verdict("infinite KL by its supports", False, "red"),
    "INF-M": Verdict("infinite KL by a divergent moment", False, "red"),
}


def theorem(q: PosteriorKey, terms: tuple[TermPlan, ...]) -> str:
    """Which theorem of the paper gives the tuple, X where it needs a formula that the paper lacks."""
    if q.form.outer is EXP:
        return "C2" if q.form.learned_loc else "C1"
    logs = any(e.log_power + e.tau.log > 1 for t in terms for e in t.entries or ())
    if q.form.outer is LOG or logs:
        return "X"
    signed = not q.noise.positive
    same_center = all(len(t.entries or ()) == 1 for t in terms)
    return "T2" if q.form.learned_loc or (signed and not same_center) else "T1"


def reason(q: PosteriorKey, p: PriorKey, verdict: str, terms: tuple[TermPlan, ...]) -> str:
    """One sentence on the verdict."""
    if verdict == "N":
        term = next(t for t in terms if t.entries is None)
        closed = all(t.closed for t in terms if t.entries is None)
        end = "its expectation is known in closed form" if closed else "its expectation has no closed form"
        if closed and term.condition:
            end += f" when {term.condition}"
        return f"{term.text} has no tuple of a size independent of M (Theorem F); {end}"
    words = {
        "T1": "every statistic is a power or a logarithm of a scaled noise (Theorem 1)",
        "T2": "every statistic is a polynomial of a location-scale weight (Theorem 2)",
        "C1": "every statistic is a power of the scaled noise inside the outer map (Corollary 1)",
        "C2": "every statistic is a polynomial of the location-scale variable inside the outer map (Corollary 2)",
        "X": "every statistic is a power of log(scale xi), a tuple that the paper's list lacks (Theorem F)",
    }[verdict]
    if any(isinstance(t.statistic, Monomial) and t.statistic.features and not q.noise.positive for t in terms):
        words += "; it needs the same location of posterior and prior, else no tuple exists"
    if p.improper:
        words += "; the prior is a kernel, so the value is defined up to a constant"
    if p.penalised:
        words += "; the prior has a mean of its own, integrated out, which adds a penalty on the posterior's variance"
    taus = tuple(dict.fromkeys(e.tau for t in terms for e in t.entries or () if not e.tau.constant))
    means = q.noise.means_distribution(taus)
    if means.kind == "drawn":
        return f"{words}; for stats {means.note}"
    first = means.from_draws
    below = f", from M = {first} on (below, the noise is drawn and averaged)" if first > 1 else ""
    kind = "the exact distribution" if means.kind == "exact" else "a distribution with the exact mean and covariance"
    return f"{words}; stats draws from {kind} of the means, {means.note}{below}"


def support_refusal(q: PosteriorKey, p: PriorKey) -> McreparError | None:
    """Rule 1 of math.md H: the posterior's support must lie inside the prior's."""
    positive = q.support.lower >= 0
    if not p.simplex and q.support in p.support:
        return None
    if p.expected:
        why = f"the posterior lives on {q.support}, and {p.name} is defined on {p.support} alone"
        return SupportMismatchError(pair_of(q, p), why, "a posterior of positive weights such as 'gamma'")
    where = "a simplex, which has no volume" if p.simplex else str(p.support)
    if p.kernel and not p.improper and positive:
        instead = f"prior({p.name!r}, improper=True) for its kernel"
    else:
        instead = "a prior on the half-line such as 'gamma'" if positive else "a prior on the line such as 'normal'"
    why = f"the posterior lives on {q.support}, the prior on {where}, so the KL is infinite"
    return SupportMismatchError(pair_of(q, p), why, instead)


def threshold(q: PosteriorKey, power: float) -> str:
    """The value of a fixed shape from which E |xi|^power exists, found by bisection over the row's own noise."""
    optional = next((parameter.name for parameter in q.row.fixed if parameter.optional), None)
    if optional is not None:
        return f", which needs a finite {optional}"
    defaults = {parameter.name: parameter.default for parameter in q.row.fixed}
    for name in defaults:

        def exists(x: float, name: str = name) -> bool:
            return q.row.noise({**defaults, name: x}, 1).finite(power)

        low, high = 1e-6, 1e6
        if exists(low) == exists(high):
            continue
        for _ in range(80):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if exists(middle) else (middle, high)
        return f", which needs {name} > {high:.6g}"
    return f", which no {q.name} has"


def moment_refusal(q: PosteriorKey, p: PriorKey, power: float) -> InfiniteKLError:
    """Rule 2 of math.md H: every moment that the prior needs must exist."""
    needs = threshold(q, power)
    instead = "a statistic without this power" if p.expected else "a prior without this power"
    if "needs" in needs:
        instead = f"posterior({q.name!r}, ...) with {needs.split('needs ')[1]}, or {instead}"
    why = f"it needs E |xi|^{power:g} of {q.noise.label}{needs}, so the {p.value} is infinite"
    return InfiniteKLError(pair_of(q, p), why, instead)


def range_refusal(plan: Plan, q: Posterior) -> McreparError | None:
    """Draws of w = exp(v) must neither vanish nor overflow in this precision, else log w, 1 / w or w are not finite."""
    if q.form.outer is not EXP or q.noise.positive or not checks.waits(q.device):
        return None  # the KL, which is checked, is not finite where draws are not
    dtype = wide_dtype(q.dtype)
    lowest, highest = float((q.loc - 6 * q.scale).detach().min()), float((q.loc + 6 * q.scale).detach().max())
    least, most = math.log(torch.finfo(dtype).tiny), math.log(torch.finfo(dtype).max)
    if math.isfinite(lowest + highest) and (lowest < least or highest > most):
        others = [f" or method={m!r}" for m in plan.methods if not METHODS[m].samples]
        return ParameterError(
            f"{plan.pair} by drawing exp(v)",
            f"v lies in [{lowest:.3g}, {highest:.3g}], and {dtype} holds exp(v) for v in [{least:.3g}, {most:.3g}]",
            f"float64 tensors{''.join(others)}",
        )
    return None


# ---- a plan in prose


def describe(plan: Plan) -> str:
    """What `print(plan)` shows."""
    inside = "loc + scale * xi" if plan.q.form.learned_loc else "scale * xi"
    inside = f"{plan.q.loc:g} + {inside}" if plan.q.loc else inside
    outer = plan.q.form.outer.name
    weight = inside if outer == "identity" else f"{outer}({inside})"
    lines = [
        f"{plan.pair}: {plan.verdict} ({VERDICTS[plan.verdict].meaning})",
        f"Why: {plan.reason}.",
        f"Posterior: W = {weight}, xi ~ {plan.q.noise.label}, on {plan.q.support}.",
        *_prior(plan),
    ]
    if not plan.finite:
        return "\n".join([*lines, f"Instead: use {next(iter(plan.refusals.values())).instead}."])
    return "\n".join([*lines, *_tuple(plan), *_methods(plan)])


def _prior(plan: Plan) -> list[str]:
    if plan.p.expected:
        return []
    centred = any(center != 0 for _, center in plan.p.terms)
    names = [statistic.text("(w - c)" if centred else "w") for statistic, _ in plan.p.terms]
    lines = [f"Prior: log p(w) = {' + '.join(['constant', *(f'c{k + 1} {n}' for k, n in enumerate(names))])}."]
    if names and all(isinstance(statistic, Monomial) for statistic, _ in plan.p.terms):
        eta = ", ".join(f"c{k + 1}" for k in range(len(names)))
        known = ", the centre c being known" if centred else ""
        lines.append(f"Exponential family{known}: h(w) = 1, eta = ({eta}), T(w) = ({', '.join(names)}), A = -constant.")
    return lines


def _tuple(plan: Plan) -> list[str]:
    if not plan.right:
        return ["Tuple: none of a size independent of M; stream saves one tensor per learned parameter."]
    width = max((len(n) for n, _ in plan.statistics), default=0)
    rows = [f"  {n:<{width}}   {t}" for n, t in plan.statistics]
    sizes = f"d_P = {plan.d_P} ({plan.d_P_total} with the entropy, {plan.d_P_merged} merged)"
    return [f"Tuple, n(theta) and t(xi), {sizes}:", *rows]


def _methods(plan: Plan) -> list[str]:
    chosen, drawn = plan.outcome(Estimator()), plan.outcome(Estimator(n_mc_iter=1000))
    lines = [f"Methods: {', '.join(plan.methods)}. Default: {plan.method}"]
    if isinstance(chosen, InfiniteVarianceError):
        forced = "all of them only with force=True" if not plan.p.expected else "because Monte Carlo has no variance"
        lines[0] += f", {forced}."
    elif isinstance(chosen, McreparError):
        lines[0] += f", because {chosen.why}."
    else:
        draws = f", from {DEFAULT_DRAWS} draws" if METHODS[chosen.method].samples else ""
        method, why = ("none", drawn.why) if isinstance(drawn, McreparError) else (drawn.method, drawn.reason)
        lines[0] += f"{draws}, because {chosen.reason}; with n_mc_iter=1000: {method}, because {why}."
    if plan.infinite_variance:
        lines.append(f"Monte Carlo has infinite variance here: {plan.infinite_variance}.")
    limit = plan.q.noise.mgf_limit
    if plan.largest_power and limit < math.inf:
        lines.append(
            f"The {plan.p.value} is finite while {plan.largest_power:g} * scale < {limit:g}, checked at every call."
        )
    if plan.conditions and "exact" in plan.methods:
        lines.append(f"exact holds only if {plan.conditions[0]}.")
    reasons: dict[str, list[str]] = {}
    for method, error in plan.refusals.items():
        reasons.setdefault(error.why, []).append(method)
    return lines + [f"Not {' or '.join(methods)}: {why}." for why, methods in reasons.items()]
