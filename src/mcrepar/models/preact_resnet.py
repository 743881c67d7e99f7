"""PreActResNet (He et al. 2016): norm and activation come before each convolution, the shortcut stays linear."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from mcrepar.models.blocks import STEMS, Inputs
from mcrepar.models.blocks import stem as stem_of


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
        stem: "3x3" for small images, "7x7" for large ones.
        width: channels of the first stage, which every stage doubles.
        bias: whether the dense layer has one.

    >>> import torch
    >>> PreActResNet((1, 1, 1, 1), bottleneck=False, width=8)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depths: Sequence[int],
        bottleneck: bool,
        classes: int = 10,
        channels: int = 3,
        stem: str = "3x3",
        width: int = 64,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.stem = stem_of(stem, channels, width, norm=False)  # the first block begins with a norm
        self.inputs = Inputs("PreActResNet", channels, 2, least=STEMS[stem] * 2 ** (len(depths) - 1) // 2 + 1)
        blocks, inside = [], width
        for stage, depth in enumerate(depths):
            own = width * 2**stage
            widths, sizes = ((own, own, 4 * own), (1, 3, 1)) if bottleneck else ((own, own), (3, 3))
            for k in range(depth):
                blocks.append(Block(inside, widths, sizes, 2 if stage and not k else 1))
                inside = widths[-1]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inside)
        self.head = nn.Linear(inside, classes, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of images, (batch, channels, height, width)."""
        self.inputs.check(x.shape)
        y = self.norm(self.blocks(self.stem(x))).relu().mean((2, 3))
        out: Tensor = self.head(y)
        return out
