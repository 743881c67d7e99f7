"""Rules of norm layers and dropout.

Batch norm in eval mode is affine, with the statistics that are stored; norms of single examples divide by the expected
second moment of what they normalise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mcrepar.nn.moments.tensor import MomentTensor, Row, moments


def _affine(m: Tensor, v: Tensor, weight: Any, bias: Any, shape: list[int]) -> MomentTensor:
    """weight x + bias, either of which may be random."""
    (w, wv), (b, bv) = moments(weight), moments(bias)
    if w is not None:
        w = w.view(shape)
        v = v * (w * w) if wv is None else v * (w * w) + (v + m * m) * wv.view(shape)
        m = m * w
    if b is not None:
        m, v = m + b.view(shape), v if bv is None else v + bv.view(shape)
    return MomentTensor(m, v)


def batch_norm(
    func: Any, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> MomentTensor:  # fmt: skip
    """Affine in eval mode; in training mode by the batch's expected statistics, which are stored as well."""
    m, v = moments(input)
    shape, kept = [1, -1, *[1] * (m.dim() - 2)], [k for k in range(m.dim()) if k != 1]
    (mean, _), (variance, _) = moments(running_mean), moments(running_var)
    if training or mean is None:
        running = mean, variance
        variance, mean = torch.var_mean(m, kept, correction=0)
        variance = variance if v is None else variance + v.mean(kept)
        if running[0] is not None:
            n = m.numel() / m.shape[1]
            for stored, found in zip(running, (mean, variance * (n / max(n - 1, 1))), strict=True):
                stored.lerp_(found.detach().to(stored.dtype), momentum)
    v = torch.zeros_like(m) if v is None else v
    if isinstance(weight, MomentTensor) or isinstance(bias, MomentTensor):
        rate = (variance + eps).rsqrt()
        return _affine((m - mean.view(shape)) * rate.view(shape), v * rate.square().view(shape), weight, bias, shape)
    rate = (variance + eps).rsqrt() if weight is None else weight * (variance + eps).rsqrt()
    shift = -mean * rate if bias is None else torch.addcmul(bias, mean, rate, value=-1)
    return MomentTensor(torch.addcmul(shift.view(shape), m, rate.view(shape)), v * rate.square().view(shape))


def _standard(m: Tensor, v: Tensor | None, dims: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """(x - mean x) / sqrt(E var x): a mean of n numbers takes 1/n of the variance away."""
    n = math.prod(m.shape[k] for k in dims)
    centred = m - m.mean(dims, keepdim=True)
    second = centred.square().mean(dims, keepdim=True)
    if v is None:
        return centred * (second + eps).rsqrt(), torch.zeros_like(m)
    whole = v.mean(dims, keepdim=True)
    rate = (second + whole * (1 - 1 / n) + eps).rsqrt()
    return centred * rate, (v * (1 - 2 / n) + whole / n) * rate.square()


def layer_norm(
    func: Any, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Over the last dimensions."""
    dims = list(range(-len(normalized_shape), 0))
    return _affine(*_standard(*moments(input), dims, eps), weight, bias, list(normalized_shape))


def group_norm(
    func: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Over groups of channels and all positions."""
    m, v = moments(input)
    shape, grouped = m.shape, (len(m), num_groups, -1)
    m, v = _standard(m.reshape(grouped), None if v is None else v.reshape(grouped), [-1], eps)
    return _affine(m.view(shape), v.view(shape), weight, bias, [1, -1, *[1] * (len(shape) - 2)])


def instance_norm(
    func: Any, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> MomentTensor:  # fmt: skip
    """Every channel by itself, or by stored statistics."""
    if use_input_stats:
        return group_norm(func, input, input.shape[1], weight, bias, eps)
    return batch_norm(func, input, running_mean, running_var, weight, bias, False, momentum, eps)


def rms_norm(
    func: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> MomentTensor:
    """x / sqrt(E mean x^2)."""
    m, v = moments(input)
    dims = list(range(-len(normalized_shape), 0))
    second = m * m if v is None else torch.addcmul(v, m, m)
    rate = (second.mean(dims, keepdim=True) + (torch.finfo(m.dtype).eps if eps is None else eps)).rsqrt()
    spread = torch.zeros_like(m) if v is None else v * rate.square()
    return _affine(m * rate, spread, weight, None, list(normalized_shape))


def dropout(func: Any, input: MomentTensor, p: float = 0.5, training: bool = True) -> MomentTensor:
    """Nothing in eval mode; else the mask is averaged over too: Var = (v + m^2) / (1 - p) - m^2."""
    if not training or p == 0:
        return input
    m, v = input.expectation, input.variance
    return MomentTensor(m, (v + p * m * m) / (1 - p))


NORMALISATION_RULES: Mapping[str, Row] = {
    "batch_norm": Row(batch_norm, fitted=1),
    "layer_norm": Row(layer_norm, fitted=1),
    "group_norm": Row(group_norm, fitted=1),
    "instance_norm": Row(instance_norm, fitted=1),
    "rms_norm": Row(rms_norm, fitted=1),
    **{name: Row(dropout) for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")},
}
