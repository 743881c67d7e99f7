"""The verdicts on a pair, as math.md C names them."""

from __future__ import annotations

from dataclasses import dataclass

from mcrepar.distributions.forms import EXP, LOG
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.terms import PosteriorKey, PriorKey, TermPlan


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
        closed = next((t for t in terms if t.entries is None and not t.closed), None) is None
        end = "its expectation is known in closed form" if closed else "its expectation has no closed form"
        if closed and term.condition:
            end += f" when {term.condition}"
        return f"{term.text} has no tuple of a size independent of M (Theorem F); {end}"
    law = q.noise.law(tuple(dict.fromkeys(e.tau for t in terms for e in t.entries or () if not e.tau.constant)))
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
    if law.kind == "drawn":
        return f"{words}; for stats {law.note}"
    below = f", from M = {law.from_draws} on (below, the noise is drawn and averaged)" if law.from_draws > 1 else ""
    kind = "the exact law" if law.kind == "exact" else "a law with the exact mean and covariance"
    return f"{words}; stats draws from {kind} of the means, {law.note}{below}"
