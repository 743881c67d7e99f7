"""VGG (Simonyan & Zisserman 2015) with the paper's dense layers, half as wide as the original's."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from mcrepar.models.blocks import Inputs, he_normal


class VGG(nn.Module):
    """Five stages of 3x3 convolutions, each ended by a pooling, and three dense layers; no dropout.

    Args:
        depths: the number of convolutions of every stage.
        batch_norm: whether BatchNorm follows every convolution.
        classes: outputs.
        channels: of the image.
        width: channels of the first stage; the others have 2, 4, 8 and 8 times as many.
        dense: width of the two hidden dense layers; the original has 4096.
        pooled: the side to which the features are pooled before the dense layers. 7 is the original's, for 224 x 224,
            and the one the paper counts; 32 x 32 leave one pixel, which 7 copies 49 times: 1 saves 50 million weights.
        bias: whether layers that no norm follows have one.

    >>> import torch
    >>> VGG((1, 1, 2, 2, 2), width=8, dense=16, pooled=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depths: Sequence[int],
        batch_norm: bool = False,
        classes: int = 10,
        channels: int = 3,
        width: int = 64,
        dense: int = 2048,
        pooled: int = 7,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.inputs = Inputs("VGG", channels, 2, least=2 ** len(depths) // 2 + 1)
        layers: list[nn.Module] = []
        inside = channels
        for stage, depth in enumerate(depths):
            outside = width * 2 ** min(stage, 3)
            for _ in range(depth):
                layers.append(nn.Conv2d(inside, outside, 3, padding=1, bias=bias and not batch_norm))
                layers += [nn.BatchNorm2d(outside), nn.ReLU()] if batch_norm else [nn.ReLU()]
                inside = outside
            layers.append(nn.MaxPool2d(2, ceil_mode=True))  # ceil_mode lets 28 x 28 pass
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Linear(inside * pooled**2, dense, bias),
            nn.ReLU(),
            nn.Linear(dense, dense, bias),
            nn.ReLU(),
            nn.Linear(dense, classes, bias),
        )
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of images, (batch, channels, height, width)."""
        self.inputs.check(x.shape)
        features: Tensor = self.pool(self.features(x))
        logits: Tensor = self.classifier(features.flatten(1))
        return logits
