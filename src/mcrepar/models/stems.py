"""The first layers of a deep network, for small images or for large ones."""

from __future__ import annotations

from torch import nn

from mcrepar.errors import ParameterError

STEMS = {"3x3": 1, "7x7": 4}  # by which factor each shrinks an image


def stem(kind: str, channels: int, width: int, norm: bool) -> nn.Sequential:
    """One 3x3 convolution, or a 7x7 convolution with stride 2 and a max pooling with stride 2.

    Args:
        kind: "3x3" or "7x7".
        channels: of the image.
        width: channels that come out.
        norm: whether BatchNorm and ReLU stand between the 7x7 convolution and the pooling.

    >>> [type(layer).__name__ for layer in stem("7x7", 3, 64, norm=True)]
    ['Conv2d', 'BatchNorm2d', 'ReLU', 'MaxPool2d']
    """
    if kind not in STEMS:
        raise ParameterError(f"stem={kind!r}", "there is no such stem", "'3x3' for small images, '7x7' for large ones")
    if kind == "3x3":
        return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False))
    between = [nn.BatchNorm2d(width), nn.ReLU()] if norm else []
    convolution = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
    return nn.Sequential(convolution, *between, nn.MaxPool2d(3, 2, padding=1))
