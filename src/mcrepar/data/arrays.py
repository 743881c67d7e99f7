"""Arrays in an .npz file: a user's own, or those of MedMNIST, which differ in the names only."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcrepar.data.dataset import PARTS, Dataset, Split, joined
from mcrepar.data.files import existing, listing, refuse, some
from mcrepar.data.numpy_files import npz_names, read_npz
from mcrepar.errors import ParameterError

Parts = Mapping[str, tuple[NDArray[Any], NDArray[Any] | None]]
KEYS = ("train", "val", "test")
WANTED = "x_train, y_train, x_test, y_test (x_val, y_val), or x or images alone for a set without labels"
LAYOUTS = ("auto", "first", "last", "none")


def read_arrays(root: Path, file: str = "", layout: str = "auto", classes: Sequence[str] = ()) -> Dataset:
    """Your own arrays: x_train, y_train, x_test, y_test and, if there, x_val, y_val.

    Integers in y are classes, floats the targets of a regression, with a warning where all of them are whole numbers:
    numpy.loadtxt reads classes as floats. Without x_test, x_val is the test set. A file with x or images (and y or
    labels) is a test set; without labels it serves for out-of-distribution detection, not for scores.

    Args:
        root: the .npz file, or the folder that holds it.
        file: its name, where the root is a folder with several.
        layout: where the channels are: first, last, none, or auto: first or last where that length is 1, 3 or 4.
        classes: their names; numbers where none are given.
    """
    path = _npz(root, file)
    parts = _parts(path, "x_{}", "y_{}")
    if not parts:
        names = npz_names(path)
        x, y = (next((name for name in pair if name in names), "") for pair in (("x", "images"), ("y", "labels")))
        if not x:
            refuse(path, f"it holds {some(sorted(names)) or 'nothing'}", WANTED)
        arrays = read_npz(path, (x, y))
        parts = {"test": (arrays[x], arrays.get(y))}
    return _dataset("arrays", path, parts, layout, classes)


def read_medmnist(root: Path, file: str = "", classes: Sequence[str] = ()) -> Dataset:
    """A set of MedMNIST, images or volumes: keys {train, val, test}_{images, labels}.

    Args:
        root: the .npz file, or the folder that holds it.
        file: its name, where the root is a folder with several, for instance adrenalmnist3d.npz.
        classes: their names; numbers where none are given.
    """
    path = _npz(root, file)
    names = npz_names(path)
    missing = [f"{part}_{kind}" for part in KEYS for kind in ("images", "labels") if f"{part}_{kind}" not in names]
    if missing:
        refuse(path, f"without {some(missing)}; it holds {some(sorted(names)) or 'nothing'}", "a file of MedMNIST")
    for name, labels in read_npz(path, [f"{part}_labels" for part in KEYS]).items():
        if labels.ndim == 2 and labels.shape[1] > 1:
            why = f"{name} has the shape {labels.shape}: several labels for each image"
            refuse(path, why, "a set with one label each")
    parts = _parts(path, "{}_images", "{}_labels")
    return _dataset("medmnist", path, parts, "auto", classes)


def _npz(root: Path, file: str) -> Path:
    path = root / file if file else root
    if path.is_dir():
        inside = sorted(path.glob("*.npz"))
        if len(inside) != 1:
            asked = f"root={str(path)!r}"
            raise ParameterError(asked, f"{len(inside)} .npz files; {listing(path)}", "file= to name one of them")
        return inside[0]
    return existing(path, "an .npz file, or the folder that holds it")


def _parts(path: Path, x: str, y: str) -> Parts:
    """The parts that are there, by the names of their arrays; the other arrays of the file are not read."""
    arrays = read_npz(path, [name.format(key) for key in PARTS for name in (x, y)])
    return {
        part: (arrays[x.format(key)], arrays.get(y.format(key)))
        for key, part in PARTS.items()
        if x.format(key) in arrays
    }


def _dataset(
    name: str,
    path: Path,
    parts: Parts,
    layout: str,
    classes: Sequence[str],
) -> Dataset:
    if layout not in LAYOUTS:
        raise ParameterError(f"layout={layout!r}", "the channels cannot be there", ", ".join(LAYOUTS))
    splits = {}
    for part, (x, y) in parts.items():
        if y is None and (part != "test" or len(parts) > 1):
            refuse(path, f"{part} has no labels", WANTED)
        if x.ndim < 2 or len(x) == 0 or (y is not None and y.shape not in ((len(x),), (len(x), 1))):
            refuse(
                path,
                f"{part} has x of {x.shape}, y of {getattr(y, 'shape', None)}",
                "x of (N, features), x[:, None] for one number, or of images, and y of (N,), N at least 1",
            )
        target = torch.full((len(x),), -1) if y is None else _targets(path, y.reshape(-1), bool(classes))
        splits[part] = Split(_images(path, x, layout), target)
    names = tuple(classes)
    y_all = torch.cat([split.y for split in splits.values()])
    if y_all.is_floating_point() and bool((y_all == y_all.round()).all()):
        warnings.warn(
            f"file {str(path)!r}: its y are floats, the targets of a regression, and all are whole numbers; "
            "if they are classes, save y.astype(int)",
            stacklevel=4,  # where load was called
        )
    if not names and not y_all.is_floating_point():
        if int(y_all.max()) >= len(y_all):
            refuse(path, f"it has the label {int(y_all.max())} in {len(y_all):,} examples", "labels counted from 0")
        names = tuple(str(number) for number in range(int(y_all.max()) + 1))
    return joined(name, splits, names, source=path.name)


def _targets(path: Path, y: NDArray[Any], named: bool) -> Tensor:
    """int64 classes of whole numbers, float32 targets of others."""
    if y.dtype.kind in "uib":
        return torch.from_numpy(y.astype(np.int64))
    if y.dtype.kind != "f" or named:
        refuse(path, f"y is {y.dtype}", "whole numbers for classes, or floats without classes= for a regression")
    return torch.from_numpy(y.astype(np.float32))


def _images(path: Path, x: NDArray[Any], layout: str) -> Tensor:
    """(N, C, *size) of uint8 or float32."""
    if x.dtype.kind not in "uifb" or x.ndim not in (2, 3, 4, 5):
        refuse(path, f"x is {x.dtype} of {x.shape}", "numbers in (N, features), images or volumes")
    if x.dtype != np.uint8:
        x = x.astype(np.float32)
    if x.ndim > 2:
        where = _guess(x.shape) if layout == "auto" else layout
        x = x[:, None] if where == "none" else np.moveaxis(x, -1, 1) if where == "last" else x
    return torch.from_numpy(np.ascontiguousarray(x))


def _guess(shape: tuple[int, ...]) -> str:
    if len(shape) > 3 and shape[1] in (1, 3, 4):
        return "first"
    return "last" if len(shape) > 3 and shape[-1] in (1, 3, 4) else "none"
