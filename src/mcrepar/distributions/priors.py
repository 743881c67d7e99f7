"""The priors: one row per family, log p(w) = constant + sum of coefficient * statistic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributions as td
import torch.nn.functional as F
from torch import Tensor

from mcrepar.distributions.parameters import (
    HALF_LINE,
    LINE,
    POSITIVE,
    REAL,
    UNIT,
    WHOLE,
    Interval,
    Number,
    Parameter,
    check_names,
    check_value,
    find,
)
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import LogDensity, Prior, PriorRow, Term, Values
from mcrepar.distributions.radial import log_constant, norm_statistic
from mcrepar.distributions.special import log_scaled_e1
from mcrepar.distributions.statistics import General, Monomial, Statistic
from mcrepar.errors import MethodError, ParameterError

LOG_2PI = math.log(2 * math.pi)
W, W2, INVERSE, LOG, LOG2 = Monomial(1.0), Monomial(2.0), Monomial(-1.0), Monomial(0.0, 1), Monomial(0.0, 2)


def _either(of_tensor: Callable[[Tensor], Tensor], of_number: Callable[[float], float]) -> Callable[[Number], Number]:
    """One function of tensors and of numbers."""
    return lambda x: of_tensor(x) if isinstance(x, Tensor) else of_number(x)


_log, _root, _lgamma = (_either(getattr(torch, name), getattr(math, name)) for name in ("log", "sqrt", "lgamma"))


def _above(x: Number, least: float) -> Number:
    return x.clamp(min=least) if isinstance(x, Tensor) else max(x, least)


def _largest(x: Number) -> float:
    return float(x.detach().max()) if isinstance(x, Tensor) else x


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x); torch's own leaves out the last 2e-9 beyond its threshold of 20."""
    return F.softplus(x, threshold=50.0)


def _real(values: Values) -> Interval:
    return LINE


def _raised(power: Number, label: str, absolute: bool) -> Statistic:
    """x^power or |x|^power; a statistic without a tuple where the power is learned or has a shape of its own."""
    if not isinstance(power, Tensor) or (power.dim() == 0 and not power.requires_grad):
        return Monomial(float(power), absolute=absolute)
    return General(lambda x: x.abs() ** power, label, _largest(power), smooth=not absolute)


def _gamma(v: Values) -> LogDensity:
    a, b = v["concentration"], v["rate"]
    return LogDensity((Term(LOG, a - 1), Term(W, -b)), a * _log(b) - _lgamma(a))


def _inverse_gaussian(m: Number, c: Number) -> LogDensity:
    terms = (Term(LOG, -1.5), Term(W, -c / (2 * m * m)), Term(INVERSE, -c / 2))
    return LogDensity(terms, 0.5 * (_log(c) - LOG_2PI) + c / m)


def _weibull(v: Values) -> LogDensity:
    k, s = v["concentration"], v["scale"]
    return LogDensity((Term(LOG, k - 1), Term(_raised(k, "u^concentration", False), -(s**-k))), _log(k) - k * _log(s))


def _error(v: Values) -> LogDensity:
    b, c = v["scale"], v["power"]
    constant = _log(c) - _log(b) - math.log(2) - _lgamma(1 / c)
    return LogDensity((Term(_raised(c, "|u|^power", True), -(b**-c), v["loc"]),), constant)


def _normal(v: Values) -> LogDensity:
    s = v["scale"]
    return LogDensity((Term(W2, -0.5 / (s * s), v["loc"]),), -_log(s) - 0.5 * LOG_2PI)


def _hierarchical(v: Values) -> LogDensity:
    """w | m ~ N(m, scale^2), m ~ N(0, loc_scale^2) with the optimal q(m) integrated out (the collapsed bound).

    It is the wide prior N(0, scale^2 + loc_scale^2) with a penalty on the posterior's variance.
    """
    v0, v1 = v["scale"] ** 2, v["loc_scale"] ** 2
    wide = v0 + v1
    return LogDensity((Term(W2, -0.5 / wide),), -0.5 * (_log(wide) + LOG_2PI), penalty=v1 / (2 * v0 * wide))


def _cost_of_hierarchy(v: Values) -> float:
    """-1/2 log(v0 / (v0 + v1)), which the KL of a weight adds whatever its posterior is."""
    wide, narrow = (torch.as_tensor(v[name], dtype=torch.float64) for name in ("loc_scale", "scale"))
    return float(0.5 * torch.log1p((wide / narrow).square()).mean())


def _lognormal(v: Values) -> LogDensity:
    m, s = v["loc"], v["scale"]
    return LogDensity((Term(LOG, -1.0, m), Term(LOG2, -0.5 / (s * s), m)), -m - _log(s) - 0.5 * LOG_2PI)


def _logistic(v: Values) -> LogDensity:
    m, s = v["loc"], v["scale"]
    softplus = General(
        lambda u: _softplus(-u / s),
        "log(1 + exp(-u / scale))",
        1.0,
        kind="softplus",
        length=s,
        features=(0.0, 6 * s, 36 * s),
    )
    return LogDensity((Term(W, -1 / s, m), Term(softplus, -2.0, m)), -_log(s))


def _student(df: Number, loc: Number, scale: Number, norm: Number) -> LogDensity:
    length = scale * df**0.5
    tail = General(
        lambda u: torch.log1p((u / length) ** 2),
        "log(1 + (u / scale)^2 / df)",
        0.0,
        length=length,
        features=(0.0, 6 * length),
    )
    return LogDensity((Term(tail, -(df + 1) / 2, loc),), norm - _log(scale))


def _student_t(v: Values) -> LogDensity:
    df = v["df"]
    norm = _lgamma((df + 1) / 2) - _lgamma(df / 2) - 0.5 * (_log(df) + math.log(math.pi))
    return _student(df, v["loc"], v["scale"], norm)


def _chosen(first: Any, a: Number, b: Number) -> Number:
    """Of a and b the first, where `first` says so; weight by weight where it is a tensor."""
    return torch.where(first, a, b) if isinstance(first, Tensor) else a if first else b


def _mixture(v: Values) -> LogDensity:
    mix, s1, s2 = v["mix"], v["scale1"], v["scale2"]
    if not isinstance(s1, Tensor) and not isinstance(s2, Tensor) and s1 == s2:
        return _normal({"loc": 0.0, "scale": s1})
    swap = s1 < s2  # of the two, the wider stands outside, so that nothing cancels far from 0
    share, wide, narrow = _chosen(swap, 1 - mix, mix), _chosen(swap, s2, s1), _chosen(swap, s1, s2)
    delta = _log(_chosen(swap, mix, 1 - mix)) - _log(share) + _log(wide) - _log(narrow)
    kappa = (1 / (narrow * narrow) - 1 / (wide * wide)) / 2
    height, steep = _above(delta, 0.0), _above(kappa, 1e-300)
    spike = General(
        lambda u: _softplus(delta - kappa * u * u),
        "log(1 + r exp(-k u^2))",
        0.0,
        length=narrow,
        features=(0.0, _root(height / steep), _root((height + 36) / steep)),
    )
    return LogDensity((Term(W2, -0.5 / (wide * wide)), Term(spike, 1.0)), _log(share) - _log(wide) - 0.5 * LOG_2PI)


def _horseshoe(v: Values) -> LogDensity:
    tau, eps = v["scale"], v["softening"]
    marginal = General(
        lambda u: log_scaled_e1((u * u + eps * eps) / (2 * tau * tau)),
        "log(exp(y) E1(y))",
        0.0,
        smooth=False,
        features=(0.0, 6 * eps, 6 * tau),
    )
    return LogDensity((Term(marginal, 1.0),), -_log(tau) - 0.5 * math.log(2 * math.pi**3))


def _radial(v: Values) -> LogDensity:
    b = v["scale"]

    label = "-r^2 / 2 - (d - 1) log r, r = |u / scale|"
    norm = General(lambda u: norm_statistic(u / b), label, 2.0, kind="norm", joint=True, length=b)
    return LogDensity((Term(norm, 1.0, v["loc"]),), -_log(b), log_constant)


def _nearest_scale(q: Posterior, v: Values) -> Tensor:
    """The scale of the Normal prior that is nearest to a posterior: the root of the mean of E (w - loc)^2."""
    squares: Tensor = (q.mean - v["loc"]) ** 2 + q.stddev**2
    return squares.mean().sqrt()


LOC, SCALE = Parameter("loc", REAL, 0.0), Parameter("scale", POSITIVE, 1.0)
RATE = Parameter("rate", POSITIVE, 1.0)


def _at_one(std: float) -> dict[str, float]:
    return {"loc": 1.0, "scale": std}


def _concentration(default: float, constraint: Any = POSITIVE) -> Parameter:
    return Parameter("concentration", constraint, default)


_NORMAL = PriorRow(
    "normal", (LOC, SCALE), _normal, _real, ("scaling", "location-scale"), generic={"loc": 0.3}, like=td.Normal,
    aliases=("gaus", "gauss", "gaussian"), optimal={"scale": _nearest_scale}, lengths=("scale",), around_one=_at_one,
)  # fmt: skip

_ROWS = (
    _NORMAL,
    PriorRow("hierarchical", (Parameter("scale", POSITIVE, 0.05), Parameter("loc_scale", POSITIVE, 0.3)),
             _hierarchical, _real, lengths=("scale", "loc_scale"), learned=False, least_kl=_cost_of_hierarchy,
             aliases=("hierarchical_normal",)),
    PriorRow("laplace", (LOC, SCALE), lambda v: LogDensity(
        (Term(Monomial(1.0, absolute=True), -1 / v["scale"], v["loc"]),), -_log(v["scale"]) - math.log(2)),
             _real, ("location-scale",), like=td.Laplace, lengths=("scale",), around_one=_at_one),
    PriorRow("logistic", (LOC, SCALE), _logistic, _real, ("location-scale",), lengths=("scale",), around_one=_at_one),
    PriorRow("error", (LOC, SCALE, Parameter("power", POSITIVE, 1.5)), _error, _real, ("scaling",),
             lengths=("scale",)),
    PriorRow("student_t", (Parameter("df", POSITIVE, 4.0), LOC, SCALE), _student_t, _real, like=td.StudentT,
             lengths=("scale",), around_one=_at_one, aliases=("student", "t")),
    PriorRow("cauchy", (LOC, SCALE), lambda v: _student(1.0, v["loc"], v["scale"], -math.log(math.pi)),
             _real, like=td.Cauchy, lengths=("scale",), around_one=_at_one),
    PriorRow("half_cauchy", (SCALE,), lambda v: _student(1.0, 0.0, v["scale"], math.log(2 / math.pi)),
             like=td.HalfCauchy, lengths=("scale",)),
    PriorRow("mixture", (Parameter("mix", UNIT, 0.5), Parameter("scale1", POSITIVE, 1.0),
                         Parameter("scale2", POSITIVE, 0.1)), _mixture, _real,
             lengths=("scale1", "scale2"), aliases=("scale_mixture",)),
    PriorRow("horseshoe", (SCALE, Parameter("softening", POSITIVE, 1e-3)), _horseshoe, _real, ("location-scale",),
             lengths=("scale", "softening")),
    PriorRow("radial", (LOC, SCALE), _radial, _real, ("location-scale",), single=_NORMAL),
    PriorRow("exponential", (RATE,), lambda v: LogDensity((Term(W, -v["rate"]),), _log(v["rate"])),
             groups=("scaling", "location-scale"), like=td.Exponential),
    PriorRow("wald", (_concentration(1.0),), lambda v: _inverse_gaussian(1.0, v["concentration"]),
             groups=("scaling",), aliases=("standard_wald",)),
    PriorRow("inverse_gaussian", (Parameter("loc", POSITIVE, 1.0), _concentration(1.0)),
             lambda v: _inverse_gaussian(v["loc"], v["concentration"]), groups=("scaling",)),
    PriorRow("rayleigh", (SCALE,), lambda v: LogDensity(
        (Term(LOG, 1.0), Term(W2, -0.5 / (v["scale"] * v["scale"]))), -2 * _log(v["scale"])), groups=("scaling",)),
    PriorRow("chi_squared", (Parameter("df", POSITIVE, 3.0),), lambda v: LogDensity(
        (Term(LOG, v["df"] / 2 - 1), Term(W, -0.5)), -v["df"] / 2 * math.log(2) - _lgamma(v["df"] / 2)),
             groups=("scaling",), like=td.Chi2, aliases=("chi2",)),
    PriorRow("gamma", (_concentration(2.0), RATE), _gamma, groups=("scaling",), like=td.Gamma,
             around_one=lambda std: {"concentration": std**-2, "rate": std**-2}),
    PriorRow("erlang", (_concentration(2.0, WHOLE), RATE), _gamma, groups=("scaling",)),
    PriorRow("inverse_gamma", (_concentration(2.0), RATE), lambda v: LogDensity(
        (Term(LOG, -v["concentration"] - 1), Term(INVERSE, -v["rate"])),
        v["concentration"] * _log(v["rate"]) - _lgamma(v["concentration"])),
             groups=("scaling",), like=td.InverseGamma),
    PriorRow("weibull", (_concentration(1.5), SCALE), _weibull, groups=("scaling",), like=td.Weibull),
    PriorRow("lognormal", (LOC, SCALE), _lognormal, groups=("scaling",), like=td.LogNormal,
             around_one=lambda std: {"loc": 0.0, "scale": std}),
    PriorRow("pareto", (SCALE, Parameter("alpha", POSITIVE, 1.0)), lambda v: LogDensity(
        (Term(LOG, -v["alpha"] - 1),), _log(v["alpha"]) + v["alpha"] * _log(v["scale"])),
             lambda v: Interval(_largest(v["scale"]), math.inf),
             ("scaling", "log-normal"), kernel=True, like=td.Pareto),
    PriorRow("dirichlet", (_concentration(2.0),), lambda v: LogDensity((Term(LOG, v["concentration"] - 1),)),
             groups=("scaling", "log-normal"), kernel=True, simplex=True),
)  # fmt: skip

PRIORS: dict[str, PriorRow] = {row.name: row for row in _ROWS}


RELATIVE = ("fan_in", "spread")


def prior(name: str, *, improper: bool = False, relative: str | None = None, **parameters: Any) -> Prior:
    """A prior over weights, by name.

    Args:
        name: a key of `PRIORS`, or the paper's spelling of it.
        improper: take Pareto or Dirichlet as its kernel, a power of w without support or normalisation.
        relative: the unit of its lengths in a network, so that one number suits all layers: "fan_in" for
            1 / sqrt(number of inputs of a unit), "spread" for the standard deviation of the initial weights. A bias
            has the unit of its weight; embeddings and other vectors have 1. Of modules that are not torch's, a
            parameter is taken to be (outputs, inputs, ...) unless its bias is as long as its columns, as in Hugging
            Face's Conv1D; tables, by a name such as pos_embed or token or a shape such as (1, 65, 64), have 1.
        parameters: numbers or tensors; a tensor that requires grad is learned. Defaults are in the table. For a
            network also words: "learned" (a parameter of its own per tensor), loc="tied" (to the posterior's),
            scale="optimal" (the value that minimises the KL, in closed form).

    >>> prior("Laplace", scale=0.1).support
    Interval(lower=-inf, upper=inf)
    """
    row: PriorRow = find("prior", name, PRIORS)
    asked = f"prior({row.name!r})"
    if improper and not row.kernel:
        kernels = " or ".join(repr(r.name) for r in PRIORS.values() if r.kernel)
        raise MethodError(f"{asked} with improper=True", "it is a proper density", f"improper only for {kernels}")
    check_names(asked, parameters, [p.name for p in row.parameters])
    if relative is not None and (relative not in RELATIVE or not row.lengths):
        why = "there is no such unit" if row.lengths else "none of its parameters is the size of a weight"
        instead = " or ".join(map(repr, RELATIVE)) if row.lengths else "absolute numbers"
        raise ParameterError(f"{asked} with relative={relative!r}", why, instead)
    values: dict[str, Any] = {}
    for p in row.parameters:
        value = parameters.get(p.name, p.default)
        if relative is not None and isinstance(value, str) and p.name in row.lengths:
            why = f"{p.name}={value!r} is found by the network, and has no unit"
            raise ParameterError(f"{asked} with relative={relative!r}", why, f"a number for {p.name}, or no relative=")
        values[p.name] = _word(asked, row, p.name, value) if isinstance(value, str) else check_value(asked, p, value)
    numbers = {p.name: p.default if isinstance(values[p.name], str) else values[p.name] for p in row.parameters}
    support = HALF_LINE if improper else row.support(numbers)
    build = (lambda present: LogDensity(row.density(present).terms)) if improper else row.density
    return Prior(row.name, values, build, support, improper, row.simplex and not improper, row, relative or "")


def _word(asked: str, row: PriorRow, name: str, word: str) -> str:
    """A value that a network fills in: a parameter of its own, the posterior's location, or the best value."""
    words = ["learned", *(["tied"] if name == "loc" else []), *(["optimal"] if name in row.optimal else [])]
    if not row.learned:
        why = f"{name} is a str: a network does not learn it, for it would fit the prior to the posterior"
        raise ParameterError(f"{asked} with {name}={word!r}", why, "a number")
    if word not in words:
        why = f"{name} is a number, a tensor, or one of these words"
        raise ParameterError(f"{asked} with {name}={word!r}", why, " or ".join(map(repr, words)))
    return word
