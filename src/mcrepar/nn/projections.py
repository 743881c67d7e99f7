"""The noise that a dense layer's weights put on its outputs: projections of xi on orthogonal unit vectors (D5).

The output of a datum h has the deviation sqrt(h^2 (scale^2)^T) zeta, and the rows of weights behind two outputs share
no weight: zeta is jointly a set of orthogonal projections of the noise of the whole tensor.
"""

from __future__ import annotations

from torch import Tensor

from mcrepar.distributions.noises import Noise, Radial
from mcrepar.distributions.variates import Source


def radial_size(noise: Noise) -> int:
    """d of Radial noise; Normal noise is that of d = 1, whose projections are independent."""
    return noise.size if isinstance(noise, Radial) else 1


def projections(size: int, source: Source, *shape: int) -> Tensor:
    """zeta of (..., outputs): N(0, 1), or |r| z / sqrt(|z|^2 + chi^2(d - O)) jointly over O outputs.

    Args:
        size: d of Radial noise; 1 is Normal noise.
        source: of random numbers.
        shape: of the outputs, (..., O).

    >>> import torch
    >>> zeta = projections(400, Source(torch.float64, "cpu", torch.Generator().manual_seed(0)), 10_000, 3)
    >>> (400 * zeta.square().mean()).round()  # E zeta^2 = 1 / d
    tensor(1., dtype=torch.float64)
    """
    z = source.normal(*shape)
    if size == 1:
        return z
    rows, outputs = (*shape[:-1], 1), shape[-1]
    square = z.square().sum(-1, keepdim=True)
    if size > outputs:
        square = square + source.gamma((size - outputs) / 2, *rows, scale=2.0, normal_from=1e3)
    return z * (source.normal(*rows).abs() / square.sqrt())
