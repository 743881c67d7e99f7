"""Images with a class for every voxel, of one or of different sizes, and what a network sees of them: patches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mcrepar.data.dataset import OUTSIDE, Split
from mcrepar.data.patches import cut, random_corners, tiles, weights_of
from mcrepar.errors import ParameterError


@dataclass(frozen=True, eq=False)
class Scan:
    """What is known of an image besides its voxels.

    Args:
        name: of its files in a run folder; no two images share it.
        subject: whose image it is.
        extent: three lengths, with axes that point right, front and up; the last is 1 for an image of two dimensions.
        affine: from voxels, as the file has them, to millimetres, (4, 4).
        shape: of the label map in the file.
        path: of the image, or None where it is simulated.
    """

    name: str
    subject: str
    extent: tuple[int, ...]
    affine: NDArray[np.float64]
    shape: tuple[int, ...]
    path: Path | None = None


@dataclass(frozen=True, eq=False)
class Scans(Split):
    """Images and label maps, stacked: x (N, C, X, Y, Z) and y (N, X, Y, Z) of uint8, smaller ones filled up by 255.

    Args:
        about: what else is known, for each.
        patch: the lengths of what a network sees: two for images or slices of volumes, three for volumes.
        patches: how many of each image an epoch takes.
    """

    about: tuple[Scan, ...] = ()
    patch: tuple[int, ...] = ()
    patches: int = 1

    @property
    def size(self) -> tuple[int, ...]:
        """That of a patch."""
        return self.patch

    @property
    def repeats(self) -> int:
        """The number of patches of an image in an epoch."""
        return self.patches

    @property
    def window(self) -> tuple[int, ...]:
        """The patch as three lengths: a slice is one voxel thick."""
        return (*self.patch, *(1,) * (3 - len(self.patch)))

    @property
    def voxels(self) -> int:
        """How many voxels all images have together."""
        return sum(math.prod(scan.extent) for scan in self.about)

    def at(self, index: Tensor) -> Scans:
        """The images at these places."""
        places = torch.arange(len(self))[index].tolist()
        about = tuple(self.about[place] for place in places)
        return replace(self, x=self.x[index], y=self.y[index], about=about)

    def image(self, place: int) -> tuple[Tensor, Tensor]:
        """One image, (C, *extent), and its label map, (*extent), without what fills them up."""
        extent = self.about[place].extent
        return cut(self.x[place], (0, 0, 0), extent), cut(self.y[place], (0, 0, 0), extent)

    def middle(self) -> Split:
        """The patch in the middle of every image."""
        corners = [[tuple((n - w) // 2 for n, w in zip(scan.extent, self.window, strict=True))] for scan in self.about]
        return self._patches(list(range(len(self))), corners)

    def tiled(self) -> Split:
        """Patches side by side that hold every voxel; of those that overlap, the first counts, the others have 255."""
        corners = [list(tiles(scan.extent, self.window)) for scan in self.about]
        found = self._patches(list(range(len(self))), corners)
        place = 0
        for scan, each in zip(self.about, corners, strict=True):
            seen = torch.zeros(scan.extent, dtype=torch.bool)
            for corner in each:
                before = cut(seen, corner, self.window)
                found.y[place][before.reshape(self.patch)] = OUTSIDE
                before.fill_(True)
                place += 1
        return found

    def random_patches(
        self, index: Tensor, classes: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A random patch of some images, (batch, C, *patch), and weighted one-hot labels, (batch, classes, *patch).

        With the weights the mean over patches is an unbiased estimate of the mean over all voxels; see `weights_of`.

        Args:
            index: the places of the images, of which one may be there more often.
            classes: how many.
            generator: where the randomness comes from.
        """
        places, mean = index.tolist(), self.voxels / len(self)
        extents = [self.about[place].extent for place in places]
        corners = [random_corners(extent, self.window, generator) for extent in extents]
        found = self._patches(places, [[corner] for corner in corners])
        each = [weights_of(e, c, self.window, mean) for e, c in zip(extents, corners, strict=True)]
        weights = torch.stack(each).view_as(found.y)
        labels = F.one_hot(found.y.long(), classes).movedim(-1, 1)
        return found.x, labels * weights.unsqueeze(1)

    def _patches(self, places: list[int], corners: list[list[tuple[int, ...]]]) -> Split:
        pairs = [(place, corner) for place, each in zip(places, corners, strict=True) for corner in each]
        x = torch.stack([cut(self.x[place], corner, self.window) for place, corner in pairs])
        y = torch.stack([cut(self.y[place], corner, self.window) for place, corner in pairs])
        return Split(x.flatten(1 + len(self.patch)), y.flatten(len(self.patch))) if len(self.patch) < 3 else Split(x, y)

    def hold_out(self, share: float, seed: int) -> tuple[Scans, Scans]:
        """(rest, held), with all images of a subject in one of the two.

        Args:
            share: of the subjects that are held out.
            seed: of the choice.
        """
        subjects = sorted({scan.subject for scan in self.about})
        count = round(share * len(subjects))
        if not 0 < count < len(subjects):
            asked = f"a share of {share:g} of {len(subjects)} subjects, held out"
            why = "one of the two parts would be empty"
            raise ParameterError(asked, why, "a share between 0 and 1 that leaves both some, or more subjects")
        order = torch.randperm(len(subjects), generator=torch.Generator().manual_seed(seed))
        held = {subjects[place] for place in order[:count].tolist()}
        mask = torch.tensor([scan.subject in held for scan in self.about])
        return self.at(~mask), self.at(mask)


def stacked(
    images: list[Tensor], labels: list[Tensor], about: list[Scan], patch: tuple[int, ...], patches: int
) -> Scans:
    """Images of any sizes as one tensor.

    Args:
        images: (C, X, Y, Z) of uint8 each.
        labels: (X, Y, Z) of uint8 each.
        about: what else is known.
        patch: what a network sees.
        patches: of each image in an epoch.
    """
    most = [max(lengths) for lengths in zip(*(scan.extent for scan in about), strict=True)]
    x = torch.zeros(len(images), len(images[0]), *most, dtype=torch.uint8)
    y = torch.full((len(images), *most), OUTSIDE, dtype=torch.uint8)
    for place, (image, label, scan) in enumerate(zip(images, labels, about, strict=True)):
        cut(x[place], (0, 0, 0), scan.extent).copy_(image)
        cut(y[place], (0, 0, 0), scan.extent).copy_(label)
    return Scans(x, y, tuple(about), patch, patches)
