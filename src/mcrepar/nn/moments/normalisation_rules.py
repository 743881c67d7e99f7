"""Rules of norm layers, dropout, softmax and attention.

Batch norm in eval mode is affine, with the statistics that are stored; norms of single examples divide by the expected
second moment of what they normalise. Softmax and attention have probabilities at the mean logits, whose spread is that
of first order (the delta method).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcrepar.nn.moments.linear_rules import MIXED, spread
from mcrepar.nn.moments.tensor import Factors, Mixing, MomentTensor, Row, moments, refusal


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
    m, v = moments(input, zeros=True)
    shape, kept = [1, -1, *[1] * (m.dim() - 2)], [k for k in range(m.dim()) if k != 1]
    mean, variance = moments(running_mean)[0], moments(running_var)[0]
    if training or mean is None:
        running = mean, variance
        mean, variance, unbiased = _statistics(m, v, kept)
        _store(running, (mean, unbiased), momentum)
    rate = (variance + eps).rsqrt()
    if isinstance(weight, MomentTensor) or isinstance(bias, MomentTensor):
        return _affine((m - mean.view(shape)) * rate.view(shape), v * rate.square().view(shape), weight, bias, shape)
    rate = rate if weight is None else weight * rate
    shift = -mean * rate if bias is None else torch.addcmul(bias, mean, rate, value=-1)
    return MomentTensor(torch.addcmul(shift.view(shape), m, rate.view(shape)), v * rate.square().view(shape))


def _statistics(m: Tensor, v: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and expected variance over dimensions, and n / (n - 1) of the latter, which norm layers store."""
    variance, mean = torch.var_mean(m, dims, correction=0)
    n = math.prod(m.shape[k] for k in dims)
    variance = variance + v.mean(dims) * (1 - 1 / n)
    return mean, variance, variance * (n / max(n - 1, 1))


def _store(running: Sequence[Any], found: Sequence[Tensor], momentum: float) -> None:
    """Move the statistics that a norm layer keeps, if it keeps any, towards those of a batch."""
    for stored, new in zip(running, found, strict=True):
        if stored is not None:
            stored.lerp_(new.detach().to(stored.dtype), momentum)


def _standard(m: Tensor, v: Tensor, dims: list[int], eps: float, centre: bool = True) -> tuple[Tensor, Tensor]:
    """(x - mean x) / sqrt(E var x), or x / sqrt(E mean x^2): a mean of n numbers takes 1/n of the variance away."""
    share = 1 / math.prod(m.shape[k] for k in dims) if centre else 0.0
    m = m - m.mean(dims, keepdim=True) if centre else m
    whole = v.mean(dims, keepdim=True)
    rate = (m.square().mean(dims, keepdim=True) + whole * (1 - share) + eps).rsqrt()
    return m * rate, (v * (1 - 2 * share) + whole * share) * rate.square()


def layer_norm(
    func: Any, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float | None = None
) -> MomentTensor:
    """Over the last dimensions; RMS norm subtracts no mean."""
    (m, v), centre = moments(input, zeros=True), func.__name__ == "layer_norm"
    if eps is None:
        eps = 1e-5 if centre else torch.finfo(m.dtype).eps
    dims = list(range(-len(normalized_shape), 0))
    return _affine(*_standard(m, v, dims, eps, centre), weight, bias, list(normalized_shape))


def group_norm(
    func: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> MomentTensor:
    """Over groups of channels and all positions."""
    m, v = (t.unflatten(1, (num_groups, -1)).flatten(2) for t in moments(input, zeros=True))
    m, v = (t.view(input.shape) for t in _standard(m, v, [-1], eps))
    return _affine(m, v, weight, bias, [1, -1, *[1] * (input.dim() - 2)])


def instance_norm(
    func: Any, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> MomentTensor:  # fmt: skip
    """Every channel by itself, or by stored statistics, which are those of the images on average."""
    if use_input_stats:
        if running_mean is not None:
            mean, _, unbiased = _statistics(*moments(input, zeros=True), list(range(2, input.dim())))
            running = moments(running_mean)[0], moments(running_var)[0]
            _store(running, (mean.mean(0), unbiased.mean(0)), momentum)
        return group_norm(func, input, input.shape[1], weight, bias, eps)
    return batch_norm(func, input, running_mean, running_var, weight, bias, False, momentum, eps)


def dropout(func: Any, input: MomentTensor, p: float = 0.5, training: bool = True) -> MomentTensor:
    """Nothing in eval mode; else the mask is averaged over too: Var = (v + m^2) / (1 - p) - m^2."""
    if not training or p == 0:
        return input
    if "alpha" in func.__name__:  # its mask puts in another number than 0
        raise refusal(f"{func.__name__} in training mode")
    m, v = input.expectation, input.variance
    return MomentTensor(m, (v + p * m * m) / (1 - p))


# ---- softmax and attention


def softmax(func: Any, x: MomentTensor, dim: int | None = None, *rest: Any, **named: Any) -> MomentTensor:
    """d log p_i = dx_i - sum_j p_j dx_j, and dp_i = p_i d log p_i."""
    dim = (0 if x.dim() in (0, 1, 3) else 1) if dim is None else dim  # as torch has it
    out, logs = func(x.expectation, dim, *rest, **named), func.__name__ == "log_softmax"
    p, v, mixing = out.exp() if logs else out, x.variance.to(out.dtype), x.mixed()
    if logs and mixing is None and x.dim() == 2 and x.shape[1] <= MIXED:  # log probabilities share their normaliser
        mixing = Mixing(p.new_zeros(x.shape[1], 1), torch.zeros_like(p[:, :1]), v)
    if logs and mixing is not None and dim in (-1, 1):
        fitted = (x.variance.sum() / mixing.outputs.sum().clamp_min(torch.finfo(x.dtype).tiny)).detach()  # one factor
        result = MomentTensor(out, (fitted * mixing.variance_around(p)).to(out.dtype))
        result.mix(mixing._replace(around=p))
        return result
    variance = (v * (1 - 2 * p) + (p.square() * v).sum(dim, keepdim=True)).clamp_min(0.0)
    return MomentTensor(out, variance if logs else p.square() * variance)


def attention(
    func: Any, query: Any, key: Any, value: Any, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> MomentTensor:  # fmt: skip
    """o = P V: Var o = P^2 V_v + sum_j P_j^2 (V_j - o)^2 Var l_j, l the logits."""
    if isinstance(attn_mask, MomentTensor) or dropout_p:
        raise refusal(f"{func.__name__} with {'dropout' if dropout_p else 'a random mask'}")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    (q, qv), (k, kv), (v, vv) = moments(query), moments(key.mT), moments(value)
    rate = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-1], dtype=torch.bool, device=q.device).tril()
    logits = q @ k * rate
    p = (logits if attn_mask is None else logits + _added(attn_mask, q, kept=True)).softmax(-1)
    out, square = p @ v, p.square()
    variance = torch.zeros_like(out) if vv is None else square @ vv
    if qv is not None or kv is not None:
        a = square * (spread(torch.matmul, q, qv, k, kv) * rate**2)
        variance = variance + (a @ v.square() - 2 * out * (a @ v) + out.square() * a.sum(-1, keepdim=True)).clamp_min(0)
    return MomentTensor(out, variance)


def _added(mask: Tensor, like: Any, kept: bool) -> Tensor:
    """What is added to logits; a True of a mask is a key that is kept, or one that is left out."""
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill(~mask if kept else mask, -math.inf)


class AttentionWeightsWithoutMoments:
    """What nn.MultiheadAttention returns in the place of its weights, which may be thrown away but not used."""

    def _used(self, *args: Any, **kwargs: Any) -> Any:
        raise refusal("multi_head_attention_forward whose weights are used", "F.scaled_dot_product_attention")

    __matmul__ = __mul__ = __getitem__ = __torch_function__ = _used


def _thirds(weight: Any) -> Sequence[Any]:
    """The weights of queries, keys and values; where they have rank-1 factors, those of their inputs are the same."""
    factors = weight.factors if isinstance(weight, MomentTensor) else None
    if factors is None:
        thirds: Sequence[Any] = weight.chunk(3)
        return thirds
    parts = (weight.expectation, weight.variance, factors.square, factors.outputs, *weight.samples)
    cut = zip(*(part.chunk(3) for part in parts), strict=True)
    return [MomentTensor(m, v, Factors(w2, r, factors.inputs), tuple(samples)) for m, v, w2, r, *samples in cut]


def multi_head_attention(func: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """nn.MultiheadAttention by the rules of its parts; the weights of its attention have no moments."""
    bound = signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    extra = any(t is not None for t in (given.bias_k, given.bias_v, given.static_k, given.static_v))
    if extra or given.add_zero_attn or (given.dropout_p and given.training):
        raise refusal(f"{func.__name__} with extra keys or dropout")
    batched, heads = given.query.dim() == 3, given.num_heads
    weights: Sequence[Any] = [given.q_proj_weight, given.k_proj_weight, given.v_proj_weight]
    if not given.use_separate_proj_weight:
        weights = _thirds(given.in_proj_weight)
    biases = [None] * 3 if given.in_proj_bias is None else given.in_proj_bias.chunk(3)
    parts = []
    for x, w, b in zip((given.query, given.key, given.value), weights, biases, strict=True):
        projected = F.linear(x if batched else x.unsqueeze(1), w, b)
        length, batch, features = projected.shape
        parts.append(projected.view(length, batch, heads, features // heads).permute(1, 2, 0, 3))
    masks: list[Tensor] = []  # (batch or 1, heads or 1, queries or 1, keys)
    if (mask := given.attn_mask) is not None:  # (queries, keys), or (batch * heads, queries, keys)
        masks.append(mask if mask.dim() == 2 else mask.view(-1, heads, *mask.shape[1:]))
    if (padding := given.key_padding_mask) is not None:  # (batch, keys), or (keys,)
        masks.append(padding.view(-1, 1, 1, padding.shape[-1]))
    added: Any = sum(_added(part, parts[0], kept=False) for part in masks) if masks else None
    out = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], added).permute(2, 0, 1, 3).flatten(2)
    out = F.linear(out, given.out_proj_weight, given.out_proj_bias)
    weights_of_attention = AttentionWeightsWithoutMoments() if given.need_weights else None
    return out if batched else out.squeeze(1), weights_of_attention


NORMALISATION_RULES: Mapping[str, Row] = {
    "batch_norm": Row(batch_norm, fitted=1),
    **{name: Row(layer_norm, fitted=1) for name in ("layer_norm", "rms_norm")},
    "group_norm": Row(group_norm, fitted=1),
    "instance_norm": Row(instance_norm, fitted=1),
    **{
        name: Row(dropout)
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    },
    **{name: Row(softmax, fitted=1) for name in ("softmax", "log_softmax")},
    "scaled_dot_product_attention": Row(attention, fitted=1),
    "multi_head_attention_forward": Row(multi_head_attention, composite=True),
}
