"""The least noise that every layer allows: its outputs, then its signs, then one sample for the batch.

A dense layer with one row per example draws its output (`local`), another layer with one entry per example multiplies
its noise by the example's signs (`flipout`). What has neither uses one sample: recurrent layers, attention, embeddings,
shared weights, layers that are called twice or see other rows than the examples. The last two are found when the
network runs first, and that run is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.errors import MethodError
from mcrepar.nn import swap
from mcrepar.nn.forwards import flipout, local
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight, OneSample, examples, run_layers
from mcrepar.nn.select import Place

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule


def noise_of_examples(random: Iterable[tuple[Posterior, Place]]) -> set[str]:
    """The names of the weights that may have noise of their own for every example."""
    found = set()
    for posterior, place in random:
        with suppress(MethodError):
            flipout.check(posterior, place)
            found.add(place.name)
    return found


def _output(batch: int, apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
    """The output of a layer by the first of the two rules that its input and its noise allow."""
    random = [w.tensor for w in (weight, bias) if isinstance(w, LayerWeight)]
    if len(x) != batch:
        raise OneSample({t.name for t in random}, f"its layer has {len(x)} rows for a batch of {batch} examples")
    dense = x.dim() == 2 and all(t.options.posterior.noise.projects for t in random)
    return (local.output if dense else flipout.output)(apply, x, weight, bias, channel)


def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, every layer with the least noise that it allows."""
    rule = partial(_output, examples(args, kwargs))
    while bnn.examplewise:
        if torch.compiler.is_compiling():
            return run_layers(rule, bnn, args, kwargs, bnn.examplewise)
        restore = _nothing if bnn.tried else _remembered(bnn)
        try:
            out = run_layers(rule, bnn, args, kwargs, bnn.examplewise)
        except OneSample as found:
            restore()
            bnn.examplewise -= found.names
        else:
            bnn.tried = True
            return out
    return swap.run(bnn, bnn.draw(), *args, **kwargs)


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
