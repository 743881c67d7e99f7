"""Simulated brain volumes of two classes, of any size: no patient, no template, only formulas.

A volume is a smooth map of millimetres to grey: an ellipsoid whose outline, folds and inner parts move by low-order
harmonics. Three latent numbers, which overlap between the classes, widen the ventricles, shrink the hippocampi and thin
the cortex; everything else (warp, pose, bias field, contrast, noise) is drawn alike in both classes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcrepar.data.dataset import Dataset, Split, checked_size
from mcrepar.errors import ParameterError

Field = NDArray[np.float32]
CLASSES = ("simulated control", "simulated atrophy")
EXTENT = (157.5, 190.5, 157.5)  # mm: the paper's 105 x 127 x 105 voxels of 1.5 mm
TRAIN_SHARE = 300 / 388  # the paper's split
# The latents are Normal(-s/2, 1) in one class and Normal(s/2, 1) in the other.
SEPARATION = {"ventricles": 1.7, "hippocampus": 1.5, "cortex": 1.2}
# The accuracy of the best rule that sees the latents: Phi(d / 2), d the distance of the two means.
BAYES_ACCURACY = 0.5 * (1 + math.erf(math.hypot(*SEPARATION.values()) / 2 / math.sqrt(2)))
AIR, FLUID, GREY, WHITE = 0.0, 0.2, 0.62, 0.9  # intensities


def read_brain(
    root: Path | None = None, size: Sequence[int] = (35, 42, 35), subjects: int = 388, seed: int = 0
) -> Dataset:
    """Simulated volumes, half of them of each class, 300 of 388 for training.

    Args:
        root: not needed.
        size: three lengths; a subject is the same in every size.
        subjects: how many; at least 8.
        seed: of everything.

    >>> d = read_brain(size=(10, 12, 10), subjects=8)
    >>> d.simulated, d.classes, tuple(d.train.x.shape)
    (True, ('simulated control', 'simulated atrophy'), (6, 1, 10, 12, 10))
    """
    if root is not None:
        raise ParameterError(f"load('brain', root={str(root)!r})", "the volumes are simulated", "no root")
    lengths = _checked(size, subjects)
    x = torch.stack([torch.from_numpy(volume(i, lengths, seed)) for i in range(subjects)]).unsqueeze(1)
    whole = Split(x, torch.arange(subjects) % 2)
    training = torch.arange(subjects) < _training(subjects)
    source = f"simulated brain volumes, {subjects} subjects, seed {seed}"
    return Dataset("brain", whole.at(training), None, whole.at(~training), CLASSES, simulated=True, source=source)


def write_brain(folder: str | Path, size: Sequence[int] = (35, 42, 35), subjects: int = 388, seed: int = 0) -> Path:
    """The same volumes as NIfTI files with a table participants.csv, for `load("nifti", root=folder, size=size)`.

    Args:
        folder: a new or an empty one.
        size: three lengths.
        subjects: how many; at least 8.
        seed: of everything.
    """
    import nibabel

    lengths, folder = _checked(size, subjects), Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParameterError(f"write_brain({str(folder)!r})", "something is there already", "a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    step = [extent / length for extent, length in zip(EXTENT, lengths, strict=True)]
    affine = np.diag([*step, 1.0])
    affine[:3, 3] = [(s - e) / 2 for s, e in zip(step, EXTENT, strict=True)]
    with (folder / "participants.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["participant_id", "path", "label", "split", *SEPARATION])
        for i in range(subjects):
            name = f"simulated-{i:04d}"
            image = nibabel.Nifti1Image(volume(i, lengths, seed), affine)  # type: ignore[no-untyped-call]
            image.header["descrip"] = b"simulated by mcrepar, no patient"
            nibabel.save(image, folder / f"{name}.nii.gz")
            part = "train" if i < _training(subjects) else "test"
            numbers = [f"{value:.4f}" for value in latents(i, seed).values()]
            table.writerow([name, f"{name}.nii.gz", CLASSES[i % 2], part, *numbers])
    return folder


def _checked(size: Sequence[int], subjects: int) -> tuple[int, ...]:
    lengths = checked_size("simulated brain volumes", size, 3, least=4)
    if subjects < 8:
        raise ParameterError(f"{subjects} simulated subjects", "both parts need both classes", "subjects=8 or more")
    return lengths


def _training(subjects: int) -> int:
    return round(subjects * TRAIN_SHARE)


def latents(subject: int, seed: int) -> dict[str, float]:
    """What differs between the classes: Normal, around +-s/2 with the sign of the class.

    Args:
        subject: its number; even ones are controls.
        seed: of the whole set.
    """
    noise = np.random.default_rng((seed, subject, 0)).normal(size=len(SEPARATION))
    sign = 2 * (subject % 2) - 1
    return {name: sign * s / 2 + float(e) for (name, s), e in zip(SEPARATION.items(), noise, strict=True)}


def volume(subject: int, size: tuple[int, ...], seed: int) -> NDArray[np.uint8]:
    """One subject, axes right, front and up.

    Args:
        subject: its number.
        size: of the array.
        seed: of the whole set.
    """
    rng = np.random.default_rng((seed, subject, 1))
    axes = [((np.arange(n, dtype=np.float32) + 0.5) / n - 0.5) * e for n, e in zip(size, EXTENT, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))  # (3, *size), in mm
    p = _posed(grid + 2.5 * _harmonics(rng, size, order=4, fields=3), rng)
    blur = max(0.8, 0.35 * max(e / n for n, e in zip(size, EXTENT, strict=True)))  # mm: an edge is as wide as a voxel
    image = _anatomy(p, latents(subject, seed), rng, blur)
    image *= 1 + 0.06 * _harmonics(rng, size, order=3, fields=1)[0]
    image = np.clip(image, 0, None) ** np.float32(math.exp(rng.normal(0, 0.08)))
    sd = 0.03 * math.prod(size) ** (1 / 6) / 6.1  # a smaller voxel is noisier; 0.03 at 35 x 42 x 35
    real, imaginary = sd * rng.standard_normal((2, *size), dtype=np.float32)
    noisy = np.sqrt((image + real) ** 2 + imaginary**2)  # Rician, as a magnitude is
    result: NDArray[np.uint8] = np.clip(noisy * 230, 0, 255).astype(np.uint8)
    return result


def _anatomy(p: Field, latent: dict[str, float], rng: np.random.Generator, blur: float) -> Field:
    """Grey values at the places p, (3, *size) in mm."""

    def inside(distance: Any) -> Any:
        return 1 / (1 + np.exp(np.clip(distance / (0.5 * blur), -40, 40)))

    def ellipsoid(centre: Sequence[float], radii: Sequence[float]) -> Any:
        """About the distance to the surface in mm, negative inside; the same on both sides of the head."""
        away = (np.abs(p[0]) - centre[0], p[1] - centre[1], p[2] - centre[2])
        r = np.sqrt(sum((d / a) ** 2 for d, a in zip(away, radii, strict=True)))
        return (r - 1) * min(radii)

    phase = rng.uniform(0, 2 * math.pi, 3).tolist()  # numbers of Python leave float32 alone
    fold = np.prod([np.cos(2 * math.pi * p[i] / 24 + phase[i]) for i in range(3)], axis=0)
    pial = ellipsoid((0, 0, 0), (64, 80, 58)) + 2.0 * np.abs(fold)
    pial = np.maximum(pial, 2.0 - np.abs(p[0]) - 0.15 * np.clip(18 - p[2], 0, None))  # the gap of the hemispheres
    thickness = 5.5 - 0.8 * latent["cortex"] + 3.0 * fold
    wide = math.exp(0.13 * latent["ventricles"])
    ventricle = ellipsoid((11, -4, 9), (7 * wide, 27, 9 * wide))
    small = math.exp(-0.11 * latent["hippocampus"])
    hippocampus = ellipsoid((27, -18, -17), (8 * small, 17, 8 * small))
    thalamus = ellipsoid((13, -8, -3), (9, 14, 8))
    image = np.full(p.shape[1:], AIR, dtype=np.float32)
    layers = (
        (pial - 4, FLUID),
        (pial, GREY),
        (pial + thickness, WHITE),
        (thalamus, GREY),
        (ellipsoid((27, -18, -17), (9, 18, 9)), FLUID),
        (hippocampus, GREY),
        (ventricle, FLUID),
    )
    for distance, value in layers:  # each layer lies over those before it
        share = inside(distance)
        image = image * (1 - share) + value * share
    return image


def _harmonics(rng: np.random.Generator, size: tuple[int, ...], order: int, fields: int) -> Field:
    """Smooth random fields, (fields, *size) of variance about 1: sums of cos(pi k u) along every axis, k < order."""
    k = np.arange(order)
    waves = [np.cos(math.pi * np.outer((np.arange(n) + 0.5) / n, k)) for n in size]
    decay = 1 / (1 + k[:, None, None] ** 2 + k[:, None] ** 2 + k**2)
    decay[0, 0, 0] = 0  # a constant is a shift, which the pose has
    unit = np.where(k == 0, 1.0, 0.5)  # the mean of cos^2
    decay /= np.sqrt(np.einsum("ijk,i,j,k->", decay**2, unit, unit, unit))
    weights = rng.normal(size=(fields, order, order, order)) * decay
    parts = [array.astype(np.float32) for array in (weights, *waves)]
    field: Field = np.einsum("fijk,xi,yj,zk->fxyz", *parts, optimize=True)
    return field


def _posed(p: Field, rng: np.random.Generator) -> Field:
    """The places turned by about a degree, scaled by about 2 % and shifted by about a millimetre."""
    angles, scales, shift = rng.normal(0, math.radians(1.2), 3), rng.normal(0, 0.02, 3), rng.normal(0, 0.8, 3)
    turn = np.array([[0, -angles[2], angles[1]], [angles[2], 0, -angles[0]], [-angles[1], angles[0], 0]])
    matrix = (np.eye(3) + turn) @ np.diag(np.exp(scales))  # to first order a rotation
    posed: Field = np.tensordot(matrix.astype(np.float32), p, 1) + shift[:, None, None, None].astype(np.float32)
    return posed
