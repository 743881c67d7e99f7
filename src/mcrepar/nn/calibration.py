"""Norm statistics that belong to a sample of the weights: recomputed on a batch instead of averaged over the training.

Running statistics of BatchNorm are a mixture over the samples of training and belong to none of them; with them a
sample's accuracy and calibration are spoiled. The batch stays in memory: neither a state_dict nor a saved or pickled
network holds training data. What is stored are statistics pooled over samples of the trained network, for every member
of rank-1 factors by themselves.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn.batches import copies, examples
from mcrepar.nn.locks import measuring
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.swap import Draw, alone, run

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

Run = Callable[[Mapping[str, Tensor], tuple[Any, ...], dict[str, Any]], object]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
POOLED = 32  # draws over which the statistics that are stored are pooled, shared by all members
LEAST = 8  # draws of one member


@dataclass(frozen=True)
class _Buffer:
    """The place of a tensor among the kept arguments."""

    name: str


class MomentFactor(NamedTuple):
    """What was fitted to draws for one operation of the pass of moments."""

    operation: str
    factor: float  # of its variance
    centre: tuple[float, ...] = ()  # around which a mean over positions compares patches: of every channel, or one 0


class Calibration(nn.Module):
    """A batch of training data with which norm layers find the statistics of one draw.

    Args:
        net: the network whose norm layers these are.
        how: the call to suggest when no calibration batch was given.
    """

    moment_factors: tuple[MomentFactor, ...] = ()  # in the order of the operations

    def __init__(self, net: nn.Module, how: str = "bnn.calibrate(x)") -> None:
        super().__init__()
        self.how = how
        self.layers = _tracking(net)
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.pooled: list[dict[str, Tensor]] | None = None  # of every member
        self.warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "arguments": None, "_buffers": {}, "_non_persistent_buffers_set": set()}  # without data

    def __deepcopy__(self, memo: dict[int, Any]) -> Calibration:
        twin = memo[id(self)] = type(self).__new__(type(self))
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def keep(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep the arguments of a forward; tensors become buffers, moved with the model and in no state_dict."""
        for name in list(self._buffers):
            delattr(self, name)
        self.arguments = pytree.tree_map_only(Tensor, self._shelve, (args, dict(kwargs)))

    def take(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], measure: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """Keep a batch that the network runs on, with finite statistics; else the one of before stays.

        Args:
            args: of a forward.
            kwargs: of a forward.
            measure: runs the network on the batch that is kept; what it returns has the norm statistics.
        """
        before = self.kept
        if not examples(args, kwargs):
            raise ParameterError("calibrate(...)", "the batch has no examples", "training data, several rows")
        self.keep(args, kwargs)
        try:
            found = measure()
            finite = [t.isfinite().all() for t in found.values()]
            right = not finite or bool(torch.stack(finite).all())  # a device is asked once
            why = None if right else f"{min(zip(map(bool, finite), found, strict=True))[1]} is not finite on this batch"
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            why = f"the network does not run on this batch ({type(error).__name__}: {error})"
        if why is not None:
            self.arguments = None
            if before is not None:
                self.keep(*before)
            raise ParameterError("calibrate(...)", why, "finite training data, several rows, as the network takes them")

    def pool(self, net: nn.Module, measure: Callable[[int], Mapping[str, Tensor]], members: int = 1) -> None:
        """Keep the statistics of the mixture of many draws of each member, for a network stored without the batch.

        Args:
            net: the network.
            measure: the statistics of a draw of a member, among other tensors.
            members: the number of them, which share the draws.
        """
        self.layers = _tracking(net)  # a layer may have been replaced
        if not self.layers:
            return
        *moments, tracked = ([f"{layer}.{statistic}".lstrip(".") for layer in self.layers] for statistic in STATISTICS)
        trained = {name: net.get_buffer(name).clone() for name in tracked}  # a draw counts the batch that is held
        sets = []
        with torch.no_grad():
            for member in range(members):
                found = [measure(member) for _ in range(max(POOLED // members, LEAST))]
                drawn = [{name: draw[name] for names in moments for name in names} for draw in found]
                sets.append({**_mixture(drawn), **trained})
        self.pooled = sets

    def stored(self, net: nn.Module, member: int | None = None) -> dict[str, Tensor]:
        """The pooled statistics of a member, or of all, unless the norm layers have been trained since."""
        if self.pooled is None or net.training or self._stale(net):
            return {}
        # one set stands for all members in what was stored before every member had its own
        found = _mixture(self.pooled) if member is None else self.pooled[member % len(self.pooled)]
        return {name: t.detach().clone().to(net.get_buffer(name)) for name, t in found.items()}

    def _stale(self, net: nn.Module) -> bool:
        """Whether norm layers were trained, or replaced, since the statistics were pooled."""
        pooled = self.pooled[0] if self.pooled else {}
        if {name.rpartition(".")[0] for name in pooled} != set(_tracking(net)):
            return True
        tracked = {name: t for name, t in pooled.items() if name.endswith(STATISTICS[2])}
        return any(not torch.equal(t.to(net.get_buffer(name)), net.get_buffer(name)) for name, t in tracked.items())

    def warn_if_stale(self, net: nn.Module) -> None:
        """Say that a state_dict holds pooled statistics which no prediction will use."""
        if self.pooled is not None and self._stale(net):
            warnings.warn(
                f"the network was trained after {self.how}: the norm statistics in this state_dict are those of before "
                f"and will not be used; call {self.how} once more before state_dict()",
                stacklevel=outside(),
            )

    def _shelve(self, tensor: Tensor) -> _Buffer:
        kept = _Buffer(f"input{len(self._buffers)}")
        self.register_buffer(kept.name, tensor.detach().clone(), persistent=False)
        return kept

    @property
    def kept(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The kept arguments."""
        if self.arguments is None:
            return None
        args, kwargs = pytree.tree_map_only(_Buffer, lambda kept: getattr(self, kept.name), self.arguments)
        return args, kwargs

    def statistics(self, net: nn.Module, run: Run, member: int | None = None) -> dict[str, Tensor]:
        """The norm layers' buffers for one draw: the statistics of the batch, else the stored ones, else nothing.

        Args:
            net: the network, which no other thread uses.
            run: its forward on that draw, run(buffers, args, kwargs).
            member: whose draw it is; None where that is not known.
        """
        kept, self.layers = self.kept, _tracking(net)  # a layer may have been replaced
        if not self.layers:
            return {}
        if kept is None:
            stored = self.stored(net, member)
            if not self.warned and not net.training:
                self.warned = True
                what = "norm statistics pooled over draws, without the batch they were measured on"
                what = f"BatchNorm with {what if stored else 'running statistics, which belong to no single draw'}"
                warnings.warn(
                    f"the network has {what}; {self.how} with a batch of training data (of your own) gives every draw "
                    "statistics of its own",
                    stacklevel=outside(),
                )
            return stored
        fresh = {}
        for name in self.layers:
            module = net.get_submodule(name)
            for statistic in STATISTICS:
                fresh[f"{name}.{statistic}".lstrip(".")] = getattr(module, statistic).clone()
        with torch.no_grad(), self._measuring(net):
            run(fresh, *copies(*kept))
        return fresh

    @contextlib.contextmanager
    def _measuring(self, net: nn.Module) -> Iterator[None]:
        """Norm layers take the mean statistics of all their uses; all other layers, dropout too, predict."""
        layers: list[Any] = [net.get_submodule(name) for name in self.layers]
        modes, momenta = [(module, module.training) for module in net.modules()], [layer.momentum for layer in layers]
        uses = dict.fromkeys(layers, 0)

        def count(layer: Any, args: object) -> None:
            uses[layer] += 1
            layer.momentum = 1 / uses[layer]  # a mean; momentum=None is none in InstanceNorm

        net.eval()
        hooks = [layer.register_forward_pre_hook(count) for layer in layers]
        for layer in layers:
            layer.training = True
        try:
            with measuring():
                yield
        finally:
            for hook in hooks:
                hook.remove()
            for module, training in modes:
                module.training = training
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum


def outside() -> int:
    """The stacklevel, for our caller, of the line outside of this package that led here, through contexts or not."""
    ours = (str(Path(__file__).parents[1]), contextlib.__file__, nn.modules.module.__file__)
    frame, level = sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(ours) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


def _tracking(net: nn.Module) -> list[str]:
    """The norm layers with running statistics."""
    norms = ((name, module) for name, module in net.named_modules() if isinstance(module, _NormBase))
    return [name for name, module in norms if module.running_mean is not None]


def _mixture(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The norm statistics of a mixture of equal parts.

    mean = mean_k mean_k, variance = mean_k variance_k + Var_k mean_k

    >>> parts = [{"running_mean": torch.tensor(m), "running_var": torch.tensor(1.0)} for m in (-2.0, 2.0)]
    >>> _mixture(parts)
    {'running_mean': tensor(0.), 'running_var': tensor(5.)}
    """
    pooled = {}
    for name, first in found[0].items():
        own = torch.stack([part[name] for part in found])
        pooled[name] = own.mean(0) if own.is_floating_point() else first.clone()
        if name.endswith(STATISTICS[1]):
            means = torch.stack([part[name.removesuffix(STATISTICS[1]) + STATISTICS[0]] for part in found])
            pooled[name] += means.var(0, correction=0)
    return pooled


def complete(bnn: BayesianModule, draw: str | Draw = "mean", member: int | None = None) -> dict[str, Tensor]:
    """Weights ("mean", "draw" for a fresh sample, or a sample) with the norm statistics that belong to them.

    Args:
        bnn: the network.
        draw: the weights.
        member: of rank-1 factors, whose sample it is; a fresh sample is one of it.
    """
    if isinstance(draw, str):
        if draw not in ("mean", "draw"):
            raise MethodError(f"the weights {draw!r}", "it is neither 'mean' nor 'draw'", "'mean', or bnn.draw()")
        if draw == "draw":
            return fresh_draw(bnn, None, member)
        draw = bnn.mean()
    _check_draw(bnn, draw)
    fixed = {name: w.detach() for name, w in draw.items()}
    with alone(bnn):
        found = bnn.calibration.statistics(
            bnn.net, lambda fresh, args, kwargs: run(bnn, {**fixed, **fresh}, *args, **kwargs), member
        )
    return {**draw, **found}


def fresh_draw(
    bnn: BayesianModule, generator: torch.Generator | None = None, member: int | None = None
) -> dict[str, Tensor]:
    """A sample of all weights, of a member or of any, with the norm statistics that belong to it."""
    member = any_member(bnn, generator) if member is None else member
    return complete(bnn, bnn.draw(generator, member), member)


def any_member(bnn: BayesianModule, generator: torch.Generator | None = None) -> int:
    """One of the members, all equally likely; nothing is drawn where there is one."""
    where = None if generator is None else generator.device
    several = bnn.members > 1
    return int(torch.randint(bnn.members, (), generator=generator, device=where)) if several else 0


def pool_statistics(bnn: BayesianModule) -> None:
    """Measure what is stored of norm layers, on the batch that is held; the default RNG is left alone."""
    generator = torch.Generator().manual_seed(0)
    bnn.calibration.pool(bnn.net, lambda member: fresh_draw(bnn, generator, member), max(bnn.members, 1))


def _check_draw(bnn: BayesianModule, draw: object) -> None:
    """Refuse a sample that is not one of this network's weights."""
    random, net = random_tensors(bnn), bnn.net
    if not isinstance(draw, Mapping):
        raise ParameterError(f"a frozen {type(draw).__name__}", "it names no weights", "'mean', or bnn.draw()")
    for name, tensor in ((name, tensor) for names, tensor in random.items() for name in names):
        if name not in draw:
            raise ParameterError("a frozen draw", f"it has no {name}", "bnn.draw(), whole")
        w, dtype = draw[name], tensor.log_scale.dtype
        if not isinstance(w, Tensor) or w.shape != tensor.shape:
            what = f"the shape {tuple(w.shape)}" if isinstance(w, Tensor) else f"the type {type(w).__name__}"
            why = f"its {name} has {what}, not that of the weights, {tuple(tensor.shape)}"
            raise ParameterError("a frozen draw", why, "bnn.draw()")
        if w.dtype != dtype:
            raise ParameterError(
                "a frozen draw", f"its {name} is {w.dtype}, the weights {dtype}", f"{name}.to({dtype})"
            )
    others = draw.keys() - {name for names in random for name in names}
    if others:  # tensors of the network that are not random may be given too, as norm statistics are
        others -= {name for name, _ in net.named_parameters(remove_duplicate=False)}
        others -= {name for name, _ in net.named_buffers(remove_duplicate=False)}
    if others:
        why = f"{min(map(repr, others))} is no weight of the network"
        raise ParameterError("a frozen draw", why, "the names of bnn.draw()")
