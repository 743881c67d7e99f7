"""Why a pair or a method is refused: what was asked, why it cannot be, what to use instead."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mcrepar.distributions.forms import IDENTITY, LOG
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.statistics import General, Statistic
from mcrepar.divergence.terms import PosteriorKey, PriorKey, TermPlan
from mcrepar.errors import (
    InfiniteKLError,
    McreparError,
    MethodError,
    NoFiniteTupleError,
    ParameterError,
    SupportMismatchError,
)


def support_refusal(q: PosteriorKey, p: PriorKey) -> McreparError | None:
    """Rule 1 of math.md H: the posterior's support must lie inside the prior's."""
    pair = f"KL({q.name} || {p.name})"
    positive = q.support.lower >= 0
    if not p.simplex and q.support in p.support:
        return None
    where = "a simplex, which has no volume" if p.simplex else str(p.support)
    if p.kernel and not p.improper and positive:
        instead = f"prior({p.name!r}, improper=True) for its kernel"
    else:
        instead = "a prior on the half-line such as 'gamma'" if positive else "a prior on the line such as 'normal'"
    why = f"the posterior lives on {q.support}, the prior on {where}, so the KL is infinite"
    return SupportMismatchError(pair, why, instead)


def threshold(q: PosteriorKey, power: float) -> str:
    """The value of a fixed shape from which E |xi|^power exists, found by bisection over the row's own noise."""
    for parameter in q.row.fixed:
        if parameter.name != "concentration":
            continue

        def exists(x: float, name: str = parameter.name) -> bool:
            return q.row.noise({name: x}, 1).finite(power)

        low, high = 1e-6, 1e6
        if exists(low) == exists(high):
            continue
        for _ in range(80):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if exists(middle) else (middle, high)
        return f", which needs {parameter.name} > {high:.6g}"
    if any(parameter.optional for parameter in q.row.fixed):
        name = next(parameter.name for parameter in q.row.fixed if parameter.optional)
        return f", which needs a finite {name}"
    return f", which no {q.name} has"


def moment_refusal(q: PosteriorKey, p: PriorKey, power: float) -> InfiniteKLError:
    """Rule 2 of math.md H: every moment that the prior needs must exist."""
    needs = threshold(q, power)
    instead = "a prior without this power"
    if "needs" in needs:
        instead = f"posterior({q.name!r}, ...) with {needs.split('needs ')[1]}, or {instead}"
    why = f"it needs E |xi|^{power:g} of {q.noise.label}{needs}, so the KL is infinite"
    return InfiniteKLError(f"KL({q.name} || {p.name})", why, instead)


def method_refusals(q: PosteriorKey, p: PriorKey, terms: Sequence[TermPlan]) -> dict[str, McreparError]:
    """Why the methods that do not apply do not."""
    pair = f"KL({q.name} || {p.name})"
    family = "location-scale" if q.form.learned_loc else "scale"
    out: dict[str, McreparError] = {}
    unclosed = next((t for t in terms if t.entries is None and not t.closed), None)
    open_term = next((t for t in terms if t.entries is None), None)
    sharp = next((t for t in terms if t.entries is None and not _smooth(t.statistic)), None)
    joint = next((t for t in terms if isinstance(t.statistic, General) and t.statistic.joint), None)
    usable = ["'exact'"] if unclosed is None else []
    usable += ["'quad'"] if joint is None else []
    instead = f"method={' or '.join([*usable, repr('stream')])}"
    if unclosed is not None:
        why = f"no closed form of E {unclosed.text} is known under this posterior"
        out["exact"] = MethodError(f"{pair} by exact", why, instead)
    if open_term is not None:
        why = (
            f"{open_term.text} of the {p.name} prior has no finite parameterization under a "
            f"{family} posterior{'' if q.form.outer is IDENTITY else f' of {q.form.outer.name}(v)'} (Theorem F)"
        )
        for method in ("stats", "repar"):
            out[method] = NoFiniteTupleError(f"{pair} by {method}", why, instead)
    if joint is not None:
        why = f"{joint.text} looks at all weights at once"
        for method in ("quad", "taylor"):
            out[method] = MethodError(f"{pair} by {method}", why, "method='stream'")
    elif p.foreign:
        why = "the derivatives of a foreign log density are not known"
        out["taylor"] = MethodError(f"{pair} by taylor", why, instead)
    elif sharp is not None:
        why = f"{sharp.text} of the {p.name} prior is not smooth"
        out["taylor"] = MethodError(f"{pair} by taylor", why, instead)
    elif q.form.outer is not LOG and not q.noise.finite(1.0):
        why = f"{q.noise.label} has no mean, so that no polynomial of it has one"
        out["taylor"] = MethodError(f"{pair} by taylor", why, instead)
    return out


@contextmanager
def named_extremes(q: Posterior, p: Prior) -> Iterator[None]:
    """Name the pair whose numbers leave float64 on the way: a scale of 1e-200 squared, a power of 1000."""
    try:
        yield
    except ArithmeticError as error:
        why = f"a parameter is too extreme for float64 ({error})"
        raise ParameterError(f"KL({q!r} || {p!r})", why, "milder values") from error


def _smooth(statistic: Statistic) -> bool:
    return statistic.smooth if isinstance(statistic, General) else not statistic.absolute
