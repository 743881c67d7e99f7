"""Networks of any kind with Bayesian parts: one draw of all of them, with norm statistics of its own.

A network that was made by `bayesian` is one such part. Of an ordinary network that is put together by hand, with layers
of `mcrepar.nn` among others, `calibrate` keeps a batch for all of its norm layers.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mcrepar.nn.calibration import Calibration
from mcrepar.nn.emptied import slot
from mcrepar.nn.module import BayesianModule, Draw, random_parts
from mcrepar.nn.threads import Lock, locked

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
        held = net._frozen()
        member = None if number is None else number % max(net.members, 1)
        yield partial(net.run, net.complete(net.draw(generator, member)) if held is None else held)
        return
    statistics = _statistics(net)
    with _holding(statistics.draw(net, generator)):
        found = statistics.measured(net)
        yield (lambda *args, **kwargs: statistics.run(net, found, args, kwargs)) if found else net


def plain_draw(net: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """An ordinary network that holds one draw of all weights, with norm statistics of its own."""
    if isinstance(net, BayesianModule):
        return net.to_module(net.draw(generator))
    twin = copy.deepcopy(net).eval()
    statistics = _statistics(twin)
    draws = statistics.draw(twin, generator)
    with _holding(draws):
        found = statistics.measured(twin)
    for name, statistic in found.items():
        owner, last = slot(twin, name)
        owner._buffers[last] = statistic
    plain = {part: part.plain(draw) for part, draw in draws.items()}
    for name, module in list(twin.named_modules(remove_duplicate=False)):
        if isinstance(module, BayesianModule):
            owner, last = slot(twin, name)
            owner._modules[last] = plain[module]
    del vars(twin)[KEPT]
    return twin


@contextlib.contextmanager
def _holding(draws: Mapping[BayesianModule, Draw]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for part, draw in draws.items():
            stack.enter_context(part.holding(draw))
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
            held = part._frozen()
            fresh = part.draw(generator) if held is None else held
            draws[part] = part.complete(fresh) if held is None and self.calibration.kept is None else fresh
        return draws

    def pool(self, net: nn.Module) -> None:
        """Measure what is stored of norm layers; the default RNG is left alone."""
        generator = torch.Generator().manual_seed(0)

        def measure(number: int) -> dict[str, Tensor]:
            with _holding(self.draw(net, generator)):
                return self.measured(net)

        self.calibration.pool(net, measure)

    def trial(self, net: nn.Module) -> dict[str, Tensor]:
        """The statistics of the means of all weights."""
        with _holding({part: part.mean() for part in random_parts(net)}):
            return self.measured(net)

    def measured(self, net: nn.Module) -> dict[str, Tensor]:
        """The statistics of the weights that are held; nothing without a batch."""
        reference = next(net.parameters())
        self.calibration.to(reference.device, reference.dtype)  # it is no part of the network, and was not moved
        with self.lock, locked(part._lock for part in random_parts(net)):  # modes are changed, of parts too
            return self.calibration.statistics(net, lambda fresh, args, kwargs: self.run(net, fresh, args, kwargs))

    def run(self, net: nn.Module, statistics: Mapping[str, Tensor], args: Any, kwargs: Any) -> Any:
        """The network's output with these statistics."""
        with self.lock:  # for the network's buffers are swapped
            return functional_call(net, dict(statistics), args, kwargs, tie_weights=False)


def _statistics(net: nn.Module) -> _Statistics:
    found: _Statistics = vars(net).get(KEPT) or vars(net).setdefault(KEPT, _Statistics(net))
    return found
