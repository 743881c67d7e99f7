"""The small AlexNet of the paper, for images of 32 x 32 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AlexNet(nn.Module):
    """Five convolutions and one dense layer, none with a bias: 2.17 million weights for 10 classes.

    Args:
        n_classes: number of logits.
        n_channels: of the images.

    >>> sum(p.numel() for p in AlexNet().parameters())
    2174912
    >>> AlexNet(n_classes=7, n_channels=1)(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 7])
    """

    def __init__(self, n_classes: int = 10, n_channels: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(n_channels, 64, kernel_size=11, stride=4, padding=5, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(384, 256, kernel_size=3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(256, 128, kernel_size=3, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(1 * 1 * 128, n_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, n_classes), of images, (batch, n_channels, 32, 32)."""
        features: Tensor = self.features(x)
        logits: Tensor = self.classifier(torch.flatten(features, 1))
        return logits
