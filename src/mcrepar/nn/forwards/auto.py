"""Dense layers draw their output for every example; all other layers share one sample of the weights per batch.

Flipout would double the cost of a convolution and take away a fifth of the gradient's variance. Recurrent layers,
attention, embeddings, shared weights, dense layers that run twice or on other rows than the examples, and networks
whose output has no row per example share one sample too. The first forward finds the last three; its changes of buffers
and random numbers are undone. A network that is compiled before it ran has one sample per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mcrepar.distributions.posterior import Posterior
from mcrepar.errors import MethodError
from mcrepar.nn import swap
from mcrepar.nn.batches import examples
from mcrepar.nn.checkpointing import saves_for_recomputing
from mcrepar.nn.forwards import local
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight, OneSample, run_layers
from mcrepar.nn.select import Place

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule


def noise_of_examples(random: Iterable[tuple[Posterior, Place]]) -> set[str]:
    """The names of the weights that may have noise of their own for every example."""
    found = set()
    for posterior, place in random:
        with suppress(MethodError):
            local.check(posterior, place)
            if all(isinstance(owner, nn.Linear) for owner in place.owners):
                found.add(place.name)
    return found


class _Layers:
    """The layers of one forward: dense ones whose rows are the examples draw their output, others have one sample.

    Args:
        batch: the number of examples.
    """

    def __init__(self, batch: int) -> None:
        self.batch, self.own_noise = batch, False
        self.samples: dict[str, Tensor] = {}  # of weights that have one

    def output(self, apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
        """The output of a layer; a single row is one example, however it came about."""
        random = [w for w in (weight, bias) if isinstance(w, LayerWeight)]
        once = random[0].once
        assert once is not None
        if x.dim() == 2 and len(x) in (1, self.batch) and not any(w.tensor.name in self.samples for w in random):
            self.own_noise |= len(x) > 1
            return local.output(apply, x, weight, bias, channel)
        for w in random:
            once.take_back(w.tensor)
        weight, bias = (once.sample(w.tensor) if isinstance(w, LayerWeight) else w for w in (weight, bias))
        return apply(x, weight, bias)

    def run(self, bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The network's output, or which weights must have one sample, which is drawn together with all others."""
        out = run_layers(self.output, bnn, args, kwargs, bnn.examplewise, samples=self.samples)
        if torch.compiler.is_compiling():
            return out
        if not bnn.tried and self.samples:
            raise OneSample(set(self.samples), "its layer sees other rows than the examples, or it is used elsewhere")
        if self.own_noise and not _has_rows(out, self.batch):
            raise OneSample(set(bnn.examplewise), f"no output of the network has {self.batch} rows, one per example")
        return out


def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, dense layers drawing their own."""
    compiling = torch.compiler.is_compiling()
    if torch.compiler.is_exporting() or not (bnn.tried if compiling else _plain(bnn)):
        return swap.run(bnn, bnn.draw(), *args, **kwargs)
    while bnn.examplewise:
        layers = _Layers(examples(args, kwargs))
        if compiling:
            return layers.run(bnn, args, kwargs)
        restore = _nothing if bnn.tried else _remembered(bnn)
        try:
            if not bnn.tried and saves_for_recomputing():
                with torch.no_grad():  # an attempt saves nothing that a checkpoint would count
                    layers.run(bnn, args, kwargs)
                restore()
            out = layers.run(bnn, args, kwargs)
        except OneSample as found:
            restore()
            bnn.examplewise -= found.names
        else:
            bnn.tried = True
            return out
    return swap.run(bnn, bnn.draw(), *args, **kwargs)


def _has_rows(out: Any, batch: int) -> bool:
    """Whether a tensor of the output has a row per example; an object that hides its tensors may have one."""
    leaves = pytree.tree_leaves(out)
    return any(not isinstance(leaf, Tensor) or (leaf.dim() > 0 and len(leaf) == batch) for leaf in leaves)


def _plain(bnn: BayesianModule) -> bool:
    """Whether parameters are ordinary tensors, as which a layer can meet them: no shards, nothing that is exported."""
    first: Any = next(iter(bnn.latents._modules.values()))
    return type(first.log_scale) in (Tensor, nn.Parameter)


def _nothing() -> None:
    return


def _remembered(bnn: BayesianModule) -> Callable[[], None]:
    """A function that puts buffers and random numbers back to what they are now."""
    buffers = [(buffer, buffer.clone()) for buffer in bnn.net.buffers()]
    device = next(bnn.parameters()).device
    module = None if device.type == "cpu" else torch.get_device_module(device)
    states = torch.get_rng_state(), module and module.get_rng_state(device)

    def restore() -> None:
        for buffer, before in buffers:
            buffer.copy_(before)
        torch.set_rng_state(states[0])
        if module is not None:
            module.set_rng_state(states[1], device)

    return restore
