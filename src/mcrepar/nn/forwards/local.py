"""Local reparameterization: the output of a dense or convolutional layer is drawn instead of its weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.noise import Noise
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.random import Source
from mcrepar.errors import MethodError
from mcrepar.nn.forwards.layer_rows import run_examples
from mcrepar.nn.forwards.layer_weight import Apply, LayerWeight, check_layers, location
from mcrepar.nn.random_tensor import RandomTensor
from mcrepar.nn.select import Place


def check(q: Posterior, place: Place) -> None:
    """Refuse layers and noise whose output cannot be drawn."""
    check_layers("local", place)
    dense = all(isinstance(owner, nn.Linear) for owner in place.owners)
    if q.form.outer.name != "identity" or not q.noise.projects or (q.noise.joint and not dense):
        raise MethodError(
            f"forward='local' with posterior {q.name!r}",
            "the output of this layer has no distribution that can be drawn at once (under Normal noise it has, and "
            "under Radial noise in dense layers)",
            "forward='weights' or 'flipout'",
        )


def output(apply: Apply, x: Tensor, weight: Any, bias: Any, channel: int) -> Tensor:
    """mean + standard deviation * noise, the noise of every example its own."""
    out, joined = apply(x, location(weight), location(bias)), False
    if isinstance(weight, LayerWeight):
        noise = weight.tensor.noise_distribution
        joined = isinstance(bias, LayerWeight) and x.dim() == 2 and bias.tensor.noise_distribution == noise
        joined = joined and not noise.joint  # a sum of independent Normals is one
        out = out + _noise(apply, x, weight.tensor, noise, bias.tensor if joined else None, out).to(out.dtype)
    if isinstance(bias, LayerWeight) and not joined:
        out = out + _bias_noise(bias.tensor, out, channel).to(out.dtype)
    if isinstance(weight, LayerWeight) and weight.once and (out.dim() > 2 or len(x) not in (1, weight.once.batch)):
        weight.once.warn_of_positions()
    return out


def _noise(
    apply: Apply, x: Tensor, tensor: RandomTensor, noise: Noise, bias: RandomTensor | None, out: Tensor
) -> Tensor:
    """Of the weights, and of the bias where it is given."""
    if noise.joint and x.dim() != 2:
        raise MethodError(
            f"forward='local' with posterior {tensor.options.posterior.name!r}",
            f"the input has {x.dim()} dimensions, and rows of one example share their sample",
            "forward='weights' or 'flipout'",
        )
    variances = [None if t is None else (2 * t.log_scale).exp() for t in (tensor, bias)]
    std = apply(x * x, *variances).clamp_min(torch.finfo(out.dtype).tiny).sqrt()  # type: ignore[arg-type]
    return std * noise.project(Source(tensor.log_scale.dtype, out.device), *std.shape)


def _bias_noise(tensor: RandomTensor, out: Tensor, channel: int) -> Tensor:
    scale, shape = tensor.log_scale.exp(), [1] * out.dim()
    shape[0], shape[channel] = len(out), scale.numel()
    xi = tensor.noise_distribution.draw(len(out), scale.numel(), dtype=scale.dtype, device=out.device)
    return (scale * xi).reshape(shape)


run = partial(run_examples, output)
