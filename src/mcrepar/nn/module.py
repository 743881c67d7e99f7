"""Any nn.Module, Bayesian: its weights are drawn, and its forward runs on the draw."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mcrepar.errors import McreparError, MethodError, ParameterError
from mcrepar.families.foreign import as_prior
from mcrepar.families.posterior import Posterior
from mcrepar.families.posteriors import posterior as posterior_of
from mcrepar.families.priors import prior as prior_of
from mcrepar.kl.checks import wide_dtype
from mcrepar.kl.estimator import Estimator
from mcrepar.kl.plan import plan_pair
from mcrepar.nn import forward as forwards
from mcrepar.nn.calibration import Calibration
from mcrepar.nn.emptied import Lock, empty, forget, unguarded
from mcrepar.nn.latent import Latent, Options, check_signs
from mcrepar.nn.selection import Overrides, Place, Select, check_overrides, options_of, selected, spread

OPTIONS = ("posterior", "prior", "kl_method", "n_mc_iter", "start_std", "pretrained", "signs")
Draw = Mapping[str, Tensor]

_FROZEN: ContextVar[tuple[tuple[int, Draw], ...]] = ContextVar("frozen draws of this thread", default=())


class BayesianModule(nn.Module):
    """A network whose selected weights are random; made by `bayesian`.

    `forward` returns the network's own output for one fresh draw of all weights. The network's own tensors are emptied,
    so that no weight is stored twice.
    """

    def __init__(self, net: nn.Module, chosen: list[tuple[Place, Options]], forward: str = "weights") -> None:
        super().__init__()
        self.net = net
        self.mode = forward
        self.latents = nn.ModuleDict()
        self.names: dict[str, tuple[str, ...]] = {}
        for place, options in chosen:
            key = place.name.replace(".", "/")  # a ModuleDict takes no dots
            self.latents[key] = Latent(place.name, place.parameter, spread(place), options, place.held)
            self.names[key] = place.names
        self.second = empty(net, (place for place, _ in chosen))
        self.calibration = Calibration(net)
        self._lock = Lock()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output for one fresh draw, or for the frozen one."""
        frozen = self._frozen()
        if frozen is not None:
            return self.run(frozen, *args, **kwargs)
        return forwards.FORWARDS[self.mode](self, args, kwargs)

    def run(self, draw: Draw, *args: Any, **kwargs: Any) -> Any:
        """The network's output for the given weights (and norm statistics)."""
        if torch.compiler.is_compiling():  # a graph has no lock, and takes the draw as its input
            return self.swapped(draw, args, kwargs)
        with self._lock:  # for the network's tensors are swapped
            try:
                return self.swapped(draw, args, kwargs)
            finally:
                forget(self.net)

    def swapped(self, draw: Draw, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The same for a caller that holds the lock."""
        slots = {name: w for name, w in draw.items() if name not in self.second}
        return functional_call(self.net, slots, args, dict(kwargs))

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """A fresh draw of all weights, by the names the network gives them."""
        return self._named({key: latent.draw(generator) for key, latent in self._latents()})

    def mean(self) -> dict[str, Tensor]:
        """The means of all weights; the median where no mean exists."""
        return self._named({key: latent.mean() for key, latent in self._latents()})

    @contextlib.contextmanager
    def frozen(self, draw: str | Draw = "mean") -> Iterator[BayesianModule]:
        """A context in which the network is deterministic: at the mean of its weights, or at a draw.

        >>> bnn = bayesian(nn.Linear(2, 1))
        >>> with bnn.frozen("mean"):
        ...     torch.equal(bnn(torch.ones(1, 2)), bnn(torch.ones(1, 2)))
        True
        """
        weights = self.complete(draw)
        token = _FROZEN.set((*_FROZEN.get(), (id(self), weights)))
        try:
            yield self
        finally:
            _FROZEN.reset(token)

    def complete(self, draw: str | Draw = "mean") -> dict[str, Tensor]:
        """A draw (or "mean", or "draw" for a fresh one) with the norm statistics that belong to it."""
        if isinstance(draw, str):
            if draw not in ("mean", "draw"):
                raise MethodError(f"frozen({draw!r})", "it is neither 'mean' nor 'draw'", "'mean', or bnn.draw()")
            draw = self.mean() if draw == "mean" else self.draw()
        missing = [name for names in self.names.values() for name in names if name not in draw]
        if missing:
            raise ParameterError("a frozen draw", f"it has no {missing[0]}", "bnn.draw(), whole")
        return {**draw, **self.calibration.statistics(self, draw)}

    def calibrate(self, *args: Any, **kwargs: Any) -> BayesianModule:
        """Keep a batch of training data, on which norm layers recompute their statistics for every frozen draw."""
        self.calibration.keep(args, kwargs)
        return self

    def to_module(self, draw: str | Draw = "mean") -> nn.Module:
        """An ordinary module that holds the mean or one draw, for export."""
        weights = {name: t.detach().clone() for name, t in self.complete(draw).items()}
        with self._lock:
            plain = copy.deepcopy(self.net)
        for name, tensor in weights.items():
            path, _, last = name.rpartition(".")
            owner = plain.get_submodule(path)
            if last in owner._buffers:
                owner._buffers[last] = tensor
            else:
                owner._parameters[last] = nn.Parameter(tensor)
        for names in self.names.values():  # tied weights stay tied
            first = plain.get_parameter(names[0])
            for name in names[1:]:
                path, _, last = name.rpartition(".")
                plain.get_submodule(path)._parameters[last] = first
        return unguarded(plain).train(self.training)

    def kl(
        self,
        method: str | None = None,
        n_mc_iter: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The sum of KL(q || p) over all random tensors, in nats."""
        estimator = None if method is None and n_mc_iter is None else Estimator(method or "auto", n_mc_iter)
        latents = [latent for _, latent in self._latents()]
        parts = [latent.divergence(estimator, generator) for latent in latents]
        total = torch.stack(parts).sum()
        if not bool(torch.isfinite(total)):
            for latent, part in zip(latents, parts, strict=True):
                latent.check(part)
        return total.to(wide_dtype(latents[0].log_scale.dtype))

    def _latents(self) -> Iterator[tuple[str, Latent]]:
        for key, latent in self.latents.items():
            assert isinstance(latent, Latent)
            yield key, latent

    def _named(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: w for key, w in weights.items() for name in self.names[key]}

    def _frozen(self) -> Draw | None:
        return next((draw for owner, draw in reversed(_FROZEN.get()) if owner == id(self)), None)


def random_parts(net: object) -> list[BayesianModule]:
    """Every Bayesian part, once: of a wrapper, of layers put together by hand, or the network itself."""
    parts = [m for m in net.modules() if isinstance(m, BayesianModule)] if isinstance(net, nn.Module) else []
    if not parts:
        raise ParameterError(f"the KL of {type(net).__name__}", "nothing in it is Bayesian", "mcrepar.bayesian(net)")
    return parts


def total_kl(
    net: object,
    method: str | None = None,
    n_mc_iter: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The sum of KL(q || p) over every Bayesian part of a network; what `mcrepar.kl` calls."""
    return torch.stack([part.kl(method, n_mc_iter, generator) for part in random_parts(net)]).sum()


def bayesian(
    net: nn.Module,
    posterior: str | Posterior = "radial",
    prior: object = "normal",
    kl_method: str = "auto",
    n_mc_iter: int | None = None,
    *,
    start_std: float = 0.05,
    pretrained: bool = False,
    select: Select = None,
    overrides: Overrides | None = None,
    forward: str = "weights",
    signs: str = "",
) -> BayesianModule:
    """A network with random weights, W = f(loc + scale * xi), whose means are the network's own weights.

    Args:
        net: any nn.Module; it is taken over, its selected tensors are emptied.
        posterior: a name of `POSTERIORS` or a template such as posterior("gamma", concentration=2.5).
        prior: a name of `PRIORS`, a prior, or any torch.distributions object.
        kl_method: auto, exact, stats, repar, stream, regen, quad, taylor or direct.
        n_mc_iter: M, the number of Monte Carlo iterations of the KL.
        start_std: start value of the standard deviation of a weight, relative to the spread of its tensor.
        pretrained: centre the priors on the network's weights too (MOPED).
        select: which parameters, a callable(name, parameter) or patterns; None is all but those of norm layers.
        overrides: other options for some, by name pattern, module type or module.
        forward: how a draw enters the forward: weights, local, flipout or per_example.
        signs: what a posterior on the half-line does with the network's signs: "keep" or "positive".

    >>> bnn = bayesian(nn.Linear(3, 2), posterior="radial", prior="normal")
    >>> bnn(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """
    if not isinstance(net, nn.Module):
        raise ParameterError(f"bayesian({type(net).__name__})", "it is not an nn.Module", "a network")
    if any(isinstance(module, BayesianModule) for module in net.modules()):
        raise ParameterError("bayesian(net)", "a part of it is Bayesian already", "a plain network")
    if forward not in forwards.FORWARDS:
        raise MethodError(f"forward={forward!r}", "there is no such forward", " or ".join(map(repr, forwards.FORWARDS)))
    given = {"posterior": posterior, "prior": prior, "kl_method": kl_method, "n_mc_iter": n_mc_iter,
             "start_std": start_std, "pretrained": pretrained, "signs": signs}  # fmt: skip
    places = selected(net, select)
    check_overrides(places, overrides or {}, OPTIONS)
    chosen = [(place, _options({**given, **options_of(place, overrides or {})})) for place in places]
    for place, options in chosen:
        _check(place, options, forward)
    _check_optimizers(places)
    return BayesianModule(net, chosen, forward)


def _options(given: Mapping[str, Any]) -> Options:
    """Strings stop here: objects from what the user typed."""
    q, p = given["posterior"], given["prior"]
    if not given["start_std"] > 0:
        raise ParameterError(f"start_std={given['start_std']}", "it is not positive", "a number such as 0.05")
    if given["signs"] not in ("", "keep", "positive"):
        raise ParameterError(f"signs={given['signs']!r}", "there is no such choice", "'keep' or 'positive'")
    q = posterior_of(q) if isinstance(q, str) else q
    p = prior_of(p) if isinstance(p, str) else as_prior(p)
    if not isinstance(q, Posterior):
        raise ParameterError(f"a posterior of type {type(q).__name__}", "it has no noise", "posterior(name, ...)")
    return Options(
        q, p, Estimator(given["kl_method"], given["n_mc_iter"]), given["start_std"], given["pretrained"], given["signs"]
    )


def _check(place: Place, options: Options, forward: str) -> None:
    """Every refusal before any tensor is touched, with the name of the parameter."""
    p = options.prior
    try:
        if options.pretrained and "loc" not in p.values:
            raise MethodError(f"pretrained=True with prior {p.name!r}", "it has no loc to centre", "prior='normal'")
        plan = plan_pair(options.posterior, p.filled(loc=torch.zeros(1)) if options.pretrained else p)
        plan.choose(options.estimator)
        check_signs(place.name, place.parameter, options)
        forwards.check(forward, options.posterior, place)
    except McreparError as error:
        raise type(error)(f"{place.name}: {error.asked}", error.why, error.instead) from None


def _check_optimizers(places: list[Place]) -> None:
    """Refuse to empty tensors that an optimizer goes on training."""
    ours = {id(place.parameter): place.name for place in places}
    kinds = {torch.optim.Optimizer}
    while more := {kind for known in kinds for kind in known.__subclasses__()} - kinds:
        kinds |= more
    for item in gc.get_referrers(*kinds):  # an instance refers to its class
        if type(item) not in kinds:
            continue
        for group in item.param_groups:
            held = next((ours[id(p)] for p in group["params"] if id(p) in ours), None)
            if held is not None:
                raise ParameterError(
                    "bayesian(net)",
                    f"an optimizer that was built before holds {held}, which becomes random",
                    "bayesian(net) first, then an optimizer of bnn.parameters()",
                )
