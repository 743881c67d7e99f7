"""Norm statistics that belong to a draw: recomputed on a kept batch instead of averaged over all draws.

Running statistics of BatchNorm are a mixture over the draws of training and belong to none of them; with them a draw's
accuracy and calibration are spoiled.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from mcrepar.errors import ParameterError
from mcrepar.nn.threads import measuring

Run = Callable[[Mapping[str, Tensor], tuple[Any, ...], dict[str, Any]], object]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class _Buffer:
    """The place of a tensor among the kept arguments."""

    name: str


class Calibration(nn.Module):
    """A batch of training data with which norm layers find the statistics of one draw.

    Args:
        net: the network whose norm layers these are.
        how: such a batch is given, for the warning that there is none.
    """

    def __init__(self, net: nn.Module, how: str = "bnn.calibrate(x)") -> None:
        super().__init__()
        self.how = how
        self.layers = _tracking(net)
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.warned = False

    def keep(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep the arguments of a forward; tensors become buffers, moved with the model; `state` saves them."""
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
        self.keep(args, kwargs)
        try:
            found = measure()
            wrong = next((name for name, t in found.items() if not bool(t.isfinite().all())), None)
            why = None if wrong is None else f"{wrong} is not finite on this batch"
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            why = f"the network does not run on this batch ({type(error).__name__}: {error})"
        if why is not None:
            self.arguments = None
            if before is not None:
                self.keep(*before)
            raise ParameterError("calibrate(...)", why, "finite training data, several rows, as the network takes them")

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

    def statistics(self, net: nn.Module, run: Run) -> dict[str, Tensor]:
        """The norm layers' buffers for one draw: the statistics of the kept batch; nothing without one.

        Args:
            net: the network, which no other thread uses.
            run: its forward on that draw, run(buffers, args, kwargs).
        """
        kept, self.layers = self.kept, _tracking(net)  # a layer may have been replaced
        if not self.layers or kept is None:
            if self.layers and not self.warned and not net.training:
                self.warned = True
                warnings.warn(
                    "the network has BatchNorm, whose running statistics belong to no single draw; "
                    f"{self.how} with a batch of training data recomputes them for every draw",
                    stacklevel=_outside(),
                )
            return {}
        fresh = {}
        for name in self.layers:
            module = net.get_submodule(name)
            for statistic in STATISTICS:
                fresh[f"{name}.{statistic}".lstrip(".")] = getattr(module, statistic).clone()
        with torch.no_grad(), self._measuring(net):
            run(fresh, *kept)
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


def _outside() -> int:
    """The stacklevel, for our caller, of the line outside of this package that led here, through contexts or not."""
    ours = (str(Path(__file__).parents[1]), contextlib.__file__)
    frame, level = sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(ours) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


def _tracking(net: nn.Module) -> list[str]:
    """The norm layers with running statistics."""
    norms = ((name, module) for name, module in net.named_modules() if isinstance(module, _NormBase))
    return [name for name, module in norms if module.running_mean is not None]
