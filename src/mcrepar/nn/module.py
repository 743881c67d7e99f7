"""Any nn.Module, Bayesian: its weights are drawn, and its forward runs on the sample."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mcrepar import checks
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.random import transformed
from mcrepar.divergence.methods import METHODS, Estimator, wide_dtype
from mcrepar.errors import McreparError, ParameterError
from mcrepar.nn.calibration import Calibration, any_member, complete, pool_statistics
from mcrepar.nn.checkpointing import remember_as
from mcrepar.nn.description import packed, unpack
from mcrepar.nn.forwards import FORWARDS
from mcrepar.nn.forwards.attention import keep_padded
from mcrepar.nn.forwards.auto import noise_of_examples
from mcrepar.nn.groups import Groups, refuse_shards
from mcrepar.nn.locks import note_training
from mcrepar.nn.options import check_place, check_structure, chosen_options
from mcrepar.nn.random_tensor import Options, RandomTensor, each_named, random_tensors
from mcrepar.nn.rank1 import RankOne, axis_of, rank_one, with_factors
from mcrepar.nn.row_divergence import plain_kl, settle
from mcrepar.nn.select import Overrides, Place, Select, selected, spread, watch_optimizers
from mcrepar.nn.swap import Draw, Slots, freeze_copy, frozen_weights, held, plain_copy, run
from mcrepar.validation import check_generator, whole_number

if TYPE_CHECKING:
    from mcrepar.nn.diagnose import Diagnosis


class BayesianModule(nn.Module):
    """A network whose selected weights are random; made by `bayesian`.

    `forward` returns the network's own output for one fresh sample of all weights. The network's own tensors are
    emptied, so that no weight is stored twice.

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
            self.latents[key] = (
                RankOne(place, options, members, axis_of(net, place)) if members else RandomTensor(*whole)
            )
            self.names[key] = place.names
        keep_padded(net, {owner for place, _ in chosen for owner in place.owners})
        self.slots = Slots(net, [place for place, _ in chosen])
        # which weights have noise of their own for every example, and whether a forward has shown it
        self.examplewise, self.tried = noise_of_examples((o.posterior, place) for place, o in chosen), False
        self.unmet: set[str] = set()  # weights that met no layer there
        self.calibration, self.groups = Calibration(net), Groups()
        settle(self)

    def __repr__(self) -> str:
        with self.slots.lock, self.slots.shown():
            return super().__repr__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output for one fresh sample of its weights, or for the frozen one."""
        weights = frozen_weights(self)
        if not torch.compiler.is_compiling():
            note_training(self, self.slots.lock)
            if weights is not None:
                remember_as(copy_context().run)
        if weights is not None:
            return run(self, weights, *args, **kwargs)
        return rank_one(self, args, kwargs) if self.members else FORWARDS[self.mode].run(self, args, kwargs)

    def train(self, mode: bool = True) -> BayesianModule:
        """The same as of any module, but not while another thread runs the network."""
        with self.slots.lock:
            return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> BayesianModule:
        """A copy, which is frozen where this network is, for as long."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        with self.slots.lock:  # no other thread is inside a forward, with a sample in the network
            vars(twin).update(copy.deepcopy(vars(self), memo))
        freeze_copy(self, twin)
        return twin

    def draw(self, generator: torch.Generator | None = None, member: int | None = None) -> dict[str, Tensor]:
        """A fresh sample of all weights, by the names the network gives them.

        Args:
            generator: the source of the noise, of any device; None is the default RNG.
            member: of rank-1 factors, whose sample it is; None is any of them.

        Raises:
            ParameterError: where there is no such member, or `generator` is something else.
        """
        check_generator(generator)
        if member is not None and whole_number("member", member, 0) >= max(self.members, 1):
            there = f"0 to {self.members - 1}" if self.members > 1 else "0"
            raise ParameterError(f"draw(member={member})", "the network has no such member", f"{there}, or None")
        member = any_member(self, generator) if member is None else member
        if transformed():  # which needs no rows
            return each_named(self, lambda tensor: tensor.draw(generator, member))
        layout = self.groups.of(self)
        refuse_shards(layout.tensors)
        drawn = [group.draw(generator) for group in layout.drawn]
        drawn += [dict.fromkeys(names, tensor.draw(generator, member)) for names, tensor in layout.drawn_apart]
        return {name: w for part in drawn for name, w in part.items()}

    def mean(self) -> dict[str, Tensor]:
        """The means of all weights; the median where no mean exists."""
        return each_named(self, lambda tensor: tensor.mean())

    @contextlib.contextmanager
    def frozen(self, draw: str | Draw = "mean") -> Iterator[BayesianModule]:
        """A context in which the network is deterministic: at the mean of its weights, or at a sample.

        A backward belongs inside it too where torch.utils.checkpoint(..., use_reentrant=True) runs the network again.

        >>> bnn = bayesian(nn.Linear(2, 1))
        >>> with bnn.frozen("mean"):
        ...     torch.equal(bnn(torch.ones(1, 2)), bnn(torch.ones(1, 2)))
        True
        """
        with held(self, complete(self, draw)):
            yield self

    def calibrate(self, *args: Any, **kwargs: Any) -> BayesianModule:
        """Hold a batch of training data in memory, on which norm layers find the statistics of every frozen sample.

        What state_dict and save store are statistics pooled over 32 samples of the weights, of every member its own.
        """
        self.calibration.take(args, kwargs, lambda: complete(self))
        pool_statistics(self)
        return self

    def to_module(self, draw: str | Draw = "mean") -> nn.Module:
        """An ordinary module that holds the mean of the weights or one sample, for export."""
        return plain_copy(self, complete(self, draw))

    def kl(
        self,
        method: str | None = None,
        n_mc_iter: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The sum of KL(q || p) over all random tensors, in nats.

        Of several members it is the mean, by convexity a bound on the KL of their mixture.

        Args:
            method: instead of the one chosen when the network was made.
            n_mc_iter: likewise, whatever the method; it is left out where a new method draws nothing.
            generator: the source of the noise, of any device; None is the default RNG.
        """
        check_generator(generator)
        if transformed() and method is None and n_mc_iter is None:
            return plain_kl(self, generator)
        layout = self.groups.of(self)
        summed, apart = layout.summed, layout.summed_apart
        if method is not None or n_mc_iter is not None:
            summed, apart = (), layout.tensors
        with checks.step(self):
            parts = [t.divergence(_requested(t.options.estimator, method, n_mc_iter), generator) for t in apart]
            sums = [group.divergence(generator) for group in summed]
            total = sums[0] if len(sums) == 1 and not parts else torch.stack(sums + parts).sum() / max(self.members, 1)
            known = [t for group in summed for t in group.tensors]
            checks.refuse(
                lambda: ~torch.isfinite(total),
                partial(_infinite, apart, parts, known),
                "the KL is not finite",
                total.detach,
            )
        return total.to(wide_dtype(layout.tensors[0].log_scale.dtype))

    def diagnose(self, x: Any = None, **options: Any) -> Diagnosis:
        """Did the posterior learn? How far scales moved, signal-to-noise, what is at the prior; printed it is prose.

        Args:
            x: a batch on which the mutual information is estimated, with likelihood=... (as `predict` takes both).
            options: likelihood, draws=32, generator, output; for the mutual information.
        """
        from mcrepar.nn.diagnose import diagnosis

        return diagnosis(self, x, **options)

    def get_extra_state(self) -> Tensor:
        """The priors and pooled norm statistics, for `state_dict`."""
        self.calibration.warn_if_stale(self.net)
        return packed(random_tensors(self), self.calibration)

    def set_extra_state(self, state: object) -> None:
        """What `load_state_dict` brings; estimators and the forward stay as this network has them."""
        unpack(random_tensors(self), self.calibration, state)
        settle(self)


def _infinite(apart: Sequence[RandomTensor], parts: Sequence[Tensor], known: Sequence[RandomTensor]) -> McreparError:
    """Which tensor's KL is not finite, and why; of `known` ones it is computed anew."""
    for tensor, part in zip((*apart, *known), (*parts, *(t.divergence() for t in known)), strict=True):
        try:
            tensor.check(part)
        except McreparError as error:
            return error
    return ParameterError("the KL", "its sum over all tensors is not finite", "float64 tensors")


def _requested(own: Estimator, method: str | None, n_mc_iter: int | None) -> Estimator:
    """The estimator of a tensor with what was asked for in the place of its own, each by itself."""
    if method is not None:
        new = Estimator(method).method
        keeps = new not in METHODS or METHODS[new].samples  # auto keeps it
        own = replace(own, method=new, n_mc_iter=own.n_mc_iter if keeps else None)
    return own if n_mc_iter is None else replace(own, n_mc_iter=n_mc_iter)


def random_parts(net: object, asked: str = "the KL of") -> list[BayesianModule]:
    """Every Bayesian part, once: of a wrapper, of layers put together by hand, or the network itself."""
    if isinstance(net, BayesianModule):
        return [net]
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
        net: a Bayesian neural network, or one that holds Bayesian parts; a part that is used twice counts once.
        method: instead of the one chosen when the network was made.
        n_mc_iter: likewise.
        generator: the source of the noise, of any device; None is the default RNG.

    >>> part = bayesian(nn.Linear(2, 2))
    >>> bool(kl(nn.Sequential(part, nn.ReLU(), part)) == part.kl())
    True
    """
    first, *others = [part.kl(method, n_mc_iter, generator) for part in random_parts(net)]
    return torch.stack([first, *others]).sum() if others else first


def bayesian(
    net: nn.Module,
    posterior: str | Posterior = "normal",
    prior: object = None,
    kl_method: str = "auto",
    n_mc_iter: int | None = None,
    *,
    initial_std: float = 0.05,
    pretrained: bool = False,
    select: Select = None,
    overrides: Overrides | None = None,
    forward: str = "auto",
    signs: str = "",
    structure: str = "weights",
    members: int = 1,
    start_std: float | None = None,
) -> BayesianModule:
    """A network with random weights, W = f(loc + scale * xi), whose means are the network's own weights.

    With structure="rank1" the weights are Wbar o (r s^T): Wbar is learned as in an ordinary network, and the random
    factors r and s are one number per output and per input unit of a layer, near 1.

    Args:
        net: any nn.Module; it is taken over, its selected tensors are emptied.
        posterior: a name of `POSTERIORS` or a template such as posterior("gamma", concentration=2.5).
        prior: a name of `PRIORS`, a prior, or any torch.distributions object; over factors a name means one around 1.
            None is prior("hierarchical", scale=0.3, loc_scale=3.0, relative="fan_in"), which keeps noise small
            against the weights so that the whole KL does not underfit; with pretrained=True and over factors "normal".
        kl_method: auto, exact, stats, repar, stream, regen, quad, taylor or direct.
        n_mc_iter: M, the number of Monte Carlo iterations of the KL.
        initial_std: initial standard deviation of a weight, relative to the spread of its tensor.
        pretrained: centre the priors on the network's weights too (MOPED).
        select: which parameters, a callable(name, parameter) or patterns; None is all but those of norm layers.
        overrides: other options for some, by name pattern, module type or module.
        forward: how a draw enters the forward: weights, local, flipout, antithetic or per_example; local gives the
            positions of one example (of an image, of a sequence) independent noise. "auto" is, layer by layer, local
            for dense layers whose rows are the examples, and weights for all others.
        signs: what a posterior on the half-line does with the network's signs: "keep" or "positive".
        structure: what is random: "weights", or "rank1" factors of the outputs and inputs of dense, convolutional,
            embedding and attention layers, of which every example has its own in training, and every draw one.
        members: how many posteriors of the factors there are; an example or a draw uses one, and the KL is their mean.
        start_std: an accepted spelling of `initial_std`.

    >>> bnn = bayesian(nn.Linear(3, 2), posterior="radial", prior="normal")
    >>> bnn(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """
    if not isinstance(net, nn.Module):
        raise ParameterError(f"bayesian({type(net).__name__})", "it is not an nn.Module", "a network")
    if any(isinstance(module, BayesianModule) for module in net.modules()):
        raise ParameterError("bayesian(net)", "a part of it is Bayesian already", "a plain network")
    members, factored = check_structure(forward, structure, members)
    given = {"posterior": posterior, "prior": prior, "kl_method": kl_method, "n_mc_iter": n_mc_iter,
             "initial_std": initial_std if start_std is None else start_std, "pretrained": pretrained,
             "signs": signs}  # fmt: skip
    places = with_factors(selected(net, select), select is not None) if factored else selected(net, select)
    chosen = chosen_options(places, given, overrides, factored)
    for place, options in chosen:
        check_place(place, options, forward, factored)
    bnn = BayesianModule(net, chosen, forward, members if factored else 0)
    watch_optimizers(places)
    return bnn
