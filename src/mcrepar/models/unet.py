"""U-Nets: the paper's 3D encoder, which classifies volumes, and whole ones, which segment images and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.models.blocks import Inputs

CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}  # by the number of dimensions
DOUBLINGS = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOLINGS = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
BATCH_NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MOST_HALVINGS = 7
NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "batch": lambda dimensions, width: BATCH_NORMS[dimensions](width),
    "group": lambda _, width: nn.GroupNorm(math.gcd(8, width), width),
}


def block(inside: int, outside: int, norm: str, stride: int = 1, dimensions: int = 3) -> nn.Sequential:
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
        convolution = CONVOLUTIONS[dimensions](entering, outside, 3, step, padding=1, bias=False)
        layers += [convolution, NORMS[norm](dimensions, outside), nn.ReLU()]
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


class UNet2D(nn.Module):
    """Halvings down, as many doublings up, each joined by what went down at its level: a class per pixel.

    Args:
        classes: outputs per pixel.
        channels: of the image.
        width: channels of the first block, which every halving doubles.
        norm: "batch", or "group", which does not depend on the batch.
        bias: whether the doublings and the last convolution have one.
        halvings: how many; with fewer, patches may be smaller, and a pixel sees less around it.

    >>> UNet2D(classes=2, channels=1, width=4)(torch.zeros(1, 1, 17, 20)).shape
    torch.Size([1, 2, 17, 20])
    """

    DIMENSIONS = 2

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        width: int = 16,
        norm: str = "batch",
        bias: bool = True,
        halvings: int = 4,
    ) -> None:
        super().__init__()
        if halvings > MOST_HALVINGS:
            wide, side = width * 2**halvings, 2**halvings + 1
            why = f"the lowest level would have {wide:,} channels, and patches at least {side} voxels a side"
            raise ParameterError(f"halvings={halvings}", why, f"at most {MOST_HALVINGS}; 4 is usual")
        d = self.DIMENSIONS
        self.inputs = Inputs(type(self).__name__, channels, d, least=2**halvings + 1)  # a norm needs more than one
        widths = [width * 2**level for level in range(halvings + 1)]
        pairs = list(pairwise(widths))
        first = block(channels, width, norm, dimensions=d)
        self.pool = POOLINGS[d](2, ceil_mode=True)
        self.blocks_down = nn.ModuleList([first, *(block(a, b, norm, dimensions=d) for a, b in pairs)])
        self.doublings = nn.ModuleList(DOUBLINGS[d](b, a, 2, 2, bias=bias) for a, b in reversed(pairs))
        self.blocks_up = nn.ModuleList(block(b, a, norm, dimensions=d) for a, b in reversed(pairs))
        self.head = CONVOLUTIONS[d](width, classes, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes, *sides), of images or volumes, (batch, channels, *sides)."""
        self.inputs.check(x.shape)
        beside = []
        for level, down in enumerate(self.blocks_down):
            x = down(self.pool(x) if level else x)
            beside.append(x)
        beside.pop()  # the lowest level joins nothing
        for double, up in zip(self.doublings, self.blocks_up, strict=True):
            skip = beside.pop()
            inside = (
                slice(None),
                slice(None),
                *map(slice, skip.shape[2:]),
            )  # an odd side was rounded up by the pooling
            x = up(torch.cat([skip, double(x)[inside]], 1))
        logits: Tensor = self.head(x)
        return logits


class UNet3D(UNet2D):
    """The same for volumes: a class per voxel.

    >>> UNet3D(classes=2, channels=1, width=4)(torch.zeros(1, 1, 17, 20, 23)).shape
    torch.Size([1, 2, 17, 20, 23])
    """

    DIMENSIONS = 3
