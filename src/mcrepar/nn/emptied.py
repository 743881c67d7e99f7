"""A network whose random weights are elsewhere: what empties it, guards it, and gives a copy back its plain form."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from mcrepar.errors import MethodError
from mcrepar.nn.recompute import remember
from mcrepar.nn.selection import Place


class Lock:
    """A lock that a copy or a pickle of its module gets anew."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


@contextlib.contextmanager
def locked(locks: Iterable[Lock]) -> Iterator[None]:
    """A context that holds all of these."""
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


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


def empty(net: nn.Module, chosen: Iterable[Place]) -> frozenset[str]:
    """Take the chosen tensors out of a network, so that no weight is stored twice.

    Returns the second names of one slot, in a module that is shared: filled twice, it would keep the first draw.
    """
    random: dict[nn.Module, list[str]] = {}
    second = set()
    for place in chosen:
        for owner, name in zip(place.owners, place.names, strict=True):
            last, slots = name.rpartition(".")[2], random.setdefault(owner, [])
            if last in slots:
                second.add(name)
            else:
                owner._parameters[last] = None
                slots.append(last)
    for owner, slots in random.items():
        owner.register_forward_pre_hook(Guard(tuple(slots)))
    forget(net)
    return frozenset(second)


def slot(net: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that owns a parameter, buffer or module of this name, and its name there.

    >>> net = nn.Sequential(nn.Linear(2, 1))
    >>> slot(net, "0.bias") == (net[0], "bias")
    True
    """
    path, _, last = name.rpartition(".")
    return net.get_submodule(path), last


def forget(net: nn.Module) -> None:
    """Recurrent layers keep a list of their weights: without this it would hold the last draw."""
    for module in net.modules():
        if isinstance(module, nn.RNNBase):
            list_weights(module)


def list_weights(layer: nn.RNNBase) -> None:
    """The list by which a recurrent layer finds its weights, from the present ones: a swap goes past it."""
    layer._flat_weights = [getattr(layer, name, None) for name in layer._flat_weights_names]


def unguarded(net: nn.Module) -> nn.Module:
    """A network that has its weights again, without the guards."""
    for module in net.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, Guard):
                del module._forward_pre_hooks[key]
    forget(net)
    return net
