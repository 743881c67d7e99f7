"""Norm statistics that belong to a draw: recomputed on a batch instead of averaged over all draws of the training.

Running statistics of BatchNorm are a mixture over the draws of training and belong to none of them; with them a draw's
accuracy and calibration are spoiled. The batch stays in memory: neither a state_dict nor a saved or pickled network
holds training data. What is stored are statistics pooled over draws of the trained network.
"""

from __future__ import annotations

import contextlib
import copy
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
POOLED = 32  # draws over which the statistics that are stored are pooled


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
        self.pooled: dict[str, Tensor] | None = None
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

    def pool(self, net: nn.Module, measure: Callable[[int], Mapping[str, Tensor]]) -> None:
        """Keep the statistics of the mixture of many draws, for a network that is stored without the batch.

        mean = mean_k mean_k, variance = mean_k variance_k + Var_k mean_k

        Args:
            net: the network.
            measure: the statistics of a draw by its number, among other tensors.
        """
        if not self.layers:
            return
        with torch.no_grad():
            found = [measure(k) for k in range(POOLED)]
        self.pooled = {}
        for layer in self.layers:
            mean, variance, tracked = (f"{layer}.{statistic}".lstrip(".") for statistic in STATISTICS)
            means, variances = (torch.stack([draw[name] for draw in found]) for name in (mean, variance))
            self.pooled[mean] = means.mean(0)
            self.pooled[variance] = variances.mean(0) + means.var(0, correction=0)
            self.pooled[tracked] = net.get_buffer(tracked).clone()

    def _stored(self, net: nn.Module) -> dict[str, Tensor]:
        """The pooled statistics, unless the norm layers have been trained since."""
        layers = {name.rpartition(".")[0] for name in self.pooled or ()}
        if self.pooled is None or net.training or layers != set(self.layers):  # one may have been replaced
            return {}
        pooled = {name: t.detach().clone().to(net.get_buffer(name)) for name, t in self.pooled.items()}
        tracked = [name for name in pooled if name.endswith(STATISTICS[2])]
        return pooled if all(torch.equal(pooled[name], net.get_buffer(name)) for name in tracked) else {}

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
        """The norm layers' buffers for one draw: the statistics of the batch, else the stored ones, else nothing.

        Args:
            net: the network, which no other thread uses.
            run: its forward on that draw, run(buffers, args, kwargs).
        """
        kept, self.layers = self.kept, _tracking(net)  # a layer may have been replaced
        if not self.layers:
            return {}
        if kept is None:
            stored = self._stored(net)
            if not self.warned and not net.training:
                self.warned = True
                what = "norm statistics pooled over draws, without the batch they were measured on"
                what = f"BatchNorm with {what if stored else 'running statistics, which belong to no single draw'}"
                warnings.warn(
                    f"the network has {what}; {self.how} with a batch of training data (of your own) gives every draw "
                    "statistics of its own",
                    stacklevel=_outside(),
                )
            return stored
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
