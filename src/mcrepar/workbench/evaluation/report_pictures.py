"""Small pictures of data: which ones are worth a look, and how an image or a volume becomes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

GROUPS = {"surest": "most certain", "doubtful": "least certain", "mistakes": "most certain mistakes"}
LARGEST = 128  # pixels of a side


def chosen(
    doubt: NDArray[Any], wrong: NDArray[np.bool_] | None, count: int
) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """The places of the surest, the least sure and the surest wrong data, and the group of each.

    Args:
        doubt: the uncertainty of each datum, (data,).
        wrong: which answers are wrong; None where nobody knows.
        count: how many of each group at most.

    >>> chosen(np.array([0.3, 0.1, 0.2]), np.array([False, False, True]), 1)
    (array([1, 0, 2]), array(['surest', 'doubtful', 'mistakes'], dtype='<U8'))
    """
    order = np.argsort(doubt, kind="stable")
    groups = {"surest": order[:count], "doubtful": order[::-1][:count]}
    if wrong is not None:
        groups["mistakes"] = order[wrong[order]][:count]
    names = np.repeat(np.array(list(groups), dtype="<U8"), [len(places) for places in groups.values()])
    return np.concatenate(list(groups.values())).astype(np.int64), names


def thumbnails(x: Tensor, places: NDArray[np.int64]) -> NDArray[np.uint8]:
    """uint8 pictures, (K, H, W, 1 or 3): of a volume its middle slice; of data without a place none.

    Args:
        x: (data, C, *size), uint8 or float.
        places: which data.
    """
    if x.dim() not in (4, 5) or not len(places):
        return np.zeros((0, 0, 0, 1), np.uint8)
    images = x[torch.from_numpy(places)]
    if images.dim() == 5:  # right, front, up: the slice halfway up, its front at the top
        images = images[..., images.shape[-1] // 2].transpose(2, 3).flip(2)
    images = images if images.shape[1] == 3 else images[:, :1]
    if images.dtype != torch.uint8:
        flat = images.float().flatten(1)
        low, high = flat.amin(1).view(-1, 1, 1, 1), flat.amax(1).view(-1, 1, 1, 1)
        images = (images - low) / (high - low).clamp_min(1e-12) * 255
    images = images.float()
    longest = max(images.shape[2:])
    if longest > LARGEST:
        height, width = (max(1, round(side * LARGEST / longest)) for side in images.shape[2:])
        images = F.interpolate(images, (height, width), mode="area")
    pictures: NDArray[np.uint8] = images.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return pictures
