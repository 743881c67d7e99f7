"""What can only be said of tensors: shapes, ranges, conditions on learned values, results that overflow."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP
from mcrepar.distributions.parameters import POSITIVE, REAL, Parameter, check_value
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.divergence.methods import SAMPLED, Estimator
from mcrepar.divergence.plan import Plan
from mcrepar.errors import (
    InfiniteVarianceWarning,
    McreparError,
    ParameterError,
    QuadratureWarning,
)

SEEN, UNSEEN = 1e-6, 1e-9  # the error of a quadrature that is warned of: relative, and per weight


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
    """The method that runs on these tensors, or the error that says why none does."""
    method = plan.choose(estimator)  # what families refuse is refused before any tensor is touched
    if (values := plan.at(q, p)) is not plan:
        plan, method = values, values.choose(estimator)
    if plan.infinite_variance and method in SAMPLED:
        warnings.warn(f"{plan.pair} by {method} has infinite variance", InfiniteVarianceWarning, stacklevel=4)
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


def check_error(plan: Plan, value: Tensor, error: Tensor, size: int) -> None:
    """Refuse a quadrature that float64 ends before the mean is reached; warn where its error may be seen."""
    found, near = float(value.detach()), float(error)
    if math.isinf(near):
        raise ParameterError(
            f"{plan.pair} by quad",
            "log p goes on growing faster than the posterior falls up to where float64 ends",
            "parameters of posterior and prior that lie closer together",
        )
    if near > max(SEEN * abs(found), UNSEEN * size):
        warnings.warn(
            f"{plan.pair} by quad is {found:.6g} with an estimated error of {near:.1g}: its nodes do not resolve "
            "log p, or its mean lies further out than float64 reaches; choose parameters of posterior and prior that "
            "lie closer together, or compare with method='stream'",
            QuadratureWarning,
            stacklevel=5,
        )


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
