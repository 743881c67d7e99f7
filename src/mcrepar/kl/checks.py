"""What can only be said of tensors: shapes, ranges, conditions on learned values, results that overflow."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from mcrepar.errors import (
    InfiniteKLError,
    InfiniteVarianceWarning,
    McreparError,
    MethodError,
    ParameterError,
)
from mcrepar.families.forms import EXP
from mcrepar.families.parameters import POSITIVE, REAL, Parameter, check_value
from mcrepar.families.posterior import Posterior
from mcrepar.families.prior import Prior, Term
from mcrepar.families.statistics import General
from mcrepar.kl.estimator import SAMPLED, Estimator
from mcrepar.kl.plan import Plan

CLOSE = 1e-6  # relative; closed forms that hold at equal scales are right to first order around them
SMOOTH_RATIO = 1.0  # deviation of a weight over the length of a statistic, up to which auto trusts a quadrature


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision a KL is computed in: single for halves, else the tensor's own."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def check_objects(q: object, p: Prior, generator: torch.Generator | None) -> None:
    """Refuse templates and tensors that do not fit together."""
    if not isinstance(q, Posterior):
        raise ParameterError(f"a posterior of type {type(q).__name__}", "it has no noise", "posterior(name, ...)")
    shape, pair = q.shape, f"KL({q.name} || {p.name})"
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ParameterError(
            f"{pair} with a generator of type {type(generator).__name__}", "it draws nothing", "a torch.Generator"
        )
    for name, word in p.words.items():
        raise ParameterError(
            pair, f"the prior's {name} is {word!r}, which only a network fills in", "a tensor, or bayesian(net, ...)"
        )
    if p.relative:
        raise ParameterError(
            pair,
            f"the prior's lengths are relative to {p.relative!r}, which only a network fills in",
            "absolute numbers, or bayesian(net, ...)",
        )
    if p.row is None:
        if p.shape and tuple(p.shape) != tuple(shape):
            raise ParameterError(
                pair,
                f"the prior has shape {tuple(p.shape)}, the weights {tuple(shape)}",
                "one shape for both",
            )
        return
    for parameter in p.row.parameters:
        value = p.values[parameter.name]
        if isinstance(value, Tensor):
            _check_tensor(f"{pair} with the prior's {parameter.name}", value, q)
            check_value(f"{pair}, prior", parameter, value)


def _check_tensor(what: str, value: Tensor, q: Posterior) -> None:
    try:
        fits = torch.Size(torch.broadcast_shapes(value.shape, q.shape)) == q.shape  # type: ignore[no-untyped-call]
    except RuntimeError:
        fits = False
    if not fits:
        raise ParameterError(
            what,
            f"its shape {tuple(value.shape)} does not broadcast to the weights' {tuple(q.shape)}",
            "a number or that shape",
        )
    if value.dim() and value.device != q.device:
        raise ParameterError(what, f"it is on {value.device}, the weights on {q.device}", "one device for both")
    if value.dim() and wide_dtype(value.dtype) != wide_dtype(q.dtype):
        raise ParameterError(what, f"it is {value.dtype}, the weights {q.dtype}", "one dtype for both")


def settle(plan: Plan, q: Posterior, p: Prior, estimator: Estimator) -> str:
    """The method, after the conditions on learned values."""
    method = plan.choose(estimator)
    auto = estimator.method == "auto"
    infinite = plan.infinite_variance
    if plan.largest_power:
        largest = plan.largest_power * float(q.scale.detach().max())
        limit = q.noise.mgf_limit
        if largest >= limit:
            raise InfiniteKLError(
                plan.pair,
                f"E w^{plan.largest_power:g} needs that power times scale < {limit:g}, but the largest is {largest:g}",
                "a smaller scale",
            )
        if 2 * largest >= limit:
            infinite = f"it needs {2 * plan.largest_power:g} * scale < {limit:g}, but the largest is {2 * largest:g}"
            if auto:
                method = "exact" if "exact" in plan.methods else method
    if infinite and method in SAMPLED:
        if not estimator.force:
            raise plan.variance_error(method, infinite)
        warnings.warn(f"{plan.pair} by {method} has infinite variance", InfiniteVarianceWarning, stacklevel=4)
    if auto and estimator.n_mc_iter is None and estimator.entropy == "exact" and "exact" in plan.methods:
        method = "exact" if _unmet(plan, q, p) is None else method
    elif method == "exact" and (unmet := _unmet(plan, q, p)) is not None:
        raise MethodError(f"{plan.pair} by exact", f"it is closed only if {unmet}", "method='stream' or 'quad'")
    if method == "quad" and auto and not infinite and not _resolved_by_nodes(q, p):
        method = "stream"
    if method in ("stream", "regen", "direct"):
        _check_range(plan, q)
    return method


def _check_range(plan: Plan, q: Posterior) -> None:
    """Refuse draws of w = exp(v) that vanish or overflow in this precision, where log w, 1 / w or w are not finite."""
    if q.form.outer is not EXP or q.noise.positive:
        return
    dtype = wide_dtype(q.dtype)
    lowest, highest = float((q.loc - 6 * q.scale).detach().min()), float((q.loc + 6 * q.scale).detach().max())
    least, most = math.log(torch.finfo(dtype).tiny), math.log(torch.finfo(dtype).max)
    if math.isfinite(lowest + highest) and (lowest < least or highest > most):
        others = [f" or method={m!r}" for m in ("exact", "quad") if m in plan.methods]
        raise ParameterError(
            f"{plan.pair} by drawing exp(v)",
            f"v lies in [{lowest:.3g}, {highest:.3g}], and {dtype} holds exp(v) for v in [{least:.3g}, {most:.3g}]",
            f"float64 tensors{''.join(others)}",
        )


def _unmet(plan: Plan, q: Posterior, p: Prior) -> str | None:
    """The condition of a closed form that holds for some values only, where these are not among them."""
    for term, term_plan in zip(p.density.terms, plan.terms, strict=True):
        if term_plan.entries is None and term_plan.condition and not _holds(term_plan.closed, term, q):
            return term_plan.condition
    return None


def _holds(closed: str, term: Term, q: Posterior) -> bool:
    assert isinstance(term.statistic, General)
    ratio = (q.scale / term.statistic.length).detach()
    if closed == "softplus":
        return bool(((ratio - 1).abs() <= CLOSE).all())
    same = torch.as_tensor(q.loc - term.center).detach()
    return bool((same == 0).all()) and float(ratio.max() - ratio.min()) <= CLOSE * float(ratio.max())


def _resolved_by_nodes(q: Posterior, p: Prior) -> bool:
    """Whether the prior is smooth on the scale of the posterior."""
    terms = [t for t in p.density.terms if isinstance(t.statistic, General)]
    if q.form.outer is EXP and all(not isinstance(t.center, Tensor) and t.center == 0 for t in terms):
        deviation, lengths = (
            float(q.scale.detach().max()),
            [1.0],
        )  # in v = log w, of unit length
    else:
        deviation = float(torch.as_tensor(q.stddev).detach().max())
        lengths = [float(torch.as_tensor(t.statistic.length).detach().min()) for t in terms]  # type: ignore[union-attr]
    return deviation <= SMOOTH_RATIO * min(lengths, default=1.0)


def check_finite(plan: Plan, q: Posterior, p: Prior, value: Tensor) -> None:
    """Never a silent NaN or infinity: name the parameter that broke, or the range that was exceeded."""
    if not bool(torch.isfinite(value.to(wide_dtype(q.dtype)))):
        raise diagnosis(plan, q, p)


def diagnosis(plan: Plan, q: Posterior, p: Prior) -> McreparError:
    """Why a KL is not finite."""
    constraints = {"free_loc": REAL, "free_scale": POSITIVE, "free_log_scale": REAL}
    try:
        for name, constraint in constraints.items():
            tensor = getattr(q, name)
            if tensor is not None:
                check_value(f"{plan.pair}", Parameter(name.removeprefix("free_"), constraint), tensor)
        for parameter in p.row.parameters if p.row is not None else ():
            check_value(f"{plan.pair}, prior", parameter, p.values[parameter.name])
    except ParameterError as error:
        return error
    scales = q.scale.detach()
    return ParameterError(
        plan.pair,
        f"its value exceeds the range of {wide_dtype(q.dtype)}, the posterior's scale being between "
        f"{float(scales.min()):g} and {float(scales.max()):g} and the prior {p!r}",
        "float64 tensors, or parameters of posterior and prior that lie closer together",
    )
