"""Volumes in NIfTI files, listed by a table: turned one way up, brought to one size and one range of intensity."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mcrepar.data.batches import divided
from mcrepar.data.dataset import PARTS, Dataset, Split, checked_size, joined
from mcrepar.data.files import existing, refuse, some, unpacked
from mcrepar.data.skips import Skips
from mcrepar.errors import ParameterError
from mcrepar.user_files import read_text

PAPER_SIZE = (105, 127, 105)
SUFFIXES = (".nii", ".nii.gz")
LARGEST_TABLE = 2**26  # bytes


@dataclass(frozen=True)
class _Row:
    """One line of the table; numbers count from 1, and line 1 is the header."""

    line: int
    volume: Path
    label: str
    part: str


def read_nifti(
    root: Path,
    table: str = "participants.csv",
    size: Sequence[int] = PAPER_SIZE,
    path_column: str = "path",
    id_column: str = "participant_id",
    label_column: str = "label",
    split_column: str = "split",
    classes: Sequence[str] = (),
    regression: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
    skip_damaged: bool = False,
) -> Dataset:
    """Volumes listed by a table: one row each, with its file or the name its file starts with, and its label.

    A volume is turned so that its axes point right, front and up, resampled to the size (linear along every axis, with
    averaging where it shrinks), and its intensities between the 1st and 99th percentile of the foreground (what is not
    its least value, to which NaN is set) become 0 to 255.

    Args:
        root: the folder that holds the table; paths in it start here.
        table: the name of the .csv (or .tsv) file.
        size: of all volumes; by default the paper's.
        path_column: the file of a row; without this column it is looked for by its id.
        id_column: what the name of the file starts with.
        label_column: the class, or a number for a regression.
        split_column: train, val or test; without this column the test set is chosen at random.
        classes: the labels in the order of the classes; sorted where none are given.
        regression: whether the label is a number to predict.
        test_share: of all volumes, where the table has no split.
        seed: of that choice.
        skip_damaged: leave damaged volumes out, with a warning that lists them, instead of refusing the table.
    """
    target = checked_size("load('nifti')", size, 3)
    path = root / table
    if root.is_file():
        raise ParameterError(f"root={str(root)!r}", "it is a file", f"its folder as the root, and table={root.name}")
    if find_spec("nibabel") is None:
        raise ParameterError("load('nifti')", "nibabel is not installed", "pip install nibabel")
    rows = list(_rows(path, path_column, id_column, label_column, split_column))
    y, names = _targets(path, rows, label_column, None if regression else classes or sorted({r.label for r in rows}))
    x, simulated = torch.empty(len(rows), 1, *target, dtype=torch.uint8), False
    read: list[int] = []
    skips = Skips(root, skip_damaged)
    for i, (volume, described) in skips.whole([row.volume for row in rows], partial(_prepared, size=target)):
        x[len(read), 0] = volume
        read.append(i)
        simulated = simulated or described.startswith("simulated")
    parts = divided(Split(x[: len(read)], y[read]), [rows[i].part for i in read], test_share, seed)
    return skips.noted(joined("nifti", parts, names, f"{path.name}, {len(read)} volumes", simulated), len(rows))


def _prepared(path: Path, size: tuple[int, ...]) -> tuple[Tensor, str]:
    volume, described = read_volume(path)
    return scaled(resample(volume, size), path), described


def _rows(path: Path, path_column: str, id_column: str, label_column: str, split_column: str) -> Iterator[_Row]:
    text = read_text(existing(path, "table= for the name of the table"), LARGEST_TABLE, "utf-8-sig")
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
        lines = [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        refuse(path, f"its {len(text):,} characters are no table ({error})", "a .csv or .tsv file in UTF-8")
    columns = list(lines[0][1]) if lines else []
    by_path = path_column in columns
    if label_column not in columns or not (by_path or id_column in columns):
        wanted = f"{path_column!r} (or {id_column!r}) and {label_column!r}, or path_column=, id_column=, label_column="
        refuse(path, f"its columns are {some([str(c) for c in columns]) or 'none'}", f"a table with rows of {wanted}")
    volumes = [] if by_path else sorted(p for p in path.parent.rglob("*") if p.name.endswith(SUFFIXES))
    seen: dict[Path, int] = {}
    for number, line in lines:
        name = (line[path_column if by_path else id_column] or "").strip()
        label, part = ((line.get(column) or "").strip() for column in (label_column, split_column))
        if not name or not label:
            refuse(path, f"line {number} has no {'label' if name else 'volume'}", "a table without empty cells")
        if split_column in columns and part.lower() not in PARTS:
            refuse(path, f"line {number} has the {split_column} {part!r}", "train, val or test")
        volume = path.parent / name if by_path else _by_id(path, number, name, volumes)
        if not volume.is_file():
            refuse(path, f"line {number} names {name!r}, and there is no such volume", "a table of volumes that exist")
        first = seen.setdefault(volume.resolve(), number)
        if first != number:
            why = f"lines {first} and {number} name the same volume, {volume.name!r}"
            refuse(path, why, "one line for each volume: in two parts it would be its own test")
        yield _Row(number, volume, label, PARTS.get(part.lower(), ""))


def _by_id(path: Path, number: int, name: str, volumes: Sequence[Path]) -> Path:
    """The one volume whose name is the id, or starts with it and goes on with neither letter nor digit."""
    found = [p for p in volumes if p.name.startswith(name) and not p.name[len(name) : len(name) + 1].isalnum()]
    if len(found) != 1:
        which = f"{len(found)} volumes start with it ({some([p.name for p in found])})" if found else "no volume does"
        refuse(path, f"line {number} has the id {name!r}, and {which}", "one volume for each id, or a column of paths")
    return found[0]


def _targets(
    path: Path, rows: Sequence[_Row], column: str, classes: Sequence[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """The places of the labels among the classes, or the labels as numbers where there are no classes."""
    y: list[float] = []
    for row in rows:
        try:
            y.append(float(row.label) if classes is None else classes.index(row.label))
        except ValueError:
            wanted = (
                "numbers for a regression" if classes is None else f"labels among classes=, which are {some(classes)}"
            )
            refuse(path, f"line {row.line} has the {column} {row.label!r}", wanted)
    return torch.tensor(y, dtype=torch.float32 if classes is None else torch.int64), tuple(classes or ())


def open_nifti(path: Path) -> Any:
    """A whole NIfTI image of nibabel, its voxels not yet read.

    Args:
        path: a .nii or .nii.gz file.
    """
    import nibabel

    raw = bytes(unpacked(path))
    kind = nibabel.Nifti2Image if raw[4:7] == b"n+2" else nibabel.Nifti1Image
    try:
        image = kind.from_bytes(raw)
        wanted = math.prod(image.shape) * image.get_data_dtype().itemsize  # type: ignore[no-untyped-call]
        if wanted > len(raw):  # before memory is taken for it
            raise ValueError(f"its header of {image.shape} needs {wanted:,} bytes")
        return image
    except Exception as error:  # a damaged header fails in many ways, some of them nibabel's own
        _damaged(path, error)


def voxels(path: Path, image: Any) -> NDArray[np.float32]:
    """The values of an image, in float32.

    Args:
        path: of its file, for messages.
        image: as `open_nifti` gives it, or turned.
    """
    try:
        return np.asarray(image.get_fdata(dtype=np.float32))
    except MemoryError:
        refuse(path, f"its volume of {image.shape} does not fit into the memory", "a machine with more memory")
    except Exception as error:
        _damaged(path, error)


def _damaged(path: Path, error: Exception) -> NoReturn:
    refuse(path, f"its {path.stat().st_size:,} bytes are no whole NIfTI volume ({type(error).__name__}: {error})")


def description(image: Any) -> str:
    """What the header of an image says about it."""
    return str(image.header["descrip"].item().decode("latin-1"))


def read_volume(path: Path) -> tuple[Tensor, str]:
    """A volume whose axes point right, front and up, (X, Y, Z) in float32, without NaN, and what its header says.

    Args:
        path: a .nii or .nii.gz file.
    """
    import nibabel

    try:
        image = nibabel.as_closest_canonical(open_nifti(path))  # type: ignore[no-untyped-call]
    except ParameterError:
        raise
    except Exception as error:
        _damaged(path, error)
    values = voxels(path, image)
    if values.ndim == 4 and values.shape[3] == 1:
        values = values[..., 0]
    if values.ndim != 3:
        refuse(path, f"it has the shape {values.shape}", "one volume of three dimensions")
    return torch.from_numpy(filled(values, path)), description(image)


def filled(values: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """The values with the least of them in the place of NaN and inf.

    Args:
        values: of an image.
        path: of its file, for messages.
    """
    finite = np.isfinite(values)
    if not finite.any():
        refuse(
            path,
            f"all its values are NaN{'' if np.isnan(values).all() else ' or inf'}",
            "a volume with something in it",
        )
    return np.where(finite, values, np.float32(values[finite].min()))


def resample(volume: Tensor, size: tuple[int, ...]) -> Tensor:
    """A volume of another size: linear along every axis, with averaging where it shrinks.

    Args:
        volume: (X, Y, Z).
        size: the new lengths.

    >>> resample(torch.arange(8.0).view(2, 2, 2), (1, 1, 1))
    tensor([[[3.5000]]])
    """
    if tuple(volume.shape) == size:
        return volume
    x, y, z = size
    # torch averages in two dimensions only: the planes (Y, Z) first, then X, with Y and Z as one long row.
    planes = F.interpolate(volume[None], (y, z), mode="bilinear", antialias=True)[0]
    return F.interpolate(planes.reshape(1, 1, len(planes), y * z), (x, y * z), mode="bilinear", antialias=True).view(
        x, y, z
    )


def scaled(volume: Tensor, path: Path) -> Tensor:
    """The intensities between two percentiles of the foreground as uint8.

    Args:
        volume: of any shape.
        path: of its file, for messages.
    """
    least = volume.min()
    foreground = volume[volume > least].numpy()
    if foreground.size == 0:
        refuse(path, "all its values are equal", "a volume with something in it")
    low, high = (float(q) for q in np.percentile(foreground, (1, 99)))
    if high <= low:
        low, high = float(least), float(foreground.max())
    return ((volume - low) * (255 / (high - low))).round_().clamp_(0, 255).to(torch.uint8)
