"""Rules of softmax and attention: probabilities at the mean logits, their spread to first order (the delta method)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcrepar.nn.moments.linear_rules import product
from mcrepar.nn.moments.row import Row
from mcrepar.nn.moments.tensor import MomentTensor, moments, refusal


def softmax(func: Any, x: MomentTensor, dim: int, *rest: Any, **named: Any) -> MomentTensor:
    """dp_i = p_i (dx_i - sum_j p_j dx_j)."""
    p = func(x.expectation, dim, *rest, **named)
    return MomentTensor(p, p.square() * _relative(p, x.variance, dim))


def log_softmax(func: Any, x: MomentTensor, dim: int, *rest: Any, **named: Any) -> MomentTensor:
    """d log p_i = dx_i - sum_j p_j dx_j."""
    out = func(x.expectation, dim, *rest, **named)
    return MomentTensor(out, _relative(out.exp(), x.variance, dim))


def _relative(p: Tensor, v: Tensor, dim: int) -> Tensor:
    """Var (x_i - sum_j p_j x_j)."""
    return (v * (1 - 2 * p) + (p.square() * v).sum(dim, keepdim=True)).clamp_min(0.0)


def attention(
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> MomentTensor:
    """o = P V: Var o = P^2 V_v + sum_j P_j^2 (V_j - o)^2 Var l_j, l the logits."""
    if isinstance(attn_mask, MomentTensor) or dropout_p:
        raise refusal(f"{func.__name__} with {'dropout' if dropout_p else 'a random mask'}")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    rate = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    random = isinstance(query, MomentTensor) or isinstance(key, MomentTensor)
    (q, qv), (k, kv), (v, vv) = moments(query), moments(key), moments(value)
    mask = attn_mask
    if is_causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -math.inf)
    logits = q @ k.mT * rate
    p = (logits if mask is None else logits + mask).softmax(-1)
    out = p @ v
    square = p.square()
    variance = torch.zeros_like(out) if vv is None else square @ vv
    if random:
        pair = [MomentTensor(t, s) if s is not None else t for t, s in ((q, qv), (k.mT, None if kv is None else kv.mT))]
        a = square * (product(torch.matmul, *pair).variance * rate**2)
        variance = variance + (a @ v.square() - 2 * out * (a @ v) + out.square() * a.sum(-1, keepdim=True)).clamp_min(0)
    return MomentTensor(out, variance)


def multi_head_attention(
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, None]:
    """nn.MultiheadAttention by the rules of its parts; the weights of its attention are not returned."""
    if bias_k is not None or bias_v is not None or add_zero_attn or static_k is not None or (dropout_p and training):
        raise refusal(f"{func.__name__} with extra keys or dropout")
    batched = query.dim() == 3
    inputs = [t if batched else t.unsqueeze(1) for t in (query, key, value)]  # (length, batch, features)
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
    else:
        weights = list(in_proj_weight.chunk(3))
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    heads = []
    for x, w, b in zip(inputs, weights, biases, strict=True):
        projected = F.linear(x, w, b)
        length, batch, features = projected.shape
        heads.append(projected.view(length, batch, num_heads, features // num_heads).permute(1, 2, 0, 3))
    mask = _mask(attn_mask, key_padding_mask, heads[0], num_heads)
    out = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask)
    length, batch = inputs[0].shape[:2]
    out = F.linear(out.permute(2, 0, 1, 3).reshape(length, batch, -1), out_proj_weight, out_proj_bias)
    return out if batched else out.squeeze(1), None


def _mask(mask: Tensor | None, padding: Tensor | None, q: Any, heads: int) -> Tensor | None:
    """What is added to the logits, (batch or 1, heads or 1, queries or 1, keys); True means that a key is left out."""
    shaped = []
    if mask is not None:  # (queries, keys), or (batch * heads, queries, keys)
        shaped.append(mask if mask.dim() == 2 else mask.view(-1, heads, *mask.shape[1:]))
    if padding is not None:  # (batch, keys), or (keys,)
        shaped.append(padding.view(-1, 1, 1, padding.shape[-1]))
    added = [
        torch.zeros(part.shape, dtype=q.dtype, device=q.device).masked_fill(part, -math.inf)
        if part.dtype == torch.bool
        else part
        for part in shaped
    ]
    return added[0] + added[1] if len(added) == 2 else added[0] if added else None


ATTENTION_RULES: Mapping[str, Row] = {
    "softmax": Row(softmax, fitted=1),
    "log_softmax": Row(log_softmax, fitted=1),
    "scaled_dot_product_attention": Row(attention, fitted=1),
    "multi_head_attention_forward": Row(multi_head_attention, composite=True),
}
