"""A small convolutional network that trains on a CPU within a minute."""

from __future__ import annotations

from torch import Tensor, nn

from mcrepar.models.blocks import Inputs, he_normal


class SmallConv(nn.Module):
    """Three convolutions and two dense layers, without a norm: 35 thousand weights for grey images.

    Args:
        classes: outputs.
        channels: of the image.

    >>> import torch
    >>> SmallConv(classes=10, channels=1)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.inputs = Inputs("SmallConv", channels, 2, least=8)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(4),  # nothing to do at 8 x 8
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 40), nn.ReLU(), nn.Linear(40, classes))
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of images, (batch, channels, height, width)."""
        self.inputs.check(x.shape)
        logits: Tensor = self.classifier(self.features(x))
        return logits
