"""DenseNet (Huang et al. 2017): every layer sees the channels of all layers before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mcrepar.models.blocks import STEMS, Inputs, he_normal
from mcrepar.models.blocks import stem as stem_of


def _conv(inside: int, outside: int, size: int) -> list[nn.Module]:
    """norm - relu - conv."""
    return [nn.BatchNorm2d(inside), nn.ReLU(), nn.Conv2d(inside, outside, size, padding=size // 2, bias=False)]


class Layer(nn.Sequential):
    """Its own `growth` channels beside those that came in.

    Args:
        inside: channels of the input.
        growth: channels that are added.
        bottleneck: whether a 1x1 convolution to 4 * growth channels comes before the 3x3 one.
    """

    def __init__(self, inside: int, growth: int, bottleneck: bool) -> None:
        entering = 4 * growth if bottleneck else inside
        super().__init__(*(_conv(inside, entering, 1) if bottleneck else []), *_conv(entering, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inside + growth, height, width)."""
        added = x
        for module in self:
            added = module(added)
        return torch.cat([x, added], 1)


class DenseNet(nn.Module):
    """A stem, stages of layers with a transition between them that halves the image, and a dense layer.

    Args:
        depths: the number of layers of every stage.
        growth: channels that a layer adds.
        classes: outputs.
        channels: of the image.
        stem: "7x7" for large images, "3x3" for small ones.
        width: channels after the stem; None is 2 * growth.
        bottleneck: whether a layer is 1x1 - 3x3 instead of 3x3.
        compression: the share of the channels that a transition keeps.
        bias: whether the dense layer has one.

    >>> DenseNet((2, 2), growth=4, stem="3x3")(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depths: Sequence[int],
        growth: int = 32,
        classes: int = 10,
        channels: int = 3,
        stem: str = "7x7",
        width: int | None = None,
        bottleneck: bool = True,
        compression: float = 0.5,
        bias: bool = True,
    ) -> None:
        super().__init__()
        inside = 2 * growth if width is None else width
        layers: list[nn.Module] = [*stem_of(stem, channels, inside, norm=True)]
        for stage, depth in enumerate(depths):
            if stage:
                fewer = int(inside * compression)
                layers += [
                    *_conv(inside, fewer, 1),
                    nn.AvgPool2d(2, ceil_mode=True),
                ]  # ceil_mode lets 28 x 28 pass
                inside = fewer
            for _ in range(depth):
                layers.append(Layer(inside, growth, bottleneck))
                inside += growth
        self.inputs = Inputs("DenseNet", channels, 2, least=STEMS[stem] * 2 ** (len(depths) - 1) // 2 + 1)
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(inside), nn.ReLU())
        self.head = nn.Linear(inside, classes, bias)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of images, (batch, channels, height, width)."""
        self.inputs.check(x.shape)
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits
