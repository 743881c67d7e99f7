"""In which order the weights of a tensor are walked: as they lie in memory where nothing ties them to their places."""

from __future__ import annotations

import torch
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior

Order = list[int] | None  # of the dimensions; None is the logical order


def weight_order(q: Posterior, p: Prior) -> Order:
    """The memory order of the parameters, or the logical one where the prior has values for single weights."""
    tensors = [*q.learned, *([q.loc] if isinstance(q.loc, Tensor) else [])]
    tied = p.density.joint or any(t.numel() > 1 for t in p.tensors.values())
    if tied or any(t.stride() != tensors[0].stride() for t in tensors):
        return None
    strides = tensors[0].stride()
    return sorted(range(len(strides)), key=lambda k: -strides[k])


def flat(x: Tensor, order: Order) -> Tensor:
    """All weights in one row."""
    return x.reshape(-1) if order is None else x.permute(order).reshape(-1)


def unflat(row: Tensor, shape: torch.Size, order: Order) -> Tensor:
    """The weights of a row in their shape, without a copy."""
    if order is None:
        return row.reshape(shape)
    inverse = sorted(range(len(order)), key=lambda k: order[k])
    return row.view([shape[k] for k in order]).permute(inverse)


def empty_like(x: Tensor, order: Order) -> Tensor:
    """A tensor of the shape of `x`, whose memory goes through the weights in `order`: `flat` makes a view of it."""
    strides, step = [0] * x.dim(), 1
    for k in reversed(range(x.dim()) if order is None else order):
        strides[k], step = step, step * x.shape[k]
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
