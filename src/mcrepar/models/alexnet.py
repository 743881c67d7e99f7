"""The small AlexNet of the paper, for images of 32 x 32 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from mcrepar.models.blocks import Inputs, he_normal


class AlexNet(nn.Module):
    """Five convolutions and one dense layer, none with a bias: 2.17 million weights for 10 classes.

    Args:
        classes: outputs.
        channels: of the image.

    >>> import torch
    >>> sum(p.numel() for p in AlexNet().parameters())
    2174912
    >>> AlexNet(classes=7, channels=1)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 7])
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.inputs = Inputs("AlexNet", channels, 2, least=17)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, kernel_size=11, stride=4, padding=5, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),  # ceil_mode lets 28 x 28 pass, and changes nothing at 32 x 32
            nn.Conv2d(64, 192, kernel_size=5, padding=2, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(192, 384, kernel_size=3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(384, 256, kernel_size=3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(256, 128, kernel_size=3, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        )
        self.classifier = nn.Linear(1 * 1 * 128, classes, bias=False)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of images, (batch, channels, height, width)."""
        self.inputs.check(x.shape)
        features: Tensor = self.features(x).mean((2, 3))  # of one pixel, where the image has 32 x 32
        logits: Tensor = self.classifier(features)
        return logits
