"""PreActResNet (He et al. 2016): norm and activation come before each convolution, the shortcut stays linear."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


def _conv(inside: int, outside: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """norm - relu - conv, once per entry of `sizes`, beside a shortcut.

    Args:
        inside: channels of the input.
        widths: channels after each convolution.
        sizes: kernel sizes of the convolutions.
        stride: of the 3x3 convolution that comes first.
    """

    def __init__(self, inside: int, widths: Sequence[int], sizes: Sequence[int], stride: int) -> None:
        super().__init__()
        entering = [inside, *widths[:-1]]
        first = list(sizes).index(3)
        strides = [stride if k == first else 1 for k in range(len(sizes))]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in entering)
        self.convs = nn.ModuleList(
            _conv(a, b, size, s) for a, b, size, s in zip(entering, widths, sizes, strides, strict=True)
        )
        linear = stride == 1 and inside == widths[-1]
        self.shortcut = None if linear else _conv(inside, widths[-1], 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the shortcut and the convolutions."""
        y = self.norms[0](x).relu()
        beside = x if self.shortcut is None else self.shortcut(y)
        y = self.convs[0](y)
        for norm, conv in zip(list(self.norms)[1:], list(self.convs)[1:], strict=True):
            y = conv(norm(y).relu())
        out: Tensor = y + beside
        return out


class PreActResNet(nn.Module):
    """A stem, four stages of blocks, and a dense layer.

    Args:
        depths: the number of blocks of every stage.
        bottleneck: whether a block is 1x1 - 3x3 - 1x1 with four times the width, instead of 3x3 - 3x3.
        classes: outputs.
        channels: of the image.
    """

    def __init__(self, depths: Sequence[int], bottleneck: bool, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.stem = _conv(channels, 64, 3)
        blocks, inside = [], 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            widths, sizes = ((width, width, 4 * width), (1, 3, 1)) if bottleneck else ((width, width), (3, 3))
            for k in range(depth):
                blocks.append(Block(inside, widths, sizes, 2 if stage and not k else 1))
                inside = widths[-1]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inside)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (batch, channels, height, width)."""
        y = self.norm(self.blocks(self.stem(x))).relu().mean((2, 3))
        out: Tensor = self.head(y)
        return out


def preact_resnet18(classes: int = 10, channels: int = 3) -> PreActResNet:
    """11.2 million weights."""
    return PreActResNet((2, 2, 2, 2), False, classes, channels)


def preact_resnet34(classes: int = 10, channels: int = 3) -> PreActResNet:
    """21.3 million weights."""
    return PreActResNet((3, 4, 6, 3), False, classes, channels)


def preact_resnet50(classes: int = 10, channels: int = 3) -> PreActResNet:
    """23.5 million weights."""
    return PreActResNet((3, 4, 6, 3), True, classes, channels)


def preact_resnet101(classes: int = 10, channels: int = 3) -> PreActResNet:
    """42.5 million weights."""
    return PreActResNet((3, 4, 23, 3), True, classes, channels)


def preact_resnet152(classes: int = 10, channels: int = 3) -> PreActResNet:
    """58.1 million weights."""
    return PreActResNet((3, 8, 36, 3), True, classes, channels)
