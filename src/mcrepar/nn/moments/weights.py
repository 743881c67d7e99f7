"""Mean and variance of random weights, as a network meets them in the pass of moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP, LOG
from mcrepar.errors import MethodError
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.moments.tensor import Factors, MomentTensor
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.rank1 import RankOne


def check_variances(bnn: BayesianModule) -> None:
    """Refuse a posterior whose weights have no variance."""
    for part in (part for tensor in random_tensors(bnn).values() for part in tensor.tensors):
        if not _has_variance(part):
            raise MethodError(
                f"draws='moments' with posterior {part.options.posterior.name!r} for {part.name}",
                "its weights have no finite variance",
                "draws=100, or a posterior with a variance, such as 'normal' or 'radial'",
            )


def _has_variance(tensor: RandomTensor) -> bool:
    """By its noise; where weights are exp(scale xi), by the scales too."""
    if tensor.options.posterior.form.outer is EXP:
        with torch.no_grad():
            return bool(tensor.posterior.variance.isfinite().all())
    return tensor.options.posterior.form.outer is LOG or tensor.options.posterior.noise.finite(2.0)


def weight_moments(bnn: BayesianModule, member: int = 0) -> dict[str, MomentTensor]:
    """The moments of all random weights by their names; of one member where factors have several."""
    found: dict[str, MomentTensor] = {}
    for names, tensor in random_tensors(bnn).items():
        pair = _factored(tensor, member) if isinstance(tensor, RankOne) else MomentTensor(*_moments(tensor))
        found |= dict.fromkeys(names, pair)
    return found


def _moments(tensor: RandomTensor | Any) -> tuple[Tensor, Tensor]:
    q = tensor.posterior
    v = q.variance.to(q.dtype).expand(q.shape)
    if tensor.hold is not None:
        v = torch.cat([v[: tensor.hold], torch.zeros_like(v[:1]), v[tensor.hold :]])
    return tensor.mean(), v


def _factored(tensor: RankOne, member: int) -> MomentTensor:
    """Wbar with the moments of its factors; an embedding has factors of its outputs alone, and needs no more."""
    wbar, by_output, by_input = tensor.weight, tensor.by_output, tensor.by_input
    r, rv = _moments(tensor.outputs[member])
    if not len(tensor.inputs):
        return MomentTensor(wbar * r.view(by_output), wbar.square() * rv.view(by_output))
    s, sv = _moments(tensor.inputs[member])
    r2, s2 = r * r, s * s + sv
    mean, square = (
        (w.view(tensor.grouped) * a.view(by_output) * b.view(by_input)).view_as(wbar)
        for w, a, b in ((wbar, r, s), (wbar.square(), r2 + rv, s2))
    )
    least = torch.finfo(r.dtype).tiny ** 0.5  # to divide by
    factors = Factors(square, rv / r2.clamp_min(least), sv / s2.clamp_min(least))
    return MomentTensor(mean, torch.zeros_like(wbar), factors)
