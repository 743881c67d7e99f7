"""3D U-Nets: the paper's encoder, which classifies volumes, and the whole network, which segments them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.models.blocks import Inputs

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm3d,
    "group": lambda width: nn.GroupNorm(math.gcd(8, width), width),
}


def block(inside: int, outside: int, norm: str, stride: int = 1) -> nn.Sequential:
    """conv - norm - relu, twice; the first convolution has the stride.

    >>> block(1, 16, "batch", stride=3)(torch.zeros(2, 1, 9, 9, 9)).shape
    torch.Size([2, 16, 3, 3, 3])
    """
    if norm not in NORMS:
        raise ParameterError(
            f"norm={norm!r}", "there is no such norm", "'batch', or 'group' for batches of few volumes"
        )
    layers: list[nn.Module] = []
    for entering, step in ((inside, stride), (outside, 1)):
        layers += [nn.Conv3d(entering, outside, 3, step, padding=1, bias=False), NORMS[norm](outside), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet3DEncoder(nn.Module):
    """Five blocks with 16 to 256 channels, poolings between them, and a dense layer: a class per volume.

    The features of the paper's 105 x 127 x 105 voxels are a single voxel; those of larger volumes are averaged.

    Args:
        classes: outputs.
        channels: of the volume.
        width: channels of the first block, which every block doubles.
        norm: "batch", or "group", which does not depend on the batch.
        bias: whether the dense layer has one.

    >>> UNet3DEncoder(classes=2, channels=1, width=4)(torch.zeros(2, 1, 28, 28, 28)).shape
    torch.Size([2, 2])
    """

    STRIDES = (1, 1, 1, 3, 3)
    POOLS = (3, 2, 2, 2)

    def __init__(
        self, classes: int = 10, channels: int = 3, width: int = 16, norm: str = "batch", bias: bool = True
    ) -> None:
        super().__init__()
        self.inputs = Inputs("UNet3DEncoder", channels, 3, least=math.prod(self.POOLS[:3]) + 1)
        layers: list[nn.Module] = []
        inside = channels
        for stage, stride in enumerate(self.STRIDES):
            if stage:  # ceil_mode keeps a voxel where 28 or 35 are left with one
                layers.append(nn.MaxPool3d(self.POOLS[stage - 1], ceil_mode=True))
            layers.append(block(inside, width * 2**stage, norm, stride))
            inside = width * 2**stage
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inside, classes, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of volumes, (batch, channels, depth, height, width)."""
        self.inputs.check(x.shape)
        logits: Tensor = self.head(self.features(x).mean((2, 3, 4)))
        return logits


class UNet3D(nn.Module):
    """Four halvings down, four doublings up, each joined by what went down at its level: a class per voxel.

    Args:
        classes: outputs per voxel.
        channels: of the volume.
        width: channels of the first block, which every halving doubles.
        norm: "batch", or "group", which does not depend on the batch.
        bias: whether the doublings and the last convolution have one.

    >>> UNet3D(classes=2, channels=1, width=4)(torch.zeros(1, 1, 17, 20, 23)).shape
    torch.Size([1, 2, 17, 20, 23])
    """

    HALVINGS = 4

    def __init__(
        self, classes: int = 10, channels: int = 3, width: int = 16, norm: str = "batch", bias: bool = True
    ) -> None:
        super().__init__()
        self.inputs = Inputs("UNet3D", channels, 3, least=2**self.HALVINGS + 1)  # a norm needs more than one voxel
        widths = [width * 2**level for level in range(self.HALVINGS + 1)]
        pairs = list(pairwise(widths))
        self.pool = nn.MaxPool3d(2, ceil_mode=True)
        self.blocks_down = nn.ModuleList([block(channels, width, norm), *(block(a, b, norm) for a, b in pairs)])
        self.doublings = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2, bias=bias) for a, b in reversed(pairs))
        self.blocks_up = nn.ModuleList(block(b, a, norm) for a, b in reversed(pairs))
        self.head = nn.Conv3d(width, classes, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes, depth, height, width), of volumes, (batch, channels, depth, height, width)."""
        self.inputs.check(x.shape)
        beside = []
        for level, down in enumerate(self.blocks_down):
            x = down(self.pool(x) if level else x)
            beside.append(x)
        beside.pop()  # the lowest level joins nothing
        for double, up in zip(self.doublings, self.blocks_up, strict=True):
            skip = beside.pop()
            depth, height, width = skip.shape[2:]  # an odd side was rounded up by the pooling: cut the rest off
            x = up(torch.cat([skip, double(x)[:, :, :depth, :height, :width]], 1))
        logits: Tensor = self.head(x)
        return logits
