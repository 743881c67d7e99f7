"""Patches of images: where windows lie, cutting them out, and the weights that make random ones count voxels alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

Lengths = Sequence[int]
OVERHANG = 4  # random windows may stick out by a quarter of their length before they are shifted to the inside


def grid(size: Lengths, window: Lengths, step: Lengths) -> list[tuple[int, ...]]:
    """The corners of windows that cover an image, the last of every axis at its end.

    Args:
        size: of the image.
        window: of the windows, no longer than the image along any axis.
        step: from one window to the next.

    >>> grid((10, 4), (4, 4), (3, 4))
    [(0, 0), (3, 0), (6, 0)]
    """
    axes = [[*range(0, n - w, s), n - w] for n, w, s in zip(size, window, step, strict=True)]
    return list(product(*axes))


def cut(image: Tensor, corner: Lengths, window: Lengths) -> Tensor:
    """A view of the window at a corner, along the last axes.

    Args:
        image: (..., *size).
        corner: the first voxel of the window.
        window: its lengths.
    """
    for axis, (first, length) in enumerate(zip(corner, window, strict=True), start=image.dim() - len(window)):
        image = image.narrow(axis, first, length)
    return image


def random_corners(size: Lengths, window: Lengths, generator: torch.Generator | None = None) -> tuple[int, ...]:
    """A window inside an image, at random: one that may stick out by a quarter of its length, shifted to the inside.

    Shifted windows make up for the few that hold a voxel near an end: along each axis it is in more than 1/6 as many
    as any other (windows that were placed inside at once would hold the first voxel in one of n - w + 1 cases only).

    Args:
        size: of the image.
        window: no longer than the image along any axis.
        generator: where the randomness comes from.
    """
    ends = [n - w + 2 * (w // OVERHANG) + 1 for n, w in zip(size, window, strict=True)]
    drawn = [int(torch.randint(end, (), generator=generator)) for end in ends]
    return tuple(min(max(k - w // OVERHANG, 0), n - w) for k, n, w in zip(drawn, size, window, strict=True))


def inverse_coverage(size: Lengths, window: Lengths) -> list[Tensor]:
    """For each axis, 1 / P(a voxel is in the window of `random_corners`); their product is that of a voxel.

    P(corner <= v) = (v + h + 1) / (n - w + 2 h + 1) for 0 <= v < n - w with h = w // 4, and 1 from there on

    P(v inside) = P(corner <= v) - P(corner <= v - w)

    Args:
        size: of the image.
        window: of the windows.

    >>> inverse_coverage((6,), (4,))
    [tensor([2.5000, 1.6667, 1.0000, 1.0000, 1.6667, 2.5000])]
    """

    def up_to(v: Tensor, n: int, w: int) -> Tensor:
        h = w // OVERHANG
        inside = torch.where(v < n - w, (v + h + 1) / (n - w + 2 * h + 1), 1.0)
        return torch.where(v < 0, 0.0, inside)

    places = [torch.arange(n) for n in size]
    return [1 / (up_to(v, n, w) - up_to(v - w, n, w)) for v, n, w in zip(places, size, window, strict=True)]


def weights_of(size: Lengths, corner: Lengths, window: Lengths, mean_voxels: float) -> Tensor:
    """The weights of the voxels of a random window, with which its mean is unbiased: E mean_v w_v f_v = mean of all f.

    w_v = (voxels of a window / mean voxels of an image) / P(v inside)

    Images being taken equally often, voxels of all images count alike, those of larger images too.

    Args:
        size: of the image.
        corner: of the window.
        window: its lengths.
        mean_voxels: of the images of the training set.
    """
    result = torch.full(tuple(window), math.prod(window) / mean_voxels)
    for axis, whole in enumerate(inverse_coverage(size, window)):
        along = whole[corner[axis] : corner[axis] + window[axis]]
        result *= along.view([-1 if k == axis else 1 for k in range(len(window))])
    return result


def tiles(size: Lengths, window: Lengths) -> Iterator[tuple[int, ...]]:
    """The corners of windows side by side; the last of an axis overlaps the one before where they do not fit.

    >>> list(tiles((5,), (2,)))
    [(0,), (2,), (3,)]
    """
    yield from grid(size, window, window)
