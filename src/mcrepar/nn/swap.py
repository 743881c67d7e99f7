"""How a sample of the weights enters a network and leaves it again.

The places of random weights are empty but while the network runs, so no weight is stored twice.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mcrepar.errors import MethodError
from mcrepar.nn.checkpointing import remember, running
from mcrepar.nn.locks import FREEZING, Lock, own_mode
from mcrepar.nn.select import Place

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

Draw = Mapping[str, Tensor]

_FROZEN: ContextVar[tuple[tuple[WeakSet[BayesianModule], Draw], ...]] = ContextVar("frozen draws", default=())


# ---- running


def run(bnn: BayesianModule, weights: Draw, *args: Any, **kwargs: Any) -> Any:
    """The network's output for the given weights (and norm statistics)."""
    if torch.compiler.is_compiling():  # a graph has no lock, and takes the weights as its input
        return swapped(bnn, weights, args, kwargs)
    with bnn.slots.lock, own_mode(bnn), running(partial(_again, bnn, weights)):
        return swapped(bnn, weights, args, kwargs)


def swapped(bnn: BayesianModule, weights: Draw, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The same for a caller that holds the lock."""
    slots, net = bnn.slots, bnn.net
    if torch.compiler.is_compiling() or not slots.check(net) or not weights.keys() <= slots.homes.keys():
        try:
            return functional_call(net, slots.first_names(weights), args, dict(kwargs), tie_weights=False)
        finally:
            if not torch.compiler.is_compiling():
                slots.forget()
    try:
        for name, w in weights.items():
            owner, last = slots.homes[name]
            owner._parameters[last] = w  # type: ignore[assignment]
        return net(*args, **kwargs)
    finally:
        for owner, last in slots.homes.values():
            owner._parameters[last] = None
        slots.forget()


@contextlib.contextmanager
def alone(bnn: BayesianModule) -> Iterator[None]:
    """A context in which no other thread runs the network, whose tensors are swapped and modes set meanwhile."""
    with bnn.slots.lock, own_mode(bnn):
        yield


@contextlib.contextmanager
def held(bnn: BayesianModule, weights: Draw) -> Iterator[None]:
    """A context in which a network runs on these weights (and norm statistics), taken as they are."""
    owners = WeakSet([bnn])
    token = _FROZEN.set((*_FROZEN.get(), (owners, weights)))
    with FREEZING:
        bnn.slots.freezes += 1
    try:
        yield
    finally:
        _FROZEN.reset(token)
        with FREEZING:
            for owner in owners:
                owner.slots.freezes -= 1


def frozen_weights(bnn: BayesianModule) -> Draw | None:
    """The weights at which this thread has frozen a network; None where it is random."""
    if torch.compiler.is_compiling():  # a graph looks at a number, and not at contexts
        if not bnn.slots.freezes:
            return None
        torch._dynamo.graph_break(
            msg="a frozen network has its weights from a context, which no graph has: leave out fullgraph=True, or "
            "compile bnn.to_module(draw)"
        )
    return next((weights for owners, weights in reversed(_FROZEN.get()) if bnn in owners), None)


def freeze_copy(bnn: BayesianModule, twin: BayesianModule) -> None:
    """Let a copy be frozen wherever the network is, until the same contexts end."""
    for owners, _ in _FROZEN.get():
        if bnn in owners:
            owners.add(twin)
            with FREEZING:
                twin.slots.freezes += 1


def plain_copy(bnn: BayesianModule, weights: Draw) -> nn.Module:
    """A copy of the network as it was before, with these weights and buffers of its own."""
    with bnn.slots.lock:
        bnn.slots.check(bnn.net)
        plain = copy.deepcopy(bnn.net)
    for name, tensor in weights.items():
        owner, last = slot(plain, name)
        if last in owner._buffers:
            owner._buffers[last] = tensor.detach().clone()
        else:
            owner._parameters[last] = nn.Parameter(tensor.detach().clone())
    for names in bnn.names.values():
        for name in names[1:]:
            owner, last = slot(plain, name)
            owner._parameters[last] = plain.get_parameter(names[0])
    for module in plain.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, Guard):
                del module._forward_pre_hooks[key]
        if isinstance(module, nn.RNNBase):
            list_weights(module)
    return plain


# ---- the empty places


@dataclass(frozen=True)
class Guard:
    """Runs before a layer, which is refused where its weights have not been drawn."""

    names: tuple[str, ...]  # of the layer's random weights

    def __call__(self, layer: nn.Module, args: object) -> None:
        if isinstance(layer, nn.RNNBase):
            list_weights(layer)
        for name in self.names:
            if layer._parameters[name] is None:
                raise MethodError(
                    f"running a {type(layer).__name__} outside of its Bayesian neural network",
                    f"its {name} is random and is drawn by the network's forward only, also when activation "
                    "checkpointing inside the network runs a layer again with use_reentrant=True",
                    "bnn(x), bnn.to_module(), or checkpoint(..., use_reentrant=False)",
                )
        if not torch.compiler.is_compiling():
            remember()


class Slots:
    """The places of a network's random weights.

    Args:
        net: the network.
        chosen: its tensors that are taken out.
    """

    def __init__(self, net: nn.Module, chosen: Iterable[Place]) -> None:
        random: dict[nn.Module, list[str]] = {}
        self.names: list[str] = []
        self.empty: dict[tuple[nn.Module, str], torch.Size] = {}
        second = set()
        for place in chosen:
            for owner, name in zip(place.owners, place.names, strict=True):
                last, slots = name.rpartition(".")[2], random.setdefault(owner, [])
                if last in slots:
                    second.add(name)
                else:
                    owner._parameters[last] = None
                    self.empty[owner, last] = place.parameter.shape
                    slots.append(last)
                self.names.append(name)
        for owner, slots in random.items():
            owner.register_forward_pre_hook(Guard(tuple(slots)))
        self.second = frozenset(second)  # second names of one slot: filled twice, it would keep the first sample
        self.freezes = 0  # contexts of all threads in which the network is frozen
        self.homes = {name: slot(net, name) for name in self.names}
        self.net, self.lock = net, Lock()
        self.links = _links(net, self.names)
        self.derived = [(module, name, t.detach()) for module in net.modules() for name, t in _derived(module).items()]
        self.recurrent = [module for module in net.modules() if isinstance(module, nn.RNNBase)]
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "freezes": 0}

    def first_names(self, weights: Draw) -> dict[str, Tensor]:
        """The weights, each slot once."""
        return {name: w for name, w in weights.items() if name not in self.second}

    def check(self, net: nn.Module) -> bool:
        """Whether all places are empty; a network with something in one is refused: it would not be used."""
        if (
            net is self.net
            and all(parent._modules.get(name) is child for parent, name, child in self.links)
            and all(owner._parameters.get(name, ...) is None for owner, name in self.homes.values())
        ):
            return True
        for name in self.names:
            try:
                owner, last = slot(net, name)
                ours = last in owner._parameters and not isinstance(owner._parameters[last], nn.Parameter)
            except AttributeError:
                ours = False
            if not ours:  # a tensor that is no parameter is a sample: the network runs inside its own forward
                raise MethodError(
                    "bnn after a change of bnn.net",
                    f"{name} is random, and what was put in its place would not be used",
                    "net = bnn.to_module() before the change, and bayesian(net) after it",
                )
        return False

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """A context in which every slot has its shape, without data: layers look there to tell if they have a bias."""
        empty = [(owner, name) for owner, name in self.empty if owner._parameters.get(name) is None]
        for owner, name in empty:
            owner._parameters[name] = nn.Parameter(torch.empty(self.empty[owner, name], device="meta"))
        try:
            yield
        finally:
            for owner, name in empty:
                owner._parameters[name] = None

    def forget(self) -> None:
        """Drop references to the last sample that layers cache (RNN flat weights, weight_norm's derived weight)."""
        for module, name, first in self.derived:
            vars(module)[name] = first  # they compute it again when they run
        for module in self.recurrent:
            list_weights(module)


def _links(net: nn.Module, names: Iterable[str]) -> list[tuple[nn.Module, str, nn.Module]]:
    """The steps, (module, name, module), on the ways from a network to the owners of these tensors, each once."""
    steps: dict[str, tuple[nn.Module, str, nn.Module]] = {}
    for name in names:
        path = name.rpartition(".")[0]
        while path and path not in steps:
            parent, last = slot(net, path)
            steps[path] = parent, last, parent.get_submodule(last)
            path = path.rpartition(".")[0]
    return list(steps.values())


def _derived(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that a hook computes of parameters: of torch's older weight_norm and spectral_norm, and of prune."""
    names = module._parameters.keys()
    tensors = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
    return {k: t for k, t in tensors.items() if f"{k}_orig" in names or {f"{k}_g", f"{k}_v"} <= names}


def slot(net: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that owns a parameter, buffer or module of this name, and its name there.

    >>> net = nn.Sequential(nn.Linear(2, 1))
    >>> slot(net, "0.bias") == (net[0], "bias")
    True
    """
    path, _, last = name.rpartition(".")
    return net.get_submodule(path), last


def list_weights(layer: nn.RNNBase) -> None:
    """The list by which a recurrent layer finds its weights, from the present ones: a swap goes past it."""
    layer._flat_weights = [getattr(layer, name, None) for name in layer._flat_weights_names]


# ---- activation checkpointing


class _Region(nn.Module):
    """A function that runs layers of a network, as a module, so that their weights can be swapped around it."""

    def __init__(self, net: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.net, self.call = net, call

    def forward(self, *args: Any) -> Any:
        """The function's value."""
        return self.call(*args)


def _again(bnn: BayesianModule, weights: Draw, region: Callable[..., Any], *args: Any) -> None:
    """Run a part of the network once more on the same weights."""
    slots = {f"net.{name}": w for name, w in bnn.slots.first_names(weights).items()}
    with alone(bnn):
        try:
            functional_call(_Region(bnn.net, region), slots, args, tie_weights=False)
        finally:
            bnn.slots.forget()
