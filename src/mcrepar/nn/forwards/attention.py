"""What multi-head attention does between its projections, and how an encoder with random weights runs."""

from __future__ import annotations

import math
from collections.abc import Set

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcrepar.errors import ParameterError


def attend(
    q: Tensor, k: Tensor, v: Tensor, heads: int, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool,
    dropout_p: float, training: bool = True, key_padding_mask: Tensor | None = None, need_weights: bool = True,
    attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """softmax(q k^T / sqrt(features) + masks) v of every head, and the weights that multiply v.

    Args:
        q: queries, (length, batch, heads * features).
        k: keys, (another length, batch, heads * features).
        v: values, of the length of the keys.
        heads: their number.
        bias_k: a key that is put after all others, (1, 1, heads * features).
        bias_v: its value.
        add_zero_attn: whether a key and a value of zeros follow.
        dropout_p: the probability to drop a weight in training.
        training: whether it is training.
        key_padding_mask: (batch, keys), of the keys that are left out or of what is added to them.
        need_weights: whether the weights are wanted.
        attn_mask: (queries, keys) or (batch * heads, queries, keys), likewise.
        average_attn_weights: whether the weights are averaged over the heads.
        is_causal: says that `attn_mask` leaves out all later keys.
    """
    if is_causal and attn_mask is None:
        instead = "attn_mask=nn.Transformer.generate_square_subsequent_mask(length) beside it"
        raise ParameterError("attention with is_causal=True", "it only says what attn_mask is", instead)
    if bias_k is not None and bias_v is not None:
        k, v = (torch.cat([t, bias.expand(1, t.shape[1], -1)]) for t, bias in ((k, bias_k), (v, bias_v)))
    size = q.shape[2] // heads
    q, k, v = (t.view(*t.shape[:2], heads, size).permute(1, 2, 0, 3) for t in (q, k, v))  # (batch, heads, length, size)
    if add_zero_attn:
        k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
    causal = is_causal and key_padding_mask is None and not need_weights
    masks = []
    if attn_mask is not None and not causal:
        masks.append(_added(attn_mask, q).view(-1, 1 if attn_mask.dim() == 2 else heads, *attn_mask.shape[-2:]))
    if key_padding_mask is not None:
        masks.append(_added(key_padding_mask, q).view(-1, 1, 1, key_padding_mask.shape[-1]))
    mask = F.pad(sum(masks[1:], masks[0]), (0, k.shape[2] - masks[0].shape[3])) if masks else None  # none hides extras
    rate = dropout_p if training else 0.0
    if not need_weights:
        return F.scaled_dot_product_attention(q, k, v, mask, rate, causal).permute(2, 0, 1, 3).flatten(2), None
    logits = q @ k.mT / math.sqrt(size)
    weights = F.dropout((logits if mask is None else logits + mask).softmax(-1), rate)
    return (weights @ v).permute(2, 0, 1, 3).flatten(2), weights.mean(1) if average_attn_weights else weights


def keep_padded(net: nn.Module, owners: Set[nn.Module]) -> None:
    """Let an encoder whose first layer is plain make no nested tensor of padded inputs: later layers could not take it.

    Args:
        net: the network.
        owners: the layers that have random weights.
    """
    for encoder in net.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            first, *later = [bool(owners & set(layer.modules())) for layer in encoder.layers]
            if not first and any(later):
                encoder.use_nested_tensor = False


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """What is added to logits: minus infinity where a mask leaves out."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)
