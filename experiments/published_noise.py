"""The forward of the paper's published code, for comparison only: its noise is no draw of Radial weights.

A layer's output is mean + std * |r| z / |z|, where z is Normal and |z| the norm over the whole activation tensor,
batch included. The noise of one number is therefore divided by the root of batch times outputs, and nearly vanishes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.nn.forwards import FORWARDS, Forward
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.swap import run

NAME = "published"


@contextmanager
def published_noise() -> Iterator[None]:
    """A context in which forward="published" exists; outside it nobody takes it for a Radial posterior.

    >>> with published_noise():
    ...     "published" in FORWARDS
    True
    >>> "published" in FORWARDS
    False
    """
    FORWARDS[NAME] = Forward(_run)
    try:
        yield
    finally:
        del FORWARDS[NAME]


class PublishedNetwork(nn.Module):
    """A trained network that predicts as the published code does: with that noise, and running norm statistics.

    Args:
        bnn: trained under `published_noise`.
    """

    def __init__(self, bnn: BayesianModule) -> None:
        super().__init__()
        self.bnn = bnn

    def forward(self, x: Tensor) -> Any:
        """The output with fresh noise."""
        return _run(self.bnn, (x,), {})


def _run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    weights: dict[str, Tensor] = {}
    for names, tensor in random_tensors(bnn).items():
        assert isinstance(tensor, RandomTensor)
        weights |= {name: LayerWeight.of(tensor, _layer) for name in names}
    return run(bnn, weights, *args, **kwargs)


def _layer(apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
    (mean, squared_scale), (bias_mean, bias_square) = _moments(weight), _moments(bias)
    mean = apply(x, mean, bias_mean)
    variance = apply(x * x, squared_scale, bias_square)
    z = torch.randn_like(mean)
    radius = torch.randn((), dtype=z.dtype, device=z.device).abs()
    std = variance.clamp_min(torch.finfo(z.dtype).tiny).sqrt()
    noisy: Tensor = mean + std * (radius / z.norm()) * z
    return noisy


def _moments(tensor: Any) -> tuple[Any, Any]:
    """Location and squared scale; a tensor that is not random has no second."""
    if isinstance(tensor, LayerWeight):
        return tensor.tensor.centre, (2 * tensor.tensor.log_scale).exp()
    return tensor, None if tensor is None else torch.zeros_like(tensor)
