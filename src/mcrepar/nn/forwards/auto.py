"""Local reparameterization wherever it is free, one sample of the weights elsewhere.

A dense layer with one row per example draws its output, which costs it another product of matrices. A convolution would
need flipout, which doubles its cost and takes away a fifth of the gradient's variance: it has one sample for the batch.
So have recurrent layers, attention, embeddings, shared weights, and dense layers that are called twice or see other
rows than the examples. The last two are found when the network runs first, and that run is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.posterior import Posterior
from mcrepar.errors import MethodError
from mcrepar.nn import swap
from mcrepar.nn.forwards import local
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight, OneSample, examples, run_layers
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


def _output(batch: int, apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
    """The output of a dense layer whose rows are the examples."""
    if x.dim() != 2 or len(x) != batch:
        names = {w.tensor.name for w in (weight, bias) if isinstance(w, LayerWeight)}
        raise OneSample(names, f"its layer has an input of shape {tuple(x.shape)} for a batch of {batch} examples")
    return local.output(apply, x, weight, bias, channel)


def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, dense layers drawing their own."""
    rule = partial(_output, examples(args, kwargs))
    if torch.compiler.is_exporting() or not (torch.compiler.is_compiling() or _plain(bnn)):
        return swap.run(bnn, bnn.draw(), *args, **kwargs)
    while bnn.examplewise:
        if torch.compiler.is_compiling():
            return run_layers(rule, bnn, args, kwargs, bnn.examplewise)
        restore = _nothing if bnn.tried else _remembered(bnn)
        try:
            if not bnn.tried and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
                with torch.no_grad():  # inside of a checkpoint, which counts what an attempt saves for backward
                    run_layers(rule, bnn, args, kwargs, bnn.examplewise)
                restore()
            out = run_layers(rule, bnn, args, kwargs, bnn.examplewise)
        except OneSample as found:
            restore()
            bnn.examplewise -= found.names
        else:
            bnn.tried = True
            return out
    return swap.run(bnn, bnn.draw(), *args, **kwargs)


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
