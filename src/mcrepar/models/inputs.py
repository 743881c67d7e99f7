"""What a network takes, and the refusal of what it cannot take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcrepar.errors import ParameterError

NOUNS = {2: "images", 3: "volumes"}


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
