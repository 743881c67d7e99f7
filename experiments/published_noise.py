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

from mcrepar.nn.forward import FORWARDS, LayerWeight
from mcrepar.nn.latent import Latent
from mcrepar.nn.module import BayesianModule

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
    FORWARDS[NAME] = _run
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
    for key, latent in bnn.latents.items():
        assert isinstance(latent, Latent)
        weights |= {name: LayerWeight.of(latent, _layer) for name in bnn.names[key]}
    return bnn.run(weights, *args, **kwargs)


def _layer(func: Any, x: Tensor, weight: Any, bias: Any, rest: dict[str, Any]) -> Tensor:
    options = {name: value for name, value in rest.items() if name}
    means, variances = zip(*(_moments(tensor) for tensor in (weight, bias)), strict=True)
    mean: Tensor = func(x, *means, *rest[""], **options)
    variance: Tensor = func(x * x, *variances, *rest[""], **options)
    z = torch.randn_like(mean)
    radius = torch.randn((), dtype=z.dtype, device=z.device).abs()
    std = variance.clamp_min(torch.finfo(z.dtype).tiny).sqrt()
    noisy: Tensor = mean + std * (radius / z.norm()) * z
    return noisy


def _moments(tensor: Any) -> tuple[Any, Any]:
    """Location and squared scale; a tensor that is not random has no second."""
    if isinstance(tensor, LayerWeight):
        return tensor.latent.centre, (2 * tensor.latent.log_scale).exp()
    return tensor, None if tensor is None else torch.zeros_like(tensor)
