"""Simulated images of an organ with lesions, of two or three dimensions, for segmentation: only formulas, no patient.

An organ (label 1) with a wavy outline lies in a darker background; lesions (label 2) inside of it differ from it by
little, and vessels, which look alike and also lie outside of it, belong to what is around them. Blur, noise and
a field of uneven brightness make outlines uncertain. A subject has two images, of the same organ, at two visits.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mcrepar.data.dataset import Dataset
from mcrepar.data.scans import Scan, stacked
from mcrepar.data.segmentation import checked_patch
from mcrepar.errors import ParameterError

Field = NDArray[np.float64]
CLASSES = ("background", "organ", "lesion")
BACKGROUND, ORGAN, LESION, VESSEL = 0.45, 0.7, 0.45, 0.35  # intensities
NOISE, BLUR = 0.06, 1.2  # standard deviation of the noise, and half the width of an edge in voxels
VISITS = 2
SPACING = 2.0  # mm
PARTS = (("train", 0.6), ("val", 0.2), ("test", 0.2))


def read_structures(
    root: Path | None = None,
    size: Sequence[int] = (64, 64),
    patch: Sequence[int] = (48, 48),
    patches: int = 4,
    subjects: int = 40,
    seed: int = 0,
) -> Dataset:
    """Simulated images with an organ and its lesions, two of each subject: 60 % for training, 20 % for validation.

    Args:
        root: not needed.
        size: two or three lengths of at least 24.
        patch: what the network sees, two or three lengths of at most the size.
        patches: how many of each image an epoch takes.
        subjects: how many; at least 5.
        seed: of everything.

    >>> d = read_structures(size=(32, 32), patch=(32, 32), subjects=5)
    >>> d.simulated, d.classes, d.size, [len(part) for part in d.parts.values()]
    (True, ('background', 'organ', 'lesion'), (32, 32), [6, 2, 2])
    """
    if root is not None:
        raise ParameterError(f"load('structures', root={str(root)!r})", "the images are simulated", "no root")
    sides, lengths = _checked(size, subjects), checked_patch("load('structures')", patch, patches)
    if any(w > n for n, w in zip((*sides, 1), lengths, strict=False)):
        asked = f"load('structures', size={list(sides)}, patch={list(lengths)})"
        raise ParameterError(asked, "the patch is larger than the images", "a patch of at most their size")
    images, labels, about, parts = [], [], [], []
    for name, subject, part, image, label in _all(sides, subjects, seed):
        solid = (*sides, *(1,) * (3 - len(sides)))
        images.append(torch.from_numpy(image.reshape(1, *solid)))
        labels.append(torch.from_numpy(label.reshape(solid)))
        about.append(Scan(name, subject, solid, _affine(), sides))
        parts.append({"val": "validation"}.get(part, part))
    whole = stacked(images, labels, about, lengths, patches)
    chosen = {name: whole.at(torch.tensor([part == name for part in parts])) for name in dict.fromkeys(parts)}
    source = f"simulated organs, {subjects} subjects, {VISITS} images each, seed {seed}"
    return Dataset("structures", chosen["train"], chosen["validation"], chosen["test"], CLASSES, True, source)


def write_structures(folder: str | Path, size: Sequence[int] = (64, 64), subjects: int = 40, seed: int = 0) -> Path:
    """The same images as NIfTI files with a table images.csv, for `load("segmentation", root=folder)`.

    Args:
        folder: a new or an empty one.
        size: two or three lengths of at least 24.
        subjects: how many; at least 5.
        seed: of everything.
    """
    import nibabel

    sides, folder = _checked(size, subjects), Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParameterError(f"write_structures({str(folder)!r})", "something is there already", "a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "images.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "label", "subject", "split"])
        for name, subject, part, image, label in _all(sides, subjects, seed):
            files = [f"{name}.nii.gz", f"{name}_label.nii.gz"]
            for values, place in zip((image, label), files, strict=True):
                volume = nibabel.Nifti1Image(values, _affine())  # type: ignore[no-untyped-call]
                volume.header["descrip"] = b"simulated by mcrepar, no patient"
                nibabel.save(volume, folder / place)
            table.writerow([*files, subject, part])
    return folder


def _checked(size: Sequence[int], subjects: int) -> tuple[int, ...]:
    sides = tuple(size)
    if len(sides) not in (2, 3) or not all(type(side) is int and side >= 24 for side in sides):
        wanted = "two or three whole numbers of at least 24"
        raise ParameterError(f"simulated organs, size={list(sides)}", "a size is two or three lengths", wanted)
    if subjects < 5:
        raise ParameterError(f"{subjects} simulated subjects", "all parts need one", "subjects=5 or more")
    return sides


def _affine() -> Field:
    return np.diag([SPACING, SPACING, SPACING, 1.0])


def _all(
    size: tuple[int, ...], subjects: int, seed: int
) -> list[tuple[str, str, str, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Name, subject, part, image and label map of every image."""
    ends = [round(subjects * sum(share for _, share in PARTS[: k + 1])) for k in range(len(PARTS))]
    found = []
    for subject in range(subjects):
        part = next(name for (name, _), end in zip(PARTS, ends, strict=True) if subject < end)
        for visit in range(VISITS):
            name = f"simulated-{subject:03d}-{visit + 1}"
            found.append((name, f"subject-{subject:03d}", part, *image_of(subject, visit, size, seed)))
    return found


def image_of(subject: int, visit: int, size: tuple[int, ...], seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One image and its label map.

    Args:
        subject: its number: the organ, its lesions and vessels.
        visit: the noise, the uneven brightness and where the subject lies.
        size: two or three lengths.
        seed: of the whole set.
    """
    anatomy = np.random.default_rng((seed, subject, 0))
    scanner = np.random.default_rng((seed, subject, 1 + visit))
    d = len(size)
    axes = [(np.arange(n) + 0.5) / n * 2 - 1 for n in size]  # -1 to 1
    p = np.stack(np.meshgrid(*axes, indexing="ij")) + scanner.normal(0, 0.03, d).reshape(-1, *(1,) * d)
    edge = BLUR * 2 / min(size)

    def inside(distance: Field) -> Field:
        shares: Field = 1 / (1 + np.exp(np.clip(distance / (0.4 * edge), -40, 40)))
        return shares

    def ball(centre: Field, radii: Field) -> Field:
        """About the distance to the surface, negative inside."""
        away = (p - centre.reshape(-1, *(1,) * d)) / radii.reshape(-1, *(1,) * d)
        distance: Field = (np.sqrt((away**2).sum(0)) - 1) * radii.min()
        return distance

    centre = anatomy.normal(0, 0.08, d)
    waves = sum(
        anatomy.normal(0, 0.035) * np.cos(k * math.pi * p[a] + anatomy.uniform(0, 2 * math.pi))
        for a in range(d) for k in (1, 2, 3)
    )  # fmt: skip
    organ = ball(centre, anatomy.uniform(0.42, 0.62, d)) + waves
    image = np.full(size, BACKGROUND) + (ORGAN - BACKGROUND) * inside(organ)
    label = (organ < 0).astype(np.uint8)
    for _ in range(anatomy.integers(1, 4)):
        lesion = np.maximum(ball(centre + anatomy.uniform(-0.3, 0.3, d), anatomy.uniform(0.12, 0.25, d)), organ)
        contrast = anatomy.uniform(0.4, 1.2) * (LESION - ORGAN)  # some are hardly to be seen
        image = image + contrast * inside(lesion)
        label[lesion < 0] = 2
    for _ in range(3):  # vessels: look like small lesions, and are none
        vessel = ball(anatomy.uniform(-0.8, 0.8, d), np.full(d, anatomy.uniform(0.05, 0.09)))
        image = image + (VESSEL - BACKGROUND) * inside(vessel)
    bias = sum(scanner.normal(0, 0.05) * np.cos(math.pi * (p[a] + scanner.uniform(-1, 1))) for a in range(d))
    real, imaginary = scanner.normal(0, NOISE, (2, *size))
    noisy = np.sqrt((image * (1 + bias) + real) ** 2 + imaginary**2)  # Rician, as a magnitude is
    return np.clip(noisy * 255, 0, 255).astype(np.uint8), label
