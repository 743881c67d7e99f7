"""Dense layers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.models.blocks import he_normal


class FCNet(nn.Module):
    """Dense layers with ReLU between them, on data of one size, whatever its shape.

    Args:
        classes: outputs.
        channels: of an example; how many numbers there are, where `size` is ().
        size: sides of an image or a volume.
        hidden: the width of every hidden layer.
        bias: whether layers have one.

    >>> import torch
    >>> FCNet(classes=7, channels=1, size=(28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 7])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        size: Sequence[int] = (32, 32),
        hidden: Sequence[int] = (400, 400),
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.numbers = channels * math.prod(size)
        widths = [self.numbers, *hidden]
        layers: list[nn.Module] = []
        for inside, outside in pairwise(widths):
            layers += [nn.Linear(inside, outside, bias), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes, bias))
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes)."""
        x = x.flatten(1)
        if x.shape[1] != self.numbers:
            raise ParameterError(
                f"FCNet on data of {x.shape[1]} numbers",
                f"it was built for {self.numbers}",
                "channels= and size= of the data, for instance channels=1, size=(28, 28)",
            )
        logits: Tensor = self.layers(x)
        return logits
