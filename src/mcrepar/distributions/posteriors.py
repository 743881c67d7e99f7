"""The approximate posteriors: one row per family, a noise and a form."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mcrepar.distributions.forms import EXP, LOG, Form
from mcrepar.distributions.heavy_tails import Horseshoe, StudentT
from mcrepar.distributions.noises import GammaPower, InverseGaussian, Logistic, Normal, SignedGammaPower
from mcrepar.distributions.parameters import (
    HALF_LINE,
    LINE,
    POSITIVE,
    REAL,
    WHOLE,
    Interval,
    Number,
    Parameter,
    check_names,
    check_value,
    find,
)
from mcrepar.distributions.posterior import Posterior, PosteriorRow, SamePrior, bind
from mcrepar.distributions.radial import Radial
from mcrepar.errors import ParameterError

GOLDEN_RATIO = (1 + math.sqrt(5)) / 2  # the slab for which a Horseshoe weight has standard deviation `scale`
LOCATION_SCALE = Form(learned_loc=True)
SCALE = Form(learned_loc=False)


def _shape(default: float, constraint: Any = POSITIVE) -> tuple[Parameter, ...]:
    return (Parameter("concentration", constraint, default),)


def _same(name: str, *fixed: str) -> SamePrior:
    """The prior of this name with the posterior's loc, scale and these fixed parameters."""
    return lambda q: (name, {"loc": q.loc, "scale": q.scale, **{n: q.fixed[n] for n in fixed}})


def _same_rate(name: str) -> SamePrior:
    """The prior of this name with the posterior's concentration and its scale as 1 / rate."""
    return lambda q: (name, {"concentration": q.fixed["concentration"], "rate": 1 / q.scale})


_ROWS = (
    PosteriorRow("normal", lambda fixed, size: Normal(), LOCATION_SCALE, LINE, group="location-scale",
                 same_prior=_same("normal"), aliases=("gaus", "gauss", "gaussian")),
    PosteriorRow("laplace", lambda fixed, size: SignedGammaPower(1.0), LOCATION_SCALE, LINE, group="location-scale",
                 same_prior=_same("laplace")),
    PosteriorRow("logistic", lambda fixed, size: Logistic(), LOCATION_SCALE, LINE, group="location-scale",
                 same_prior=_same("logistic")),
    PosteriorRow("horseshoe", lambda fixed, size: Horseshoe(fixed["slab"]), LOCATION_SCALE, LINE,
                 fixed=(Parameter("slab", POSITIVE, GOLDEN_RATIO, optional=True),), group="location-scale",
                 generic={"slab": None}),
    PosteriorRow("radial", lambda fixed, size: Radial(size), LOCATION_SCALE, LINE, group="location-scale",
                 same_prior=_same("radial")),
    PosteriorRow("student_t", lambda fixed, size: StudentT(fixed["df"]), LOCATION_SCALE, LINE,
                 fixed=(Parameter("df", POSITIVE, 5.0),), same_prior=_same("student_t", "df"),
                 aliases=("student", "t")),
    PosteriorRow("lognormal", lambda fixed, size: Normal(), Form(learned_loc=True, outer=EXP), HALF_LINE,
                 group="log-normal", same_prior=_same("lognormal")),
    PosteriorRow("exponential", lambda fixed, size: GammaPower(1.0, 1.0), SCALE, HALF_LINE, group="scaling",
                 same_prior=lambda q: ("exponential", {"rate": 1 / q.scale})),
    PosteriorRow("wald", lambda fixed, size: InverseGaussian(fixed["concentration"]), SCALE, HALF_LINE,
                 fixed=_shape(1.0), group="scaling", aliases=("standard_wald",), same_prior=lambda q: (
                     "inverse_gaussian", {"loc": q.scale, "concentration": q.scale * q.fixed["concentration"]})),
    PosteriorRow("rayleigh", lambda fixed, size: GammaPower(1.0, 0.5, math.sqrt(2)), SCALE, HALF_LINE,
                 group="scaling", same_prior=lambda q: ("rayleigh", {"scale": q.scale})),
    PosteriorRow("weibull", lambda fixed, size: GammaPower(1.0, 1 / fixed["concentration"]), SCALE, HALF_LINE,
                 fixed=_shape(1.6), group="scaling", same_prior=lambda q: (
                     "weibull", {"concentration": q.fixed["concentration"], "scale": q.scale})),
    PosteriorRow("erlang", lambda fixed, size: GammaPower(fixed["concentration"], 1.0), SCALE, HALF_LINE,
                 fixed=_shape(3.0, WHOLE), group="scaling", same_prior=_same_rate("erlang")),
    PosteriorRow("gamma", lambda fixed, size: GammaPower(fixed["concentration"], 1.0), SCALE, HALF_LINE,
                 fixed=_shape(2.5), group="scaling", same_prior=_same_rate("gamma")),
    PosteriorRow("inverse_gamma", lambda fixed, size: GammaPower(fixed["concentration"], -1.0), SCALE, HALF_LINE,
                 fixed=_shape(3.5), group="scaling", same_prior=lambda q: (
                     "inverse_gamma", {"concentration": q.fixed["concentration"], "rate": q.scale})),
    PosteriorRow("error", lambda fixed, size: SignedGammaPower(fixed["power"]), SCALE, LINE,
                 fixed=(Parameter("loc", REAL, 0.0), Parameter("power", POSITIVE, 1.5)), group="scaling",
                 generic={"loc": 0.25}, same_prior=_same("error", "power")),
    PosteriorRow("loggamma", lambda fixed, size: GammaPower(fixed["concentration"], 1.0),
                 Form(learned_loc=False, outer=LOG), LINE, fixed=_shape(2.5), group="scaling"),
    PosteriorRow("expgamma", lambda fixed, size: GammaPower(fixed["concentration"], 1.0),
                 Form(learned_loc=False, outer=EXP), Interval(1.0, math.inf), fixed=_shape(1.0), same_prior=lambda q: (
                     ("pareto", {"scale": 1.0, "alpha": 1 / q.scale}) if q.fixed["concentration"] == 1 else None)),
)  # fmt: skip

POSTERIORS: dict[str, PosteriorRow] = {row.name: row for row in _ROWS}


def posterior(name: str, **parameters: Any) -> Posterior:
    """A posterior for one tensor of weights, W = f(loc + scale * xi).

    Args:
        name: a key of `POSTERIORS`, or the paper's spelling of it.
        parameters: the learned tensors `loc` and `scale` (or `log_scale`), as the family has them, and its
            fixed numbers. Without learned tensors it is a template for `explain` and `bayesian`.

    >>> import torch
    >>> q = posterior("Gamma", concentration=2.0, scale=torch.tensor([0.5, 1.0]))
    >>> q.mean
    tensor([1., 2.])
    """
    row: PosteriorRow = find("posterior", name, POSTERIORS)
    asked = f"posterior({row.name!r})"
    known = [*row.learned, "log_scale", *(p.name for p in row.fixed)]
    check_names(asked, parameters, known)
    fixed: dict[str, Any] = {}
    for parameter in row.fixed:
        value = check_value(asked, parameter, parameters.pop(parameter.name, parameter.default))
        if isinstance(value, Tensor):
            value = _fixed_tensor(asked, parameter.name, value)
        fixed[parameter.name] = value
    return bind(row, fixed, parameters, validate=True)


def _fixed_tensor(asked: str, name: str, value: Tensor) -> Number:
    """A fixed parameter that was given as a tensor: only a location may have a shape."""
    if value.requires_grad:
        raise ParameterError(f"{asked} with a learned {name}", f"{name} is fixed in this family", f"{name}.detach()")
    if value.dim() == 0:
        return float(value)
    if name != "loc":
        raise ParameterError(f"{asked} with {name} of shape {tuple(value.shape)}", "it is one number", "a number")
    return value
