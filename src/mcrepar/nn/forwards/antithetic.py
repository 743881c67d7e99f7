"""Antithetic pairs: one sample W of the weights for half of the examples, and 2 loc - W for the others.

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
from mcrepar.nn.batches import examples
from mcrepar.nn.forwards import flipout
from mcrepar.nn.forwards.layer_rows import run_examples
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight
from mcrepar.nn.swap import Draw

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

check = partial(flipout.check, forward="antithetic")


def _output(batch: int, drawn: Draw, apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
    """F(x, W) for the first half of the examples, F(x, 2 loc - W) for the second."""
    batch = 1 if len(x) <= 1 else batch  # one example without a batch, or none
    if len(x) % batch:
        raise MethodError(
            "forward='antithetic'",
            f"a layer has {len(x)} rows for a batch of {batch} examples, of which each has its own sign",
            "a network whose activations keep the batch in dimension 0, or forward='weights'",
        )
    half = len(x) // batch * (-(-batch // 2))  # the rows of an example are neighbours
    first = apply(x[:half], _sampled(drawn, weight), _sampled(drawn, bias))
    if half == len(x):
        return first
    return torch.cat([first, apply(x[half:], _mirrored(drawn, weight), _mirrored(drawn, bias))])


def _sampled(drawn: Draw, weight: Any) -> Any:
    return drawn[weight.tensor.name] if isinstance(weight, LayerWeight) else weight


def _mirrored(drawn: Draw, weight: Any) -> Any:
    if not isinstance(weight, LayerWeight):
        return weight
    assert weight.tensor.centre is not None
    return torch.sub(2 * weight.tensor.centre, drawn[weight.tensor.name])


def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, the noise of the second half of the examples being that of the first with another sign."""
    return run_examples(partial(_output, examples(args, kwargs), bnn.draw()), bnn, args, kwargs, drawn=True)
