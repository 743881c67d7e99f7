"""One tensor of weights with a posterior distribution, and what a row of the table says of its family."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP, LOG, Form
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.parameters import POSITIVE, REAL, Interval, Number, Parameter, check_value, spelled
from mcrepar.distributions.statistics import Monomial
from mcrepar.errors import MethodError, ParameterError

LEARNED = {name: Parameter(name, POSITIVE if name == "scale" else REAL) for name in ("loc", "scale", "log_scale")}
TEMPLATE_SIZE = 1000  # the d of a Radial posterior that was asked for by name, without a tensor

Fixed = Mapping[str, Any]
SamePrior = Callable[["Posterior"], tuple[str, dict[str, Any]] | None]


@dataclass(frozen=True)
class PosteriorRow:
    """A family of posteriors, W = f(loc + scale * xi)."""

    name: str
    noise: Callable[[Fixed, int], Noise]  # of xi, from the fixed parameters and the tensor's number of weights
    form: Form  # how noise becomes a weight
    support: Interval  # where its density is positive
    fixed: tuple[Parameter, ...] = ()  # the parameters that are not learned
    group: str = ""  # the row of the paper's Table 1 that names it
    generic: Mapping[str, Any] = field(default_factory=dict)  # fixed values that Table 1 is judged for, if no defaults
    same_prior: SamePrior | None = None  # the same distribution as a prior, by name and parameters, where there is one
    aliases: tuple[str, ...] = ()  # other spellings

    def __reduce__(self) -> tuple[Callable[[str], PosteriorRow], tuple[str]]:
        return _row, (self.name,)  # a row is pickled as its name

    @property
    def learned(self) -> tuple[str, ...]:
        """The names of the learned parameters."""
        return ("loc", "scale") if self.form.learned_loc else ("scale",)


def _row(name: str) -> PosteriorRow:
    from mcrepar.distributions.posteriors import POSTERIORS

    return POSTERIORS[name]


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """One tensor of weights with a posterior distribution; a template while it has no learned tensors.

    Made by `posterior`. `log_scale` is the free parameter, scale = exp(log_scale), where that was given.
    """

    row: PosteriorRow
    fixed: Fixed
    noise: Noise
    free_loc: Tensor | None = None
    free_scale: Tensor | None = None
    free_log_scale: Tensor | None = None

    def __repr__(self) -> str:
        words = {**free_tensors(self), **self.fixed}
        return f"posterior({', '.join(filter(None, (repr(self.name), spelled(words))))})"

    @property
    def name(self) -> str:
        """The family's name."""
        return self.row.name

    @property
    def form(self) -> Form:
        """How noise becomes a weight."""
        return self.row.form

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """The learned tensors, as they were given."""
        return tuple(free_tensors(self).values())

    @property
    def loc(self) -> Number:
        """The location: learned, fixed, or 0."""
        if self.row.form.learned_loc:
            return self._bound(self.free_loc)
        value = self.fixed.get("loc", 0.0)
        return value if isinstance(value, Tensor) else float(value)

    @property
    def fixed_loc(self) -> float | None:
        """The location as a number; None where it is learned or a tensor."""
        loc = None if self.row.form.learned_loc else self.loc
        return None if isinstance(loc, Tensor) else loc

    @property
    def scale(self) -> Tensor:
        """The scale, exp(log_scale) where that is the free parameter."""
        if self.free_log_scale is not None:
            return self.free_log_scale.exp()
        return self._bound(self.free_scale)

    @property
    def log_scale(self) -> Tensor:
        """The logarithm of the scale."""
        return self.free_log_scale if self.free_log_scale is not None else self._bound(self.free_scale).log()

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor of weights."""
        return self._reference.shape

    @property
    def numel(self) -> int:
        """The number of weights."""
        return self._reference.numel()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the learned tensors."""
        return self._reference.dtype

    @property
    def device(self) -> torch.device:
        """Where the learned tensors are."""
        return self._reference.device

    @property
    def mean(self) -> Tensor:
        """E W, elementwise; infinite where it does not exist."""
        return self.raw_moment(1)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of W, elementwise; infinite where it does not exist."""
        if self.form.outer is EXP:
            return self.variance.sqrt().to(self.dtype)
        stretch = 0 if self.form.outer is LOG else 1
        m1, m2 = (self.noise.moment(Monomial(float(k)) if stretch else Monomial(0.0, k)) for k in (1, 2))
        return self.scale**stretch * (math.sqrt(m2 - m1**2) if math.isfinite(m2) else math.inf)

    @property
    def variance(self) -> Tensor:
        """The variance of W, elementwise; under an exponential outer map in double precision, without cancellation.

        Var e^v = (E e^v)^2 (exp(log E e^2v - 2 log E e^v) - 1)
        """
        if self.form.outer is not EXP:
            return self.stddev.square()
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        scale = self.scale.to(wide)
        first, second = self.noise.log_mgf(scale), self.noise.log_mgf(2 * scale)
        assert first is not None
        assert second is not None
        variance: Tensor = (2 * (self.loc + first)).exp() * torch.expm1((second - 2 * first).clamp_min(0.0))
        return torch.where(second.isinf(), math.inf, variance)

    def raw_moment(self, k: float) -> Tensor:
        """E W^k for k = 1 or an exponential outer map, elementwise."""
        if self.form.outer is EXP:
            log_mgf = self.noise.log_mgf(k * self.scale)
            assert log_mgf is not None
            return (k * self.loc + log_mgf).exp()
        if self.form.outer is LOG:
            return self.log_scale + self.noise.moment(Monomial(0.0, 1))
        return self.loc + self.scale * self.noise.moment(Monomial(1.0))

    def weights(self, xi: Tensor) -> Tensor:
        """W(theta, xi); `xi` may have a leading dimension of draws."""
        return self.form.weights(self.loc, self.scale, xi)

    def draw(self, draws: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Fresh weights, differentiable in the learned parameters: (draws, *shape), or (*shape) without `draws`.

        >>> from mcrepar import posterior
        >>> q = posterior("radial", loc=torch.zeros(3), scale=torch.ones(3))
        >>> q.draw(5).shape
        torch.Size([5, 3])
        """
        count = 1 if draws is None else draws
        xi = self.noise.draw(count, self.numel, dtype=self.dtype, device=self.device, generator=generator)
        w = self.weights(xi.reshape(count, *self.shape))
        return w[0] if draws is None else w

    def log_prob(self, w: Tensor) -> Tensor:
        """log q(w), elementwise, -inf outside the support; one number per draw for a joint distribution."""
        inside = self.row.support.holds(w)
        if not bool(inside.all()):
            safe = torch.where(inside, w, self.row.support.lower + 1)
            return torch.where(inside, self.log_prob(safe), -math.inf)
        if self.form.outer is LOG:  # in log xi = w - log scale, which does not overflow
            return self.noise.log_density_of_log(w - self.log_scale) + w - self.log_scale
        v = self.form.outer.inverse(w)
        xi = (v - self.loc) / self.scale
        volume = self.log_scale.expand(w.shape)
        if self.form.outer.slope is not None:
            coefficient, statistic = self.form.outer.slope
            volume = volume + coefficient * statistic(v)
        if not self.noise.joint:
            return self.noise.log_density(xi) - volume
        lead = w.shape[: w.dim() - len(self.shape)]
        return self.noise.log_density(xi.reshape(*lead, -1)) - volume.reshape(*lead, -1).sum(-1)

    def bind(self, validate: bool = True, fixed: Fixed | None = None, **learned: Any) -> Posterior:
        """The same family with these learned tensors (and fixed values, where they are given)."""
        return bind(self.row, self.fixed if fixed is None else fixed, learned, validate)

    @property
    def _reference(self) -> Tensor:
        if not self.learned:
            raise MethodError(
                f"the tensor of a {self.name} template",
                "it was made without learned parameters",
                f"posterior({self.name!r}, {', '.join(f'{n}=tensor' for n in self.row.learned)})",
            )
        return self.learned[0]

    def _bound(self, tensor: Tensor | None) -> Tensor:
        return self._reference if tensor is None else tensor


def free_tensors(q: Posterior) -> dict[str, Tensor]:
    """The learned tensors by their names, as they were given: loc, and scale or log_scale."""
    given = {"loc": q.free_loc, "scale": q.free_scale, "log_scale": q.free_log_scale}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def check_posterior(q: object) -> Posterior:
    """`q` itself, if it is a posterior."""
    if not isinstance(q, Posterior):
        raise ParameterError(f"a posterior of type {type(q).__name__}", "it has no noise", "posterior(name, ...)")
    return q


def bind(row: PosteriorRow, fixed: Fixed, learned: Mapping[str, Any], validate: bool) -> Posterior:
    """A posterior of this family with these learned tensors; a template where there are none."""
    asked = f"posterior({row.name!r})"
    if not learned:
        return Posterior(row, fixed, row.noise(fixed, TEMPLATE_SIZE))
    given: dict[str, Number] = {}
    for name, value in learned.items():
        checked = check_value(asked, LEARNED[name], value, validate)
        assert checked is not None
        given[name] = checked
    if "scale" in given and "log_scale" in given:
        raise ParameterError(f"{asked} with scale and log_scale", "they are one parameter", "either of them")
    missing = [n for n in row.learned if n not in given and not (n == "scale" and "log_scale" in given)]
    if missing:
        raise ParameterError(f"{asked} with {', '.join(given)}", f"{missing[0]} is missing", f"{missing[0]}=tensor")
    tensors = _alike(asked, given)
    loc = fixed.get("loc")
    if isinstance(loc, Tensor) and loc.shape != next(iter(tensors.values())).shape:
        raise ParameterError(asked, f"loc has shape {tuple(loc.shape)}, not that of scale", "one shape for both")
    size = next(iter(tensors.values())).numel()
    if size == 0:
        raise ParameterError(asked, "the tensor holds no weight", "a tensor with at least one element")
    return Posterior(row, fixed, row.noise(fixed, size), *(tensors.get(name) for name in LEARNED))


def _alike(asked: str, given: Mapping[str, Number]) -> dict[str, Tensor]:
    """The learned parameters as tensors of one shape, dtype and device; numbers take those of the tensors."""
    tensors = {n: v for n, v in given.items() if isinstance(v, Tensor)}
    if not tensors:
        return {n: torch.tensor(v) for n, v in given.items()}
    first, reference = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        for aspect in ("shape", "dtype", "device"):
            a, b = getattr(reference, aspect), getattr(tensor, aspect)
            if a != b:
                text = [tuple(x) if aspect == "shape" else x for x in (a, b)]
                why = f"{first} has {aspect} {text[0]} and {name} has {text[1]}"
                raise ParameterError(asked, why, f"one {aspect} for both")
    return {n: v if isinstance(v, Tensor) else torch.full_like(reference, v) for n, v in given.items()}
