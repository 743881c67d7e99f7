"""The residual network for 32 x 32 images of He et al. (2016): 6 n + 2 layers, 0.27 M weights for n = 3."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mcrepar.models.blocks import Inputs, he_normal


class Block(nn.Module):
    """Two 3 x 3 convolutions beside the identity; a smaller identity is cut by its stride and padded with zeros.

    Args:
        inputs: the channels that come in.
        outputs: the channels that go out.
        stride: of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, outputs, height, width), the sides divided by the stride and rounded up."""
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        same = x[:, :, :: self.stride, :: self.stride]
        half = self.padding // 2
        return F.relu(out + F.pad(same, (0, 0, 0, 0, half, self.padding - half)))


class ResNetCifar(nn.Module):
    """Three stages of n blocks with 16, 32 and 64 channels.

    Args:
        blocks: n; 3 gives ResNet-20.
        classes: the length of the output.
        channels: of the images.
        width: a factor of all channels.

    >>> import torch
    >>> ResNetCifar(3)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, blocks: int, classes: int = 10, channels: int = 3, width: int = 1) -> None:
        super().__init__()
        self.inputs = Inputs("ResNetCifar", channels, 2, least=3)
        widths = [16 * width, 32 * width, 64 * width]
        self.conv = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        layers: list[nn.Module] = []
        inputs = widths[0]
        for stage, outputs in enumerate(widths):
            for block in range(blocks):
                layers.append(Block(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.linear = nn.Linear(inputs, classes)
        for part in (self.conv, self.blocks):
            he_normal(part)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of images, (batch, channels, height, width)."""
        self.inputs.check(x.shape)
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits
