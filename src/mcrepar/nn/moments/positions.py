"""How far the positions of an image share their noise, for means over all of them.

All positions meet the same sample of a convolution's weights, so that the noise of its output at p and q has the
correlation of their input patches, sum_k x_pk x_qk / (|x_p| |x_q|). Norm layers with statistics of every draw take away
what all images share: patches are compared around a centre then, the mean of every channel over training data.
Out-of-distribution images are farther from it, their positions alike, and the variance of their mean is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MOST = 256  # positions that are compared with one another
EXAMPLES = 64  # whose correlations are in memory at once


def version(t: Tensor) -> int:
    """How often a tensor was written to; of inference tensors torch does not count it."""
    return 0 if t.is_inference() else t._version


class Patches(NamedTuple):
    """The input patches of a convolution, one for every position of its output."""

    x: Tensor  # the mean of the input, (examples, channels, ...)
    size: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    version: int  # of x, which an operation in place may change
    constant: Tensor | None = None  # Var b / Var W of a random bias, which all positions share

    def unchanged(self) -> bool:
        """Whether the input is still there."""
        return version(self.x) == self.version

    def centre(self) -> Tensor:
        """The mean of every channel."""
        return self.x.transpose(0, 1).flatten(1).mean(1)

    def correlation(self, centre: Tensor) -> Tensor:
        """Of all pairs of positions, (examples, positions, positions), around a centre of the channels."""
        t = self.x - centre.to(self.x).view(-1, *[1] * len(self.size))
        t = F.pad(t, [p for p in reversed(self.padding) for _ in range(2)])
        for dim, (k, s, d) in enumerate(zip(self.size, self.stride, self.dilation, strict=True), 2):
            t = t.unfold(dim, d * (k - 1) + 1, s)[..., ::d]  # (examples, channels, *positions, *size)
        count = len(self.size)
        t = t.permute(0, *range(2, 2 + count), 1, *range(2 + count, 2 + 2 * count)).flatten(1 + count).flatten(1, count)
        gram: Tensor = t @ t.mT
        gram = gram if self.constant is None else gram + self.constant
        own = gram.diagonal(dim1=1, dim2=2)
        length = torch.where(own > 0, own, 1.0).sqrt()  # patches of zeros have no direction
        return gram / (length.unsqueeze(1) * length.unsqueeze(2))


def patches_of(
    func: Any, x: Tensor, weight: Tensor, *rest: Any, constant: Tensor | None = None, **named: Any
) -> Patches | None:
    """The patches of a convolution; None for other layers, and where channels meet only some of the others."""
    dims = x.dim() - 2
    if func.__name__ != f"conv{dims}d" or weight.shape[1] != x.shape[1]:
        return None
    names = ("stride", "padding", "dilation")
    given = {"stride": 1, "padding": 0, "dilation": 1} | dict(zip(names, rest, strict=False)) | named
    stride, padding, dilation = (given[name] for name in names)
    if isinstance(padding, str):
        return None
    steps, pads, gaps = (
        (v,) * dims if isinstance(v, int) else tuple(v) * (dims // len(v)) for v in (stride, padding, dilation)
    )
    return Patches(x, weight.shape[2:], steps, pads, gaps, version(x), constant)


class SharedVariance(NamedTuple):
    """The variance of a mean over all positions: mean_pq rho_pq s_p s_q, by the centre of the patches."""

    variance: Tensor  # of every position, (examples, channels, ...)
    patches: Patches
    shape: torch.Size  # of the result

    def __call__(self, centre: Tensor) -> Tensor:
        parts: list[tuple[Tensor, Tensor]] = [(self.variance.flatten(2), self.patches.x)]
        if not torch.compiler.is_compiling():  # a graph that is exported takes any number of examples
            parts = list(zip(*(torch.split(t, EXAMPLES) for t in parts[0]), strict=True))
        rows = []
        for v, x in parts:
            s = v.clamp_min(torch.finfo(v.dtype).tiny).sqrt()
            rows.append(((s @ self.patches._replace(x=x).correlation(centre)) * s).sum(2).clamp_min(0))
        return torch.cat(rows).view(self.shape) / self.variance.shape[2:].numel() ** 2
