"""LeNet-5, the network of small grey images."""

from __future__ import annotations

from torch import Tensor, nn

from mcrepar.models.blocks import Inputs


class LeNet5(nn.Module):
    """LeCun's two convolutions and three dense layers with ReLU and max pooling: 61,706 weights for grey images.

    Args:
        classes: outputs.
        channels: of the image.

    >>> import torch
    >>> LeNet5(classes=10, channels=1)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.inputs = Inputs("LeNet5", channels, 2, least=12)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveMaxPool2d(5),  # nothing to do at 28 x 28
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of images, (batch, channels, height, width)."""
        self.inputs.check(x.shape)
        logits: Tensor = self.classifier(self.features(x))
        return logits
