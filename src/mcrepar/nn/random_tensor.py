"""One tensor of weights that became random: its learned parameters, its prior, its samples and its KL.

In float32 squares vanish below about 1e-19. A tensor whose scale is smaller (or whose weights are, where they have no
location) has an infinite gradient under a radial prior, and under forward="local" none; float64 goes down to 1e-154.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.forms import EXP, IDENTITY, LOG
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.parameters import POSITIVE, REAL, UNIT, Constraint, Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.random import transformed
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.contraction import Fixed
from mcrepar.divergence.kl import apply_plan, check_finite, fixed_products
from mcrepar.divergence.methods import METHODS, Estimator, Method
from mcrepar.divergence.plan import Plan, plan_pair
from mcrepar.divergence.sums import memory_order, unflat
from mcrepar.errors import McreparError

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule
    from mcrepar.nn.rank1 import RankOne

Map = Callable[[Tensor], Tensor]
FREE: Mapping[Constraint, tuple[Map, Map]] = {  # a learned parameter of a prior: to the real line, and back
    REAL: (torch.clone, torch.clone),
    POSITIVE: (torch.log, torch.exp),
    UNIT: (torch.logit, torch.sigmoid),
}


@dataclass(frozen=True, eq=False)
class Options:
    """How a tensor of weights becomes random.

    Args:
        posterior: a template.
        prior: a prior; its values may be the words "learned", "tied" and "optimal".
        estimator: of the KL.
        initial_std: of a weight, relative to the spread of its tensor.
        pretrained: whether the prior is centred on the network's weights too.
        signs: what a posterior on the half-line does with the network's signs: "" refuses, "keep" multiplies the
            samples by them, "positive" drops them.
    """

    posterior: Posterior
    prior: Prior
    estimator: Estimator
    initial_std: float = 0.05
    pretrained: bool = False
    signs: str = ""


class RandomTensor(nn.Module):
    """A random tensor of weights, W = f(loc + exp(log_scale) xi), times fixed signs where those are kept.

    Args:
        name: of the tensor in its network, for messages.
        values: the network's own.
        spread: of the tensor, to which `initial_std` is relative.
        options: families, prior and estimator.
        hold: the row that is not random but stays as it is, the padding of an embedding.
    """

    loc: nn.Parameter | None
    log_scale: nn.Parameter
    fixed_loc: Tensor | None
    signs: Tensor | None
    anchor: Tensor | None
    held: Tensor | None

    def __init__(self, name: str, values: Tensor, spread: float, options: Options, hold: int | None = None) -> None:
        super().__init__()
        self.name, self.options, self.hold = name, options, hold
        self.plan: tuple[tuple[Method, ...], Plan] | None = None  # of the pair, which never changes, and the methods
        self.settled: Callable[[Posterior, torch.Generator | None], Tensor] | None = None  # the KL in a compiled graph
        self.register_buffer("held", None if hold is None else values.detach()[hold].clone())
        row, values = options.posterior.row, without_row(values.detach(), hold)
        keep = row.support.lower >= 0 and options.signs == "keep"
        centre = values.abs() if row.support.lower >= 0 else values
        loc, log_scale = initial_values(options.posterior, centre, options.initial_std * spread)
        self.loc = nn.Parameter(loc) if row.form.learned_loc and loc is not None else None
        self.log_scale = nn.Parameter(log_scale)
        whole = log_scale.detach().double()
        self.initial: tuple[float, float] | None = float(whole.mean()), float(whole.std(correction=0))  # of log_scale
        self.register_buffer("fixed_loc", loc if not row.form.learned_loc else None)
        self.register_buffer("signs", torch.where(values < 0, -1.0, 1.0).to(values) if keep else None)
        self.register_buffer("anchor", values.clone() if options.pretrained else None)
        self.learned = nn.ParameterDict()
        self._learn(options.prior)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "plan": None}  # it holds functions, and is made again

    @property
    def posterior(self) -> Posterior:
        """The posterior with its present parameters; its weights are the magnitudes where signs are kept."""
        learned: dict[str, Any] = {"log_scale": self.log_scale}
        if self.loc is not None:
            learned["loc"] = self.loc
        fixed = dict(self.options.posterior.fixed)
        if self.fixed_loc is not None:
            fixed["loc"] = self.fixed_loc
        return self.options.posterior.bind(validate=False, fixed=fixed, **learned)

    def prior(self, q: Posterior) -> Prior:
        """The prior with its present parameters."""
        prior, device = self.options.prior, self.log_scale.device
        values: dict[str, Number] = {n: t.to(device) for n, t in prior.tensors.items() if t.device != device}
        if self.anchor is not None:
            values["loc"] = self.anchor
        for name, free in self.learned.items():
            assert prior.row is not None
            constraint = next(p.constraint for p in prior.row.parameters if p.name == name)
            values[name] = FREE[constraint][1](free)
        if prior.words.get("loc") == "tied":
            values["loc"] = q.loc
        for name, word in prior.words.items():
            if word == "optimal":  # a minimum: its own gradient is zero, so the KL's does not go through it
                assert prior.row is not None
                with torch.no_grad():
                    values[name] = prior.row.optimal[name](q, {**prior.values, **values})
        return prior.filled(**values) if values else prior

    def adopt(self, prior: Prior, pretrained: bool, signs: str) -> None:
        """Take a prior that comes with a state, which then fills in its tensors."""
        kept = {name: t for name, t in self.options.prior.tensors.items() if t.requires_grad}
        with torch.no_grad():  # a tensor that somebody learns stays the one that is learned
            same = {n: kept[n].copy_(t) for n, t in prior.tensors.items() if n in kept and kept[n].shape == t.shape}
        self.options = replace(self.options, prior=prior.filled(**same), pretrained=pretrained, signs=signs)
        self.plan = None
        self.anchor = torch.empty_like(self.log_scale).detach() if pretrained else None
        keep = self.options.posterior.row.support.lower >= 0 and signs == "keep"
        self.signs = torch.empty_like(self.log_scale).detach() if keep else None
        self._learn(self.options.prior)

    def _learn(self, prior: Prior) -> None:
        """A parameter for every value of the prior that is learned."""
        wanted = [name for name, word in prior.words.items() if word == "learned"]
        constants = {p.name: p for p in prior.row.parameters} if prior.row is not None else {}
        for name in set(self.learned) - set(wanted):
            del self.learned[name]
        for name in wanted:
            if name not in self.learned:
                first = torch.tensor(constants[name].default, dtype=self.log_scale.dtype, device=self.log_scale.device)
                self.learned[name] = nn.Parameter(FREE[constants[name].constraint][0](first))

    def divergence(self, estimator: Estimator | None = None, generator: torch.Generator | None = None) -> Tensor:
        """KL(q || p) of this tensor, in float64; not checked for overflow, which `check` does."""
        p = self.prior(q := self.posterior)
        return apply_plan(self.planned(q, p), q, p, estimator or self.options.estimator, generator, transformed())

    def planned(self, q: Posterior, p: Prior) -> Plan:
        """The plan of the pair, made once for a table of methods."""
        methods = tuple(METHODS.values())  # to which users may add
        if self.plan is None or self.plan[0] != methods:
            self.plan = methods, plan_pair(q, p)
        return self.plan[1]

    def fixed_products(self) -> Fixed | None:
        """The products and the constant of the KL, where they are the same at every step."""
        p = self.prior(q := self.posterior)
        return fixed_products(self.planned(q, p), q, p, self.options.estimator)

    def check(self, value: Tensor) -> None:
        """Say what is wrong where the KL is not finite."""
        p = self.prior(q := self.posterior)
        try:
            check_finite(plan_pair(q, p), q, p, value)
        except McreparError as error:
            raise error.within(self.name) from None

    @property
    def noise_distribution(self) -> Noise:
        """The distribution of xi."""
        q = self.options.posterior
        return q.row.noise(q.fixed, self.log_scale.numel())

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """A fresh xi in the layout of the weights."""
        rho, noise = self.log_scale, self.noise_distribution
        return laid_out(noise.draw(1, rho.numel(), dtype=rho.dtype, device=rho.device, generator=generator)[0], rho)

    def draw(self, generator: torch.Generator | None = None, member: int = 0) -> Tensor:
        """Fresh weights, differentiable in the learned parameters; there is one member only."""
        if transformed():  # what is saved for the backward is then torch's choice
            v = self.log_scale.exp() * self.noise(generator)
            return self.whole(self.options.posterior.form.outer.apply(v if self.centre is None else self.centre + v))
        with torch.no_grad():
            moved = self.noise(generator).mul_(self.log_scale.exp())
        return self.moved_by(moved)

    def moved_by(self, moved: Tensor) -> Tensor:
        """The weights f(loc + moved) for moved = scale * xi, which is all that is saved for backward."""
        v = _Moved.apply(self.centre, self.log_scale, moved)  # type: ignore[no-untyped-call]
        return self.whole(self.options.posterior.form.outer.apply(v))

    @property
    def shape(self) -> torch.Size:
        """Of the network's tensor."""
        rows, *rest = self.log_scale.shape or (0,)
        return self.log_scale.shape if self.hold is None else torch.Size((rows + 1, *rest))

    @property
    def centre(self) -> Tensor | None:
        """The location, learned or fixed."""
        loc = self._parameters.get("loc")  # a module's own way is slow
        if loc is not None:
            return loc
        fixed: Tensor | None = self._buffers.get("fixed_loc")
        return getattr(self, "loc", None) if fixed is None else fixed  # a replica's parameters are attributes

    def mean(self) -> Tensor:
        """E W; the median where no mean exists."""
        return self.whole(self.mean_of_random())

    def mean_of_random(self) -> Tensor:
        """The same of the random numbers, before stored signs are applied and a fixed row is inserted."""
        q = self.posterior
        mean = q.mean.expand(q.shape)
        known = q.form.outer is IDENTITY and q.noise.finite(1.0)  # without asking a device for the values
        if known or bool(mean.isfinite().all()):
            return mean
        return torch.where(mean.isfinite(), mean, q.weights(torch.full_like(q.log_scale, median(q.noise))))

    @property
    def tensors(self) -> list[RandomTensor]:
        """The tensors of random numbers, itself."""
        return [self]

    def whole(self, w: Tensor) -> Tensor:
        """The full weight tensor: re-apply the stored signs and re-insert the fixed padding row."""
        w = w if self.signs is None else w * self.signs
        if self.held is None:
            return w
        if transformed():
            return torch.cat([w[: self.hold], self.held.unsqueeze(0), w[self.hold :]])
        whole: Tensor = _WithRow.apply(w, self.held, self.hold)  # type: ignore[no-untyped-call]
        return whole

    def extra_repr(self) -> str:
        """Families and size."""
        o = self.options
        return f"{o.posterior.name} || {o.prior.name}, {tuple(self.log_scale.shape)}"


def initial_values(q: Posterior, centre: Tensor, std: float) -> tuple[Tensor | None, Tensor]:
    """loc and log_scale with which the mean of a weight is `centre` and its standard deviation `std`.

    Families with one learned parameter meet the mean (a location that is fixed meets it, the scale the standard
    deviation); the median stands for a mean, and `scale` for a standard deviation, that does not exist.
    """
    noise, form = q.row.noise(q.fixed, centre.numel()), q.form
    least = torch.finfo(centre.dtype).tiny
    if form.outer is LOG:  # w = log scale + log xi
        return None, centre - noise.moment(Monomial(0.0, 1))
    magnitude = centre.abs().clamp_min(max(q.row.support.lower, 0.0) + max(std, least))
    if form.outer is EXP and form.learned_loc:  # log-normal with this mean and standard deviation
        variance = torch.log1p((std / magnitude) ** 2)
        return magnitude.log() - variance / 2, variance.log() / 2
    if form.outer is EXP:  # the median: E exp(scale xi) of a large weight has no variance
        return None, (magnitude.log() / median(noise)).log()
    if noise.positive:
        first = noise.moment(Monomial(1.0))
        return None, (magnitude / (first if math.isfinite(first) else median(noise))).log()
    second = noise.moment(Monomial(2.0))
    unit = math.sqrt(second) if math.isfinite(second) else 1.0
    return centre.clone(), torch.full_like(centre, math.log(max(std, least) / unit))


@lru_cache(maxsize=64)
def median(noise: Noise) -> float:
    """The median of xi, 0 by symmetry or from fixed draws: its quantile is 1/2 with a standard error of 0.0016."""
    if noise.symmetric:
        return 0.0
    generator = torch.Generator().manual_seed(0)
    return float(noise.draw(1, 100_001, dtype=torch.float64, device="cpu", generator=generator).median())


def laid_out(row: Tensor, reference: Tensor) -> Tensor:
    """A row of iid numbers in the shape and memory layout of `reference`, without a copy."""
    return unflat(row, reference.shape, memory_order([reference]))


class _Moved(torch.autograd.Function):
    """loc + moved, moved = exp(log_scale) xi, which is all that is saved for backward."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor | None, log_scale: Tensor, moved: Tensor) -> Tensor:
        ctx.save_for_backward(moved)
        ctx.log_scale = log_scale  # only its derivative is used: it may be changed in place before the backward
        return moved.clone() if loc is None else loc + moved

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (moved,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives: a factor of 1 with the derivative of exp(log_scale)
            moved = moved * torch.exp(ctx.log_scale - ctx.log_scale.detach())
        return (grad if ctx.needs_input_grad[0] else None), grad * moved, None


class _WithRow(torch.autograd.Function):
    """The random rows and the one that is held; a sparse gradient, as of nn.Embedding(sparse=True), becomes dense."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, row: Tensor, place: int) -> Tensor:
        ctx.place = place
        return torch.cat([w[:place], row.unsqueeze(0), w[place:]])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return without_row(grad.to_dense() if grad.is_sparse else grad, ctx.place), None, None


def without_row(values: Tensor, row: int | None) -> Tensor:
    """The rows of a tensor but one.

    >>> without_row(torch.tensor([1, 2, 3]), 1)
    tensor([1, 3])
    """
    return values if row is None else torch.cat([values[:row], values[row + 1 :]])


def random_tensors(bnn: BayesianModule) -> dict[tuple[str, ...], RandomTensor | RankOne]:
    """The random tensors of a network, by all names that the network gives them."""
    found: Any = bnn.latents
    return {bnn.names[key]: tensor for key, tensor in found.items()}


def named(made: Iterable[tuple[tuple[str, ...], Tensor]]) -> dict[str, Tensor]:
    """Tensors by each of their names."""
    return {name: w for names, w in made for name in names}


def each_named(bnn: BayesianModule, make: Callable[[RandomTensor | RankOne], Tensor]) -> dict[str, Tensor]:
    """What is made of every random tensor of a network, by all of its names."""
    return named((names, make(tensor)) for names, tensor in random_tensors(bnn).items())
