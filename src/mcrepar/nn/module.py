"""Any nn.Module, Bayesian: its weights are drawn, and its forward runs on the draw."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mcrepar.distributions.posterior import Posterior
from mcrepar.divergence.methods import Estimator, wide_dtype
from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn.arguments import check_draw, check_optimizers, check_place, check_structure, chosen_options
from mcrepar.nn.calibration import Calibration
from mcrepar.nn.emptied import Slots, plain_copy
from mcrepar.nn.forward import FORWARDS
from mcrepar.nn.latent import Latent, Options
from mcrepar.nn.rank1 import RankOne, rank_one, with_factors
from mcrepar.nn.recompute import Region, remember_as, running
from mcrepar.nn.selection import Overrides, Place, Select, selected, spread
from mcrepar.nn.state import packed, unpack
from mcrepar.nn.threads import Lock, note_training, own_mode

if TYPE_CHECKING:
    from mcrepar.nn.diagnose import Diagnosis

Draw = Mapping[str, Tensor]
Random = Latent | RankOne

_FROZEN: ContextVar[tuple[tuple[ref[BayesianModule], Draw], ...]] = ContextVar("frozen draws", default=())


class BayesianModule(nn.Module):
    """A network whose selected weights are random; made by `bayesian`.

    `forward` returns the network's own output for one fresh draw of all weights. The network's own tensors are emptied,
    so that no weight is stored twice.

    >>> bnn = bayesian(nn.Linear(2, 1))
    >>> {name: tuple(w.shape) for name, w in bnn.draw().items()}
    {'weight': (1, 2), 'bias': (1,)}
    >>> type(bnn.to_module("mean")).__name__, bool(bnn.kl() > 0)
    ('Linear', True)
    """

    def __init__(
        self, net: nn.Module, chosen: list[tuple[Place, Options]], forward: str = "weights", members: int = 0
    ) -> None:
        super().__init__()
        self.net, self.mode = net, forward
        self.members = members  # of multiplicative noise; 0 where the weights themselves are random
        self.latents = nn.ModuleDict()
        self.names: dict[str, tuple[str, ...]] = {}
        for place, options in chosen:
            key = place.name.replace(".", "/")  # a ModuleDict takes no dots
            while hasattr(self.latents, key):  # nor the names of its methods, and "a/b" beside "a.b" is another
                key += "_"
            whole = place.name, place.parameter, spread(place), options, place.held
            self.latents[key] = RankOne(place, options, members) if members else Latent(*whole)
            self.names[key] = place.names
        self.slots = Slots(net, [place for place, _ in chosen])
        self.calibration = Calibration(net)
        self._lock = Lock()

    def __repr__(self) -> str:
        with self._lock, self.slots.shown():
            return super().__repr__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output for one fresh draw, or for the frozen one."""
        frozen = self._frozen()
        if not torch.compiler.is_compiling():
            note_training(self, self._lock)
        if frozen is not None:
            if not torch.compiler.is_compiling():
                remember_as(copy_context().run)
            return self.run(frozen, *args, **kwargs)
        return rank_one(self, args, kwargs) if self.members else FORWARDS[self.mode](self, args, kwargs)

    def run(self, draw: Draw, *args: Any, **kwargs: Any) -> Any:
        """The network's output for the given weights (and norm statistics)."""
        if torch.compiler.is_compiling():  # a graph has no lock, and takes the draw as its input
            return self.swapped(draw, args, kwargs)
        with self.alone(), running(partial(self._again, draw)):
            return self.swapped(draw, args, kwargs)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no other thread runs the network, whose tensors are swapped and modes set meanwhile."""
        with self._lock, own_mode(self):
            yield

    def train(self, mode: bool = True) -> BayesianModule:
        """The same as of any module, but not while another thread runs the network."""
        with self._lock:
            return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> BayesianModule:
        """A copy, which is frozen where this network is, for as long."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        with self._lock:  # no other thread is inside a forward, with a draw in the network
            vars(twin).update(copy.deepcopy(vars(self), memo))
        frozen = self._frozen()
        if frozen is not None:
            _FROZEN.set((*_FROZEN.get(), (ref(twin), frozen)))  # the context that froze this network takes both back
        return twin

    def swapped(self, draw: Draw, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The same for a caller that holds the lock."""
        slots = {name: w for name, w in draw.items() if name not in self.slots.second}
        run = partial(functional_call, self.net, slots, args, dict(kwargs), tie_weights=False)  # all names are there
        if torch.compiler.is_compiling():
            return run()
        self.slots.check(self.net)
        try:
            return run()
        finally:
            self.slots.forget()

    def _again(self, draw: Draw, region: Callable[..., Any], *args: Any) -> None:
        """Run a part of the network once more on the same weights."""
        slots = {f"net.{name}": w for name, w in draw.items() if name not in self.slots.second}
        with self.alone():
            try:
                functional_call(Region(self.net, region), slots, args, tie_weights=False)
            finally:
                self.slots.forget()

    def draw(self, generator: torch.Generator | None = None, member: int | None = None) -> dict[str, Tensor]:
        """A fresh draw of all weights, by the names the network gives them; of any member, or of the one asked for."""
        if self.members > 1:
            where = None if generator is None else generator.device
            chosen = (
                int(torch.randint(self.members, (), generator=generator, device=where)) if member is None else member
            )
            return self._named({k: t.draw(generator, chosen) for k, t in self._latents() if isinstance(t, RankOne)})
        return self._named({key: latent.draw(generator) for key, latent in self._latents()})

    def mean(self) -> dict[str, Tensor]:
        """The means of all weights; the median where no mean exists."""
        return self._named({key: latent.mean() for key, latent in self._latents()})

    @contextlib.contextmanager
    def frozen(self, draw: str | Draw = "mean") -> Iterator[BayesianModule]:
        """A context in which the network is deterministic: at the mean of its weights, or at a draw.

        A backward belongs inside it too where torch.utils.checkpoint(..., use_reentrant=True) runs the network again.

        >>> bnn = bayesian(nn.Linear(2, 1))
        >>> with bnn.frozen("mean"):
        ...     torch.equal(bnn(torch.ones(1, 2)), bnn(torch.ones(1, 2)))
        True
        """
        with self.holding(self.complete(draw)):
            yield self

    @contextlib.contextmanager
    def holding(self, weights: Draw) -> Iterator[None]:
        """The same for weights (and norm statistics) that are taken as they are."""
        token = _FROZEN.set((*_FROZEN.get(), (ref(self), weights)))
        try:
            yield
        finally:
            _FROZEN.reset(token)

    def complete(self, draw: str | Draw = "mean") -> dict[str, Tensor]:
        """A draw (or "mean", or "draw" for a fresh one) with the norm statistics that belong to it."""
        if isinstance(draw, str):
            if draw not in ("mean", "draw"):
                raise MethodError(f"the weights {draw!r}", "it is neither 'mean' nor 'draw'", "'mean', or bnn.draw()")
            draw = self.mean() if draw == "mean" else self.draw()
        check_draw(draw, self.random, self.net)
        fixed = {name: w.detach() for name, w in draw.items()}
        with self.alone():
            found = self.calibration.statistics(
                self.net, lambda fresh, args, kwargs: self.run({**fixed, **fresh}, *args, **kwargs)
            )
        return {**draw, **found}

    def calibrate(self, *args: Any, **kwargs: Any) -> BayesianModule:
        """Hold a batch of training data in memory, on which norm layers find the statistics of every frozen draw.

        What state_dict and save store are statistics pooled over 32 draws.
        """
        self.calibration.take(args, kwargs, self.complete)
        self.pool_statistics()
        return self

    def pool_statistics(self) -> None:
        """Measure what is stored of norm layers, on the batch that is held; the default RNG is left alone."""
        generator, members = torch.Generator().manual_seed(0), max(self.members, 1)
        self.calibration.pool(self.net, lambda k: self.complete(self.draw(generator, k % members)))

    def to_module(self, draw: str | Draw = "mean") -> nn.Module:
        """An ordinary module that holds the mean or one draw, for export."""
        return self.plain(self.complete(draw))

    def plain(self, weights: Draw) -> nn.Module:
        """The same for weights (and norm statistics) that are taken as they are."""
        with self._lock:
            self.slots.check(self.net)
            return plain_copy(self.net, weights, self.names.values())

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

    def diagnose(self, x: Any = None, **options: Any) -> Diagnosis:
        """Did the posterior learn? How far scales moved, signal-to-noise, what is at the prior; printed it is prose.

        Args:
            x: a batch on which the mutual information is estimated, with likelihood=... (as `predict` takes both).
            options: likelihood, draws=32, generator, output; for the mutual information.
        """
        from mcrepar.nn.diagnose import diagnosis

        return diagnosis(self, x, **options)

    @property
    def random(self) -> dict[tuple[str, ...], Random]:
        """The random tensors, by all names the network gives them."""
        return {self.names[key]: latent for key, latent in self._latents()}

    def get_extra_state(self) -> Tensor:
        """The priors and pooled norm statistics, for `state_dict`."""
        return packed(self.random, self.calibration)

    def set_extra_state(self, state: object) -> None:
        """What `load_state_dict` brings; estimators and the forward stay as this network has them."""
        unpack(self.random, self.calibration, state)

    def _latents(self) -> Iterator[tuple[str, Random]]:
        for key, latent in self.latents.items():
            assert isinstance(latent, Latent | RankOne)
            yield key, latent

    def _named(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: w for key, w in weights.items() for name in self.names[key]}

    def _frozen(self) -> Draw | None:
        return next((draw for owner, draw in reversed(_FROZEN.get()) if owner() is self), None)


def random_parts(net: object, asked: str = "the KL of") -> list[BayesianModule]:
    """Every Bayesian part, once: of a wrapper, of layers put together by hand, or the network itself."""
    parts = [m for m in net.modules() if isinstance(m, BayesianModule)] if isinstance(net, nn.Module) else []
    if not parts:
        raise ParameterError(f"{asked} {type(net).__name__}", "nothing in it is Bayesian", "mcrepar.bayesian(net)")
    return parts


def kl(
    net: object,
    method: str | None = None,
    n_mc_iter: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The sum of KL(q || p) over every Bayesian part of a network, in nats.

    Args:
        net: a Bayesian network, or one that holds Bayesian parts; a part that is used twice counts once.
        method: instead of the one chosen when the network was made.
        n_mc_iter: likewise.
        generator: the source of the noise, of any device; None is the default RNG.

    >>> part = bayesian(nn.Linear(2, 2))
    >>> bool(kl(nn.Sequential(part, nn.ReLU(), part)) == part.kl())
    True
    """
    return torch.stack([part.kl(method, n_mc_iter, generator) for part in random_parts(net)]).sum()


def bayesian(
    net: nn.Module,
    posterior: str | Posterior | None = None,
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
    structure: str = "weights",
    members: int = 1,
) -> BayesianModule:
    """A network with random weights, W = f(loc + scale * xi), whose means are the network's own weights.

    With structure="rank1" the weights are Wbar o (r s^T): Wbar is learned as in an ordinary network, and the random
    factors r and s are one number per output and per input unit of a layer, near 1.

    Args:
        net: any nn.Module; it is taken over, its selected tensors are emptied.
        posterior: a name of `POSTERIORS` or a template such as posterior("gamma", concentration=2.5); None is "radial"
            for weights and "normal" for factors.
        prior: a name of `PRIORS`, a prior, or any torch.distributions object; over factors a name means one around 1.
        kl_method: auto, exact, stats, repar, stream, regen, quad, taylor or direct.
        n_mc_iter: M, the number of Monte Carlo iterations of the KL.
        start_std: start value of the standard deviation of a weight, relative to the spread of its tensor.
        pretrained: centre the priors on the network's weights too (MOPED).
        select: which parameters, a callable(name, parameter) or patterns; None is all but those of norm layers.
        overrides: other options for some, by name pattern, module type or module.
        forward: how a draw enters the forward: weights, local, flipout or per_example; local gives the positions of one
            datum (of an image, of a sequence) independent noise.
        signs: what a posterior on the half-line does with the network's signs: "keep" or "positive".
        structure: what is random: "weights", or "rank1" factors of the outputs and inputs of dense and convolutional
            layers, of which every example has its own in training, and every draw one.
        members: how many posteriors of the factors there are; an example or a draw uses one, and the KL is their mean.

    >>> bnn = bayesian(nn.Linear(3, 2), posterior="radial", prior="normal")
    >>> bnn(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """
    if not isinstance(net, nn.Module):
        raise ParameterError(f"bayesian({type(net).__name__})", "it is not an nn.Module", "a network")
    if any(isinstance(module, BayesianModule) for module in net.modules()):
        raise ParameterError("bayesian(net)", "a part of it is Bayesian already", "a plain network")
    members, factored = check_structure(forward, structure, members)
    posterior = posterior or ("normal" if factored else "radial")
    given = {"posterior": posterior, "prior": prior, "kl_method": kl_method, "n_mc_iter": n_mc_iter,
             "start_std": start_std, "pretrained": pretrained, "signs": signs}  # fmt: skip
    places = with_factors(selected(net, select), select is not None) if factored else selected(net, select)
    chosen = chosen_options(places, given, overrides, factored)
    for place, options in chosen:
        check_place(place, options, forward, factored)
    check_optimizers(places)
    return BayesianModule(net, chosen, forward, members if factored else 0)
