"""Flipout: one sample of the weights, whose noise is multiplied by random signs of every example."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.errors import MethodError
from mcrepar.nn.forwards.layer_rows import run_examples
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight, check_layers, location
from mcrepar.nn.random_tensor import RandomTensor
from mcrepar.nn.select import Place


def check(q: Posterior, place: Place, forward: str = "flipout") -> None:
    """Refuse noise that signs would change, and layers that are neither dense nor convolutional."""
    check_layers(forward, place)
    if not (q.noise.symmetric and q.form.outer.name == "identity"):
        why = "its noise is not symmetric"
        raise MethodError(f"forward={forward!r} with posterior {q.name!r}", why, "forward='weights'")


def output(apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
    """F(x, loc) + F(x s, delta) s', the signs s and s' being those of the example."""
    out = apply(x, location(weight), location(bias))
    if isinstance(weight, LayerWeight):
        if weight.once and len(x) not in (1, weight.once.batch):
            weight.once.warn_of_positions()
        out = out + apply(x * _signs(x, channel), _delta(weight.tensor), None) * _signs(out, channel)
    if isinstance(bias, LayerWeight):
        shape = [1] * out.dim()
        shape[channel] = bias.tensor.log_scale.numel()
        out = out + _delta(bias.tensor).reshape(shape).to(out.dtype) * _signs(out, channel)
    return out


def _delta(tensor: RandomTensor) -> Tensor:
    with torch.no_grad():
        xi = tensor.noise()
    return tensor.log_scale.exp() * xi


def _signs(like: Tensor, channel: int) -> Tensor:
    """A random sign per example and channel."""
    shape = [1] * like.dim()
    shape[0], shape[channel] = like.shape[0], like.shape[channel]
    return torch.full(shape, 0.5, dtype=like.dtype, device=like.device).bernoulli().mul_(2).sub_(1)


run = partial(run_examples, output)
