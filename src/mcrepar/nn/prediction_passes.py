"""Passes through any network with Bayesian parts: one draw of all weights, with its own norm statistics, in eval mode.

A network made by `bayesian` is one such part. An ordinary network that is put together by hand, with layers of
`mcrepar.nn` among others, has a calibration of its own for all of its norm layers.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mcrepar.errors import MethodError
from mcrepar.nn.calibration import Calibration, fresh_draw, pool_statistics
from mcrepar.nn.locks import MODES, Lock, locked, predicting
from mcrepar.nn.module import BayesianModule, random_parts
from mcrepar.nn.swap import Draw, alone, frozen_weights, held, plain_copy, run, slot

# ---- eval mode

_SWITCHED: dict[
    int, tuple[list[None], list[nn.Module]]
] = {}  # by network: its predictions, its layers in training mode


@contextlib.contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Eval mode for this thread: a Bayesian neural network takes it only while this thread runs it, under its lock.

    Layers around Bayesian ones have no lock. They are switched until the last of the threads that predict is done. That
    is refused where another thread trains them, and so is training them meanwhile.
    """
    parts = [module for module in net.modules() if isinstance(module, BayesianModule)]
    locks = [part.slots.lock for part in parts]
    layers = _unlocked(net, parts)
    with predicting(parts), contextlib.ExitStack() as stack:
        if layers:
            with MODES, locked(locks):
                trained = _switch(net, layers, locks)
            stack.callback(_switch_back, net, trained, locks)
        yield
        if layers and net.training:  # the root alone tells: a layer may set its own mode in its forward (MC dropout)
            raise MethodError(
                f"a prediction of the {type(net).__name__}",
                "another thread called net.train() before it was done, and its layers cannot be in two modes at once",
                "copy.deepcopy(net) for predictions during training",
            )


def _switch(net: nn.Module, layers: list[nn.Module], locks: list[Lock]) -> list[nn.Module]:
    users, trained = _SWITCHED.setdefault(id(net), ([], [layer for layer in layers if layer.training]))
    if trained and not users and any(lock.trained_elsewhere for lock in locks):
        del _SWITCHED[id(net)]
        raise MethodError(
            f"a prediction of the {type(net).__name__} in training mode",
            "another thread trained it last, and its layers cannot be in eval mode for one thread alone",
            "net.eval() when training is done, or copy.deepcopy(net) for predictions meanwhile",
        )
    users.append(None)
    for layer in trained:
        layer.training = False
    for lock in locks:
        lock.predictors.append(threading.current_thread())
    return trained


def _switch_back(net: nn.Module, trained: list[nn.Module], locks: list[Lock]) -> None:
    with MODES, locked(locks):
        for lock in locks:
            lock.predictors.remove(threading.current_thread())
        users, _ = _SWITCHED[id(net)]
        users.pop()
        if not users:
            del _SWITCHED[id(net)]
            for layer in trained:
                layer.training = True


def _unlocked(net: nn.Module, parts: list[BayesianModule]) -> list[nn.Module]:
    """The layers outside of Bayesian parts; all of them where a compiled graph runs the parts without their locks."""
    if any("_orig_mod" in module._modules or module._compiled_call_impl is not None for module in net.modules()):
        return list(net.modules())
    inside = {module for part in parts for module in part.modules()}
    return [module for module in net.modules() if module not in inside]


# ---- one sample of all weights

KEPT = "_mcrepar_statistics"  # among the attributes of an ordinary network, where it is copied but is no part of it


def calibrate(net: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Hold a batch of training data, on which norm layers recompute their statistics for every draw of a prediction.

    For a network made by `bayesian` this is `bnn.calibrate(...)`. An ordinary network with Bayesian layers has the
    batch in deep copies, and statistics pooled over 32 draws in pickles; its state_dict has neither.

    Args:
        net: a network with Bayesian parts; it is returned.
        args: of its forward.
        kwargs: of its forward.

    >>> import mcrepar
    >>> net = nn.Sequential(mcrepar.nn.Linear(3, 4), nn.BatchNorm1d(4), mcrepar.nn.Linear(4, 1))
    >>> net = mcrepar.nn.calibrate(net, torch.randn(32, 3))
    >>> mcrepar.predict(net, torch.zeros(5, 3), draws=2).mean.shape
    torch.Size([5, 1])
    """
    random_parts(net, "the calibration of")
    if isinstance(net, BayesianModule):
        return net.calibrate(*args, **kwargs)
    statistics = _statistics(net)
    statistics.calibration.take(args, kwargs, lambda: statistics.trial(net))
    statistics.pool(net)
    return net


@contextlib.contextmanager
def one_draw(
    net: nn.Module, generator: torch.Generator | None = None, number: int | None = None
) -> Iterator[Callable[..., Any]]:
    """A context with a function that runs a network on one draw of all of its weights and their norm statistics.

    What is frozen stays as it is. By their number draws take turns among the members of a network.
    """
    if isinstance(net, BayesianModule):
        frozen = frozen_weights(net)
        member = None if number is None else number % max(net.members, 1)
        yield partial(run, net, fresh_draw(net, generator, member) if frozen is None else frozen)
        return
    statistics = _statistics(net)
    with holding(statistics.draw(net, generator)):
        found = statistics.measured(net)
        yield (lambda *args, **kwargs: statistics.run(net, found, args, kwargs)) if found else net


def plain_draw(net: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """An ordinary network that holds one draw of all weights, with norm statistics of its own."""
    if isinstance(net, BayesianModule):
        return plain_copy(net, fresh_draw(net, generator))
    twin = copy.deepcopy(net).eval()
    statistics = _statistics(twin)
    draws = statistics.draw(twin, generator)
    with holding(draws):
        found = statistics.measured(twin)
    for name, statistic in found.items():
        owner, last = slot(twin, name)
        owner._buffers[last] = statistic
    plain = {part: plain_copy(part, draw) for part, draw in draws.items()}
    for name, module in list(twin.named_modules(remove_duplicate=False)):
        if isinstance(module, BayesianModule):
            owner, last = slot(twin, name)
            owner._modules[last] = plain[module]
    del vars(twin)[KEPT]
    return twin


def calibration_of(net: nn.Module) -> Calibration:
    """Where a network keeps what was measured of it."""
    return net.calibration if isinstance(net, BayesianModule) else _statistics(net).calibration


def stored_statistics(bnn: BayesianModule, member: int = 0) -> dict[str, Tensor]:
    """Norm statistics pooled over draws of a member; measured anew where norm layers were trained since, on a batch."""
    member %= max(bnn.members, 1)
    with alone(bnn):
        found = bnn.calibration.stored(bnn.net, member)
        if found or bnn.net.training or not bnn.calibration.layers:
            return found
        if bnn.calibration.kept is None:
            return bnn.calibration.statistics(bnn.net, lambda *args: None)  # none, with its warning
        pool_statistics(bnn)
        return bnn.calibration.stored(bnn.net, member)


@contextlib.contextmanager
def holding(draws: Mapping[BayesianModule, Draw]) -> Iterator[None]:
    """A context in which all Bayesian parts of a network run on these weights."""
    with contextlib.ExitStack() as stack:
        for part, draw in draws.items():
            stack.enter_context(held(part, draw))
        yield


class _Statistics:
    """The norm layers of an ordinary network with Bayesian parts, and the batch that they are measured on."""

    def __init__(self, net: nn.Module) -> None:
        self.calibration, self.lock = Calibration(net, "mcrepar.nn.calibrate(net, x)"), Lock()
        inside = tuple(f"{name}." for name, module in net.named_modules() if isinstance(module, BayesianModule))
        self.calibration.warned = all(name.startswith(inside) for name in self.calibration.layers)  # these warn alone

    def draw(self, net: nn.Module, generator: torch.Generator | None) -> dict[BayesianModule, Draw]:
        """A draw of every part, with statistics on the part's own batch where the network has none."""
        draws: dict[BayesianModule, Draw] = {}
        for part in random_parts(net):
            frozen = frozen_weights(part)
            if frozen is not None:
                draws[part] = frozen
            else:
                draws[part] = part.draw(generator) if self.calibration.kept is not None else fresh_draw(part, generator)
        return draws

    def pool(self, net: nn.Module) -> None:
        """Measure what is stored of norm layers; the default RNG is left alone."""
        generator = torch.Generator().manual_seed(0)

        def measure(member: int) -> dict[str, Tensor]:
            with holding(self.draw(net, generator)):
                return self.measured(net)

        self.calibration.pool(net, measure)

    def trial(self, net: nn.Module) -> dict[str, Tensor]:
        """The statistics of the means of all weights."""
        with holding({part: part.mean() for part in random_parts(net)}):
            return self.measured(net)

    def measured(self, net: nn.Module) -> dict[str, Tensor]:
        """The statistics of the weights that are held; nothing without a batch."""
        reference = next(net.parameters())
        self.calibration.to(reference.device, reference.dtype)  # it is no part of the network, and was not moved
        with self.lock, locked(part.slots.lock for part in random_parts(net)):  # modes are changed, of parts too
            return self.calibration.statistics(net, lambda fresh, args, kwargs: self.run(net, fresh, args, kwargs))

    def run(self, net: nn.Module, statistics: Mapping[str, Tensor], args: Any, kwargs: Any) -> Any:
        """The network's output with these statistics."""
        with self.lock:  # for the network's buffers are swapped
            return functional_call(net, dict(statistics), args, kwargs, tie_weights=False)


def _statistics(net: nn.Module) -> _Statistics:
    found: _Statistics = vars(net).get(KEPT) or vars(net).setdefault(KEPT, _Statistics(net))
    return found
