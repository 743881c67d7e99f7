"""The estimators of E log p(W), one row each: what it needs of a plan, when `auto` takes it, how it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mcrepar.distributions.forms import LOG
from mcrepar.distributions.statistics import General
from mcrepar.divergence import average, estimates
from mcrepar.divergence.chunks import DEFAULT_BYTES
from mcrepar.divergence.estimates import Estimate, Job
from mcrepar.errors import InfiniteVarianceError, McreparError, MethodError, NoFiniteTupleError
from mcrepar.validation import closest, real_number, whole_number

if TYPE_CHECKING:
    from mcrepar.divergence.plan import Plan
    from mcrepar.divergence.terms import TermPlan

DEFAULT_DRAWS = 100
DEFAULT_DEGREE = 4
ALIASES = {"closed": "exact"}


@dataclass(frozen=True, eq=False)
class Method:
    """How E log p(W) is estimated: a row of `METHODS`, which users may add to."""

    meaning: str  # one clause for people
    run: Callable[[Job], Estimate]  # from a job to what it estimates
    # why it does not apply to a plan, from the plan and the method's own name; None where it does
    refusal: Callable[[Plan, str], McreparError | None] = lambda plan, name: None
    # why `auto` takes it for a request, "" where it does not; the first row that gives a reason is taken
    auto: Callable[[Plan, Estimator], str] = lambda plan, request: ""
    # why a request asks for what this plan has not; None where it does not
    check: Callable[[Plan, Estimator], McreparError | None] = lambda plan, request: None
    # the method that runs in its place, and why, where a request has too few draws for it
    fallback: Callable[[Plan, Estimator], tuple[str, str] | None] = lambda plan, request: None
    samples: bool = True  # whether it draws noise, so that it has a number M of draws and a variance
    replays: bool = True  # whether it takes noise in chunks that can be drawn again, the same for all such methods
    weights: bool = False  # whether it computes weights in the precision of the tensors, which may overflow
    biased: bool = False  # whether the mean of its estimates is another number than what is estimated
    options: tuple[str, ...] = ()  # the options of a request that it alone has
    contracts: bool = False  # whether its KL is a contraction with moments, or with means that are drawn at once


@dataclass(frozen=True)
class Estimator:
    """A request: a method and its options, checked when made.

    Args:
        method: "auto" or one of `METHODS`.
        n_mc_iter: M, the number of Monte Carlo iterations; None takes `DEFAULT_DRAWS` where one is needed.
        entropy: "exact", or "mc" to sample log q as the paper does.
        degree: of the Taylor polynomial.
        center: the point of the Taylor expansion; None takes the prior's centre, or 1 on the half-line.
        force: run a Monte Carlo method although its variance is infinite.
        max_bytes: bound on the memory that a streamed method needs beside its result (a prior over the whole tensor,
            such as radial, needs some draws of the whole tensor besides).

    >>> Estimator("closed").method
    'exact'
    """

    method: str = "auto"
    n_mc_iter: int | None = None
    entropy: str = "exact"
    degree: int | None = None
    center: float | None = None
    force: bool = False
    max_bytes: int = DEFAULT_BYTES

    def __post_init__(self) -> None:
        method = ALIASES.get(str(self.method).lower(), str(self.method).lower())
        object.__setattr__(self, "method", method)
        if method != "auto" and method not in METHODS:
            near = closest(method, ["auto", *METHODS])
            raise MethodError(f"method={self.method!r}", "no method has this name", " or ".join(map(repr, near)))
        for name, least in (("n_mc_iter", 1), ("degree", 1), ("max_bytes", 2**16)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if self.entropy not in ("exact", "mc"):
            raise MethodError(f"entropy={self.entropy!r}", "no such entropy", "'exact' or 'mc'")
        if self.center is not None:
            real_number("center", self.center)
        self._check_options(method)

    @property
    def taylor_degree(self) -> int:
        """The degree of the polynomial, or its default."""
        return self.degree or DEFAULT_DEGREE

    @property
    def draws(self) -> int:
        """M, or its default."""
        return DEFAULT_DRAWS if self.n_mc_iter is None else self.n_mc_iter

    def _check_options(self, method: str) -> None:
        if method != "auto" and not METHODS[method].samples:
            if self.n_mc_iter is not None:
                what, instead = f"n_mc_iter={self.n_mc_iter}", f"method={method!r} alone, or 'stats' with n_mc_iter"
                raise MethodError(f"{what} with method={method!r}", "it draws nothing", instead)
            if self.entropy == "mc":
                instead = "entropy='exact', or method='repar'"
                raise MethodError(f"entropy='mc' with method={method!r}", "it draws nothing", instead)
        for name, row in METHODS.items():
            for option in row.options:
                if getattr(self, option) is not None and method != name:
                    raise MethodError(f"{option} with method={method!r}", f"only {name} has it", f"method={name!r}")


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision a KL is computed in: single for halves, else the tensor's own."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


# ---- what a method needs of a plan


def _first(terms: Iterable[TermPlan]) -> TermPlan | None:
    return next((t for t in terms if t.entries is None), None)


def _joint(plan: Plan) -> TermPlan | None:
    return next((t for t in plan.terms if isinstance(t.statistic, General) and t.statistic.joint), None)


def _instead(plan: Plan) -> str:
    closed = all(t.closed for t in plan.terms if t.entries is None)
    known = [*(["exact"] if closed else []), *([] if _joint(plan) else ["quad"]), "stream"]
    return f"method={' or '.join(map(repr, known))}"


def _needs_closed_forms(plan: Plan, name: str) -> McreparError | None:
    term = _first(t for t in plan.terms if not t.closed)
    if term is None:
        return None
    why = f"no closed form of E {term.text} is known under this posterior"
    return MethodError(f"{plan.pair} by {name}", why, _instead(plan))


def _needs_tuple(plan: Plan, name: str) -> McreparError | None:
    term, form = _first(plan.terms), plan.q.form
    if term is None:
        return None
    family = "location-scale" if form.learned_loc else "scale"
    outer = "" if form.outer.slope is None else f" of {form.outer.name}(v)"
    of = "" if plan.p.expected else f" of the {plan.p.name} prior"
    why = f"{term.text}{of} has no finite parameterization under a {family} posterior{outer} (Theorem F)"
    return NoFiniteTupleError(f"{plan.pair} by {name}", why, _instead(plan))


def _needs_single_weights(plan: Plan, name: str) -> McreparError | None:
    term = _joint(plan)
    if term is None:
        return None
    return MethodError(f"{plan.pair} by {name}", f"{term.text} looks at all weights at once", "method='stream'")


def _needs_polynomials(plan: Plan, name: str) -> McreparError | None:
    joint, noise = _needs_single_weights(plan, name), plan.q.noise
    if joint is not None:
        return joint
    sharp = _first(t for t in plan.terms if not t.statistic.smooth)
    if plan.p.external:
        why = f"the derivatives of an external {'function' if plan.p.expected else 'log density'} are not known"
    elif sharp is not None:
        why = f"{sharp.text}{'' if plan.p.expected else f' of the {plan.p.name} prior'} is not smooth"
    elif plan.q.form.outer is not LOG and not noise.finite(1.0):
        why = f"{noise.label} has no mean, so that no polynomial of it has one"
    else:
        return None
    return MethodError(f"{plan.pair} by {name}", why, _instead(plan))


def variance_error(plan: Plan, method: str, why: str) -> InfiniteVarianceError:
    """The refusal of a Monte Carlo method without variance."""
    others = [f"method={m!r}" for m in plan.methods if not METHODS[m].samples]
    last = ["a posterior with lighter tails"] if plan.p.expected else ["force=True to run it all the same"]
    return InfiniteVarianceError(
        f"{plan.pair} by {method}",
        f"the {plan.p.value} is finite, but its Monte Carlo estimate has infinite variance: {why}",
        " or ".join([*others, *last]),
    )


def unmet_refusal(plan: Plan, condition: str) -> dict[str, McreparError]:
    """The refusal of closed forms whose condition these tensors do not meet, by method."""
    instead = f"method={' or '.join(repr(m) for m in ('quad', 'stream') if m in plan.methods)}"
    return {"exact": MethodError(f"{plan.pair} by exact", f"it is closed only if {condition}", instead)}


def _check_degree(plan: Plan, request: Estimator) -> McreparError | None:
    """A polynomial of degree K needs the moments up to K, and those up to 2K for its variance."""
    degree, noise = request.taylor_degree, plan.q.noise
    if plan.q.form.outer is LOG:
        return None
    if not noise.finite(degree):
        others = " or ".join(repr(m) for m in ("exact", "quad", "stream") if m in plan.methods)
        return MethodError(
            f"{plan.pair} by taylor of degree {degree}",
            f"it needs the moments of {noise.label} up to {degree}, and not all of them exist",
            f"a smaller degree, or method={others}",
        )
    if not noise.finite(2 * degree) and not request.force:
        return variance_error(plan, f"taylor of degree {degree}", f"it needs E |xi|^{2 * degree}")
    return None


def _check_entropy(plan: Plan, request: Estimator) -> McreparError | None:
    if request.entropy == "exact" or plan.q.noise.density_terms is not None:
        return None
    return MethodError(
        f"{plan.pair} by stats with entropy='mc'",
        f"log q of {plan.q.noise.label} is not one of the statistics that stats draws",
        "entropy='exact', or method='repar'",
    )


# ---- when auto takes a method (math.md H): the best without M, one that draws with it or with a sampled entropy


def _drawn(plan: Plan, request: Estimator) -> bool:
    return request.entropy == "mc" or (request.n_mc_iter is not None and not plan.infinite_variance)


def _exact(plan: Plan, request: Estimator) -> str:
    closed = "exact" not in plan.refusals and (plan.met or not plan.conditions)
    return "every expectation is known in closed form" if closed and not _drawn(plan, request) else ""


def _stats(plan: Plan, request: Estimator) -> str:
    combined = request.entropy == "exact" or plan.q.noise.density_terms is not None
    right = _drawn(plan, request) and plan.right and combined and _too_few(plan, request) is None
    return "the means over M draws can be drawn at once" if right else ""


def _repar(plan: Plan, request: Estimator) -> str:
    if not (_drawn(plan, request) and plan.right):
        return ""
    few = _too_few(plan, request)
    return few[1] if few is not None else "log q is not one of the statistics that stats draws"


def _stream(plan: Plan, request: Estimator) -> str:
    if _drawn(plan, request):
        return "there is no tuple of a size independent of M"
    if "quad" in plan.refusals:
        return "no closed form is known, and no quadrature applies"
    return "nothing is known of this function, and a quadrature may miss its features" if plan.p.external else ""


def _too_few(plan: Plan, request: Estimator) -> tuple[str, str] | None:
    taus = tuple(t for t in estimates.drawn_statistics(plan.q, plan.taus, request.entropy) if not t.constant)
    means = plan.q.noise.means_distribution(taus) if plan.right and taus else None
    if means is None or request.draws >= means.from_draws:
        return None
    if means.kind == "drawn":
        return "repar", "the distribution of the means over M draws is not known"
    why = f"{request.draws} draws are too few for the distribution of their means, which is used from"
    return "repar", f"{why} {means.from_draws} on"


METHODS = {
    "exact": Method(
        "moments of the noise, M -> infinity",
        estimates.exact, _needs_closed_forms, _exact, samples=False, replays=False, contracts=True),
    "stats": Method(
        "one draw from the distribution of the means over M draws",
        estimates.stats, _needs_tuple, _stats, _check_entropy, _too_few, replays=False, contracts=True),
    "repar": Method("means over M draws of the noise, without a graph", estimates.repar, _needs_tuple, _repar),
    "stream": Method(
        "M draws of the weights, the gradient accumulated in the forward",
        estimates.averaged(average.stream), auto=_stream, weights=True),
    "regen": Method(
        "M draws of the weights, drawn again in the backward", estimates.averaged(average.regen), weights=True),
    "quad": Method(
        "an adaptive quadrature over the noise", estimates.quad, _needs_single_weights,
        lambda plan, request: "not every expectation has a closed form, and a quadrature has no variance",
        samples=False, replays=False),
    "taylor": Method(
        "repar on Taylor polynomials of the statistics, biased",
        estimates.taylor, _needs_polynomials, check=_check_degree, biased=True, options=("degree", "center")),
    "direct": Method(
        "M draws of the weights, all in the graph", estimates.averaged(average.direct, hidden=False), weights=True),
}  # fmt: skip
