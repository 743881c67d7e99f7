"""A network whose random weights are elsewhere: what empties it, guards it, and gives a copy back its plain form."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mcrepar.errors import MethodError
from mcrepar.nn.recompute import remember
from mcrepar.nn.selection import Place


@dataclass(frozen=True)
class Guard:
    """Runs before a layer, which is refused where its weights have not been drawn.

    Args:
        names: of the layer's random weights.
    """

    names: tuple[str, ...]

    def __call__(self, layer: nn.Module, args: object) -> None:
        if isinstance(layer, nn.RNNBase):
            list_weights(layer)
        for name in self.names:
            if layer._parameters[name] is None:
                raise MethodError(
                    f"running a {type(layer).__name__} outside of its Bayesian network",
                    f"its {name} is random and is drawn by the network's forward only, also when activation "
                    "checkpointing inside the network runs a layer again with use_reentrant=True",
                    "bnn(x), bnn.to_module(), or checkpoint(..., use_reentrant=False)",
                )
        if not torch.compiler.is_compiling():
            remember()


class Slots:
    """The places of a network's random weights, which are empty but while it runs: no weight is stored twice.

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
        self.second = frozenset(second)  # second names of one slot: filled twice, it would keep the first draw
        self.net = net
        self.links = _links(net, self.names)
        self.derived = [(module, name, t.detach()) for module in net.modules() for name, t in _derived(module).items()]
        self.recurrent = [module for module in net.modules() if isinstance(module, nn.RNNBase)]
        self.forget()

    def check(self, net: nn.Module) -> None:
        """Refuse a network in which something was put in the place of a random weight: it would not be used."""
        if (
            net is self.net
            and all(parent._modules.get(name) is child for parent, name, child in self.links)
            and all(owner._parameters.get(name) is None for owner, name in self.empty)
        ):
            return
        for name in self.names:
            try:
                owner, last = slot(net, name)
                ours = last in owner._parameters and not isinstance(owner._parameters[last], nn.Parameter)
            except AttributeError:
                ours = False
            if not ours:  # a tensor that is no parameter is a draw: the network runs inside its own forward
                raise MethodError(
                    "bnn after a change of bnn.net",
                    f"{name} is random, and what was put in its place would not be used",
                    "net = bnn.to_module() before the change, and bayesian(net) after it",
                )

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
        """Let go of the last draw where layers keep it: in a list of weights, or in a weight they compute of others."""
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


def plain_copy(net: nn.Module, weights: Mapping[str, Tensor], ties: Iterable[tuple[str, ...]]) -> nn.Module:
    """A copy of an emptied network as it was before, with these weights and buffers of its own.

    Args:
        net: the network, which no other thread uses.
        weights: of all slots, by name.
        ties: all names of every random tensor.
    """
    plain = copy.deepcopy(net)
    for name, tensor in weights.items():
        owner, last = slot(plain, name)
        if last in owner._buffers:
            owner._buffers[last] = tensor.detach().clone()
        else:
            owner._parameters[last] = nn.Parameter(tensor.detach().clone())
    for names in ties:
        for name in names[1:]:
            owner, last = slot(plain, name)
            owner._parameters[last] = plain.get_parameter(names[0])
    return unguarded(plain)


def unguarded(net: nn.Module) -> nn.Module:
    """A network that has its weights again, without the guards."""
    for module in net.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, Guard):
                del module._forward_pre_hooks[key]
        if isinstance(module, nn.RNNBase):
            list_weights(module)
    return net
