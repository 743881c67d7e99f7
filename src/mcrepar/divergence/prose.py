"""A plan as prose, for people."""

from __future__ import annotations

from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.methods import DEFAULT_DRAWS, SAMPLED, Estimator
from mcrepar.divergence.plan import Plan
from mcrepar.divergence.verdicts import VERDICTS


def describe(plan: Plan) -> str:
    """What `print(plan)` shows."""
    lines = [
        f"{plan.pair}: {plan.verdict} ({VERDICTS[plan.verdict].meaning})",
        f"Why: {plan.reason}.",
        f"Posterior: W = {_weight(plan)}, xi ~ {plan.q.noise.label}, on {plan.q.support}.",
        *_prior(plan),
    ]
    if not plan.finite:
        error = plan.refusals["exact"]
        return "\n".join([*lines, f"Instead: use {error.instead}."])
    lines += _tuple(plan)
    lines += _methods(plan)
    return "\n".join(lines)


def _weight(plan: Plan) -> str:
    inside = "loc + scale * xi" if plan.q.form.learned_loc else "scale * xi"
    if plan.q.loc:
        inside = f"{plan.q.loc:g} + {inside}"
    outer = plan.q.form.outer.name
    return inside if outer == "identity" else f"{outer}({inside})"


def _prior(plan: Plan) -> list[str]:
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
        return ["Tuple: none of a size independent of M; stream keeps one tensor per learned parameter."]
    width = max((len(n) for n, _ in plan.statistics), default=0)
    rows = [f"  {n:<{width}}   {t}" for n, t in plan.statistics]
    sizes = f"d_P = {plan.d_P} ({plan.d_P_total} with the entropy, {plan.d_P_merged} merged)"
    return [f"Tuple, n(theta) and t(xi), {sizes}:", *rows]


def _methods(plan: Plan) -> list[str]:
    lines = [f"Methods: {', '.join(plan.methods)}. Default: {plan.method}"]
    if plan.method in SAMPLED:
        lines[0] += f", from {DEFAULT_DRAWS} draws"
    if plan.method is not None:
        lines[0] += f"; with n_mc_iter=1000: {plan.choose(Estimator(n_mc_iter=1000))}."
    else:
        lines[0] += ", all of them only with force=True."
    if plan.infinite_variance:
        lines.append(f"Monte Carlo has infinite variance here: {plan.infinite_variance}.")
    if plan.largest_power:
        limit = plan.q.noise.mgf_limit
        if limit < float("inf"):
            lines.append(f"The KL is finite while {plan.largest_power:g} * scale < {limit:g}, checked at every call.")
    conditions = [t.condition for t in plan.terms if t.condition and t.entries is None]
    if conditions and "exact" in plan.methods:
        lines.append(f"exact holds only if {conditions[0]}.")
    reasons: dict[str, list[str]] = {}
    for method, error in plan.refusals.items():
        reasons.setdefault(error.why, []).append(method)
    return lines + [f"Not {' or '.join(methods)}: {why}." for why, methods in reasons.items()]
