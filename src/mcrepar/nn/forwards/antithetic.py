"""Antithetic pairs: one sample of the weights, loc + delta for half of the examples and loc - delta for the others.

What is odd in the noise cancels between the halves, and a layer costs what it costs with one sample: each half of the
batch runs through its own weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcrepar.errors import MethodError
from mcrepar.nn.forwards import flipout
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight, examples, run_layers

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

check = partial(flipout.check, forward="antithetic")


def _output(batch: int, apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
    """F(x, loc + delta) for the first half of the examples, F(x, loc - delta) for the second."""
    batch = 1 if len(x) == 1 else batch  # one example without a batch
    if len(x) % batch:
        raise MethodError(
            "forward='antithetic'",
            f"a layer has {len(x)} rows for a batch of {batch} examples, of which each has its own sign",
            "a network whose activations keep the batch in dimension 0, or forward='weights'",
        )
    half = len(x) // batch * (-(-batch // 2))  # the rows of an example are neighbours
    (plus, minus), (plus_bias, minus_bias) = _pair(weight), _pair(bias)
    first = apply(x[:half], plus, plus_bias)
    return first if half == len(x) else torch.cat([first, apply(x[half:], minus, minus_bias)])


def _pair(weight: Any) -> tuple[Any, Any]:
    """The weights of the two halves: a random one with both signs of its noise, any other as it is."""
    if not isinstance(weight, LayerWeight):
        return weight, weight
    delta = flipout.perturbation(weight.tensor)
    return weight.tensor.centre + delta, weight.tensor.centre - delta


def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, the noise of the second half of the examples being that of the first with another sign."""
    return run_layers(partial(_output, examples(args, kwargs)), bnn, args, kwargs)
