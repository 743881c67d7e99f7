"""Dense layers draw their output for every example; all other layers share one sample of the weights per batch.

Flipout would double the cost of a convolution, and behind BatchNorm it adds noise to the gradient. Recurrent layers,
attention, embeddings, shared weights, dense layers that run twice or on other rows than the examples, weights that go
elsewhere, and networks whose output has no row per example share one sample too. A look before the first forward finds
the last four (`layer_rows`). A network that is compiled before it ran has one sample per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.posterior import Posterior
from mcrepar.errors import MethodError
from mcrepar.nn import swap
from mcrepar.nn.batches import examples
from mcrepar.nn.forwards import local
from mcrepar.nn.forwards.layer_rows import has_rows, look, plain
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
        """The network's output, or which weights must have one sample."""
        out = run_layers(self.output, bnn, args, kwargs, bnn.examplewise, samples=self.samples)
        if torch.compiler.is_compiling():
            return out
        if self.own_noise and not has_rows(out, self.batch):
            raise OneSample(set(bnn.examplewise), f"no output of the network has {self.batch} rows, one per example")
        return out


def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, dense layers drawing their own."""
    compiling = torch.compiler.is_compiling()
    if torch.compiler.is_exporting() or not (bnn.tried if compiling else plain(bnn)):
        return swap.run(bnn, bnn.draw(), *args, **kwargs)
    if bnn.examplewise and not bnn.tried:
        found = look(bnn, args, kwargs)
        bnn.examplewise, bnn.tried = bnn.examplewise.intersection(*(seen.dense for seen in found)), bool(found)
    while bnn.examplewise:
        layers = _Layers(examples(args, kwargs))
        try:
            return layers.run(bnn, args, kwargs)
        except OneSample as error:
            bnn.examplewise = bnn.examplewise - error.names
    return swap.run(bnn, bnn.draw(), *args, **kwargs)
