"""What networks share: the inputs that they take, their first layers, and their initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from mcrepar.errors import ParameterError

NOUNS = {2: "images", 3: "volumes"}
STEMS = {"3x3": 1, "7x7": 4}  # by which factor each shrinks an image


@dataclass(frozen=True)
class Inputs:
    """Images or volumes, (batch, channels, *sides), with no side shorter than `least`.

    Args:
        network: its name, for the message.
        channels: of the images.
        dimensions: 2 for images, 3 for volumes.
        least: the shortest side; on a shorter one, a layer that halves would find a single pixel.

    >>> Inputs("VGG", 3, 2, least=17).check((1, 3, 8, 8))
    Traceback (most recent call last):
    mcrepar.errors.ParameterError: VGG on images of 8 x 8: it takes 17 x 17 and more. Use larger images
    (torch.nn.functional.interpolate), or a network that shrinks them less (mcrepar.models.MODELS[name].least).
    """

    network: str
    channels: int
    dimensions: int
    least: int

    def check(self, shape: Sequence[int]) -> None:
        """Refuse a batch of this shape where the network cannot take it."""
        noun = NOUNS[self.dimensions]
        if len(shape) != self.dimensions + 2:
            raise ParameterError(
                f"{self.network} on a tensor of shape {tuple(shape)}",
                f"it takes {noun}, {self.dimensions + 2} dimensions: (batch, channels, *sides)",
                f"x[:, None] for {noun} without a channel, x[None] for one without a batch, or another network",
            )
        channels, size = shape[1], shape[2:]
        if channels != self.channels:
            raise ParameterError(
                f"{self.network} on {noun} with {channels} channels",
                f"it was built for {self.channels}",
                f"channels={channels}",
            )
        if min(size) < self.least:
            raise ParameterError(
                f"{self.network} on {noun} of {' x '.join(map(str, size))}",
                f"it takes {' x '.join([str(self.least)] * self.dimensions)} and more",
                f"larger {noun} (torch.nn.functional.interpolate), or a network that shrinks them less "
                "(mcrepar.models.MODELS[name].least)",
            )


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


def he_normal(net: nn.Module) -> None:
    """Weights of convolutions and dense layers ~ N(0, 2 / inputs of a unit), biases 0 (He et al. 2015).

    torch's own initialisation has a sixth of this variance, and fade out over the layers where there is no norm.

    >>> layer = nn.Linear(800, 500)
    >>> he_normal(layer)
    >>> round(layer.weight.std().item(), 2), layer.bias.abs().max().item()
    (0.05, 0.0)
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
