"""The networks of the table, small enough for a test. Import with `from tests.models.conftest import ...`."""

from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.models import MODELS

NORMS = (nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
REDUCED: dict[str, dict[str, Any]] = {  # by class; the others are small as they are
    "FCNet": {"hidden": (16,)},
    "VGG": {"width": 4, "dense": 8, "pooled": 2},
    "PreActResNet": {"width": 4},
    "DenseNet": {"growth": 2, "width": 4},
    "UNet3DEncoder": {"width": 4},
    "UNet2D": {"width": 2},
    "UNet3D": {"width": 2},
}


def reduced(name: str) -> dict[str, Any]:
    """Options with which a network has all of its layers, and few weights in each."""
    return REDUCED.get(MODELS[name].home.rpartition(".")[2], {})


def images(name: str, channels: int = 3, batch: int = 2, size: tuple[int, ...] | None = None) -> Tensor:
    """A batch that the network takes, of 28 pixels or voxels a side."""
    return torch.randn(batch, channels, *(size or (28,) * max(2, MODELS[name].dimensions)))


def weights_and_norms(net: nn.Module) -> tuple[int, int]:
    """How many numbers the norm layers have, and how many the other layers."""
    norms = sum(p.numel() for m in net.modules() if isinstance(m, NORMS) for p in m.parameters())
    return sum(p.numel() for p in net.parameters()) - norms, norms
