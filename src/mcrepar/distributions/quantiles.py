"""Quantiles of mixtures of Normals."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def quantile(samples: Tensor, noise: Tensor | None, p: float) -> Tensor:
    """The p-quantile over dimension 0: of the samples, or of the mixture of Normals around them.

    mean_k Phi((quantile - samples_k) / sqrt(noise_k)) = p

    Args:
        samples: (draws, ...).
        noise: the variances of the Normals, in the same shape; None is the samples alone, interpolated linearly.
        p: between 0 and 1.

    >>> quantile(torch.tensor([0.0, 1.0, 2.0]), None, 0.25), quantile(torch.zeros(2), torch.ones(2), 0.975)
    (tensor(0.5000), tensor(1.9600))
    """
    means = samples.double()
    if noise is not None:
        value: Tensor = _mixture_quantile(means, noise.double().sqrt(), p)
    else:
        ordered, place = means.sort(0).values, p * (len(means) - 1)
        before, after = math.floor(place), math.ceil(place)
        value = torch.lerp(ordered[before], ordered[after], place - before)
    return value.to(torch.promote_types(samples.dtype, torch.float32))


def _mixture_quantile(means: Tensor, std: Tensor, p: float) -> Tensor:
    """Newton's steps, halving the interval where they leave it; it begins with the quantiles of the parts."""
    ends: Tensor = means + std * torch.special.ndtri(torch.tensor(p, dtype=torch.float64))
    low, high, value = ends.amin(0), ends.amax(0), ends.mean(0)
    for _ in range(100):
        z = (value - means) / std
        excess = torch.special.ndtr(z).mean(0) - p
        low, high = torch.where(excess < 0, value, low), torch.where(excess < 0, high, value)
        slope = (torch.exp(-z * z / 2) / std).mean(0) / math.sqrt(2 * math.pi)
        newton = value - excess / slope
        value, before = torch.where((low <= newton) & (newton <= high), newton, (low + high) / 2), value
        if bool(((value - before).abs() <= 1e-10 * std.amin(0)).all()):
            break
    return value
