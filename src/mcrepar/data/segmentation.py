"""Images and label maps in NIfTI files, listed by a table, for segmentation; and maps written into an image's space."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcrepar.data.dataset import OUTSIDE, PARTS, Dataset, joined
from mcrepar.data.files import existing, refuse, some
from mcrepar.data.nifti import LARGEST_TABLE, description, filled, open_nifti, scaled, voxels
from mcrepar.data.scans import Scan, Scans, stacked
from mcrepar.errors import ParameterError
from mcrepar.user_files import read_text, write_file

COLUMNS = ("image", "label", "subject")
SAME_PLACE = 1e-3  # how far two affines may be apart, in mm per voxel and in mm


@dataclass(frozen=True)
class _Row:
    """One line of the table; numbers count from 1, and line 1 is the header."""

    line: int
    image: Path
    label: Path
    subject: str
    part: str


def read_segmentation(
    root: Path,
    table: str = "images.csv",
    patch: Sequence[int] = (64, 64, 64),
    patches: int = 4,
    classes: Sequence[str] = (),
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Images and their label maps, listed by a table with the columns image, label, subject and, if there, split.

    Images keep their voxels. Volumes are turned so that their axes point right, front and up; intensities between the
    1st and 99th percentile of the foreground (what is not the least value) become 0 to 255, channel by channel. A label
    map holds whole numbers from 0 (background) on, in the same voxels as its image. All images of a subject are in one
    part.

    Args:
        root: the folder that holds the table; paths in it start here.
        table: the name of the .csv (or .tsv) file.
        patch: what the network sees: two lengths for a 2D network (images, or slices of volumes across their last
            axis), three for a 3D one.
        patches: how many of each image an epoch takes, at random places.
        classes: the names of the labels 0, 1, ...; numbers where none are given.
        test_share: of the subjects, where the table has no column split.
        seed: of that choice.
    """
    lengths = checked_patch("load('segmentation')", patch, patches)
    if root.is_file():
        raise ParameterError(f"root={str(root)!r}", "it is a file", f"its folder as the root, and table={root.name}")
    path = existing(root / table, "table= for the name of the table")
    if find_spec("nibabel") is None:
        raise ParameterError("load('segmentation')", "nibabel is not installed", "pip install nibabel")
    rows = _rows(path)
    images: list[Tensor] = []
    labels: list[Tensor] = []
    about: list[Scan] = []
    said: list[str] = []
    for row, name in zip(rows, _file_names(rows, root), strict=True):
        image, label, scan, described = _read(row, name)
        _check_patch(row.image, scan.extent, lengths)
        if images and len(image) != len(images[0]):
            why = f"it has {len(image)} channels, and {rows[0].image.name} has {len(images[0])}"
            refuse(row.image, why, "images with the same channels")
        images.append(image)
        labels.append(label)
        about.append(scan)
        said.append(described)
    names = _names(rows, labels, classes)
    whole = stacked(images, labels, about, lengths, patches)
    simulated = any(each.startswith("simulated") for each in said)
    source = f"{path.name}, {len(rows)} images of {len({row.subject for row in rows})} subjects"
    return joined("segmentation", _parts(whole, rows, test_share, seed), names, source, simulated)


def checked_patch(asked: str, patch: object, patches: int) -> tuple[int, ...]:
    """The lengths of an option patch=, or a refusal.

    Args:
        asked: the first part of the error.
        patch: what was given.
        patches: of each image in an epoch.

    >>> checked_patch("load('segmentation')", [64, 64], 4)
    (64, 64)
    """
    lengths = tuple(patch) if isinstance(patch, Sequence) else ()
    if len(lengths) not in (2, 3) or not all(type(length) is int and length >= 1 for length in lengths):
        why = "a patch is two lengths, for a 2D network, or three, for a 3D one"
        raise ParameterError(f"{asked}, patch={patch!r}", why, "patch=64,64 or patch=64,64,64")
    if patches < 1:
        raise ParameterError(f"{asked}, patches={patches}", "an epoch would take nothing", "patches=1 or more")
    return lengths


def _parts(whole: Scans, rows: Sequence[_Row], share: float, seed: int) -> dict[str, Scans]:
    parts = [row.part for row in rows]
    if any(parts):
        return {name: whole.at(torch.tensor([part == name for part in parts])) for name in dict.fromkeys(parts)}
    return dict(zip(("train", "test"), whole.hold_out(share, seed), strict=True))


def _rows(path: Path) -> list[_Row]:
    text = read_text(path, LARGEST_TABLE, "utf-8-sig")
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
        lines = [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        refuse(path, f"its {len(text):,} characters are no table ({error})", "a .csv or .tsv file in UTF-8")
    found = [str(column) for column in lines[0][1]] if lines else []
    if missing := [column for column in COLUMNS if column not in found]:
        why = f"its columns are {some(found) or 'none'}, without {some(missing)}"
        refuse(path, why, f"a table with the columns {', '.join(COLUMNS)} and split")
    rows: list[_Row] = []
    images: dict[Path, int] = {}
    homes: dict[str, _Row] = {}
    for number, line in lines:
        cells = {column: (line.get(column) or "").strip() for column in (*COLUMNS, "split")}
        if empty := next((column for column in COLUMNS if not cells[column]), None):
            refuse(path, f"line {number} has no {empty}", "a table without empty cells")
        if "split" in found and cells["split"].lower() not in PARTS:
            refuse(path, f"line {number} has the split {cells['split']!r}", "train, val or test")
        places = [path.parent / cells[column] for column in ("image", "label")]
        for column, place in zip(("image", "label"), places, strict=True):
            if not place.is_file():
                why = f"line {number} names the {column} {cells[column]!r}, and there is no such file"
                refuse(path, why, "a table of files that exist")
        row = _Row(number, places[0], places[1], cells["subject"], PARTS.get(cells["split"].lower(), ""))
        if (first := images.setdefault(row.image.resolve(), number)) != number:
            refuse(path, f"lines {first} and {number} name the same image, {row.image.name!r}", "one line for each")
        before = homes.setdefault(row.subject, row)
        if before.part != row.part:
            why = f"subject {row.subject!r} is in {before.part} (line {before.line}) and in {row.part} (line {number})"
            refuse(path, why, "one split for all images of a subject: they would be their own test")
        rows.append(row)
    return rows


def _file_names(rows: Sequence[_Row], root: Path) -> list[str]:
    """A name for the files of every image: its path in ASCII letters, with a number where another image has it."""
    names: list[str] = []
    taken: set[str] = set()
    for row in rows:
        place = re.sub(r"\.nii(\.gz)?$", "", os.path.relpath(row.image, root))
        first = name = re.sub(r"[^\w-]+", "_", place, flags=re.ASCII).strip("_") or "image"
        number = 1
        while name.lower() in taken:  # some disks take A and a for the same file
            number += 1
            name = f"{first}_{number}"
        taken.add(name.lower())
        names.append(name)
    return names


def _read(row: _Row, name: str) -> tuple[Tensor, Tensor, Scan, str]:
    """Image, (C, X, Y, Z), label map, (X, Y, Z), what else is known, and what the header says."""
    image, label = open_nifti(row.image), open_nifti(row.label)
    shape = tuple(label.shape)
    if tuple(image.shape[:3]) != shape[:3] or len(image.shape) > 4 or not 2 <= len(shape) <= 3:
        why = f"the label map is of {shape}, and its image {row.image.name} of {tuple(image.shape)}"
        refuse(row.label, why, "a label map of two or three dimensions, with the voxels of its image")
    if not np.allclose(image.affine, label.affine, atol=SAME_PLACE):
        apart = float(np.abs(image.affine - label.affine).max())
        why = f"its affine differs from that of its image {row.image.name} by up to {apart:.3g}"
        refuse(
            row.label, why, "a label map in the space of its image: resample it, or copy the affine if that is wrong"
        )
    values = voxels(row.image, image).reshape(*shape, *(1,) * (3 - len(shape)), -1)  # (X, Y, Z, C)
    found = voxels(row.label, label).reshape(*shape, *(1,) * (3 - len(shape)))
    wrong = ~((found >= 0) & (found < OUTSIDE) & (found == np.floor(found)))
    if wrong.any():
        value = found[wrong][0]
        refuse(row.label, f"it holds {value:g}, one of {int(wrong.sum()):,}", f"whole numbers from 0 to {OUTSIDE - 1}")
    scan = Scan(name, row.subject, (0, 0, 0), np.asarray(image.affine, np.float64), shape, row.image)
    values, found = turned(scan, values), turned(scan, found)
    channels = [scaled(torch.from_numpy(filled(c, row.image)), row.image) for c in np.moveaxis(values, -1, 0)]
    extent = tuple(int(n) for n in found.shape)
    about = Scan(name, row.subject, extent, scan.affine, shape, row.image)
    return torch.stack(channels), torch.from_numpy(found.astype(np.uint8)), about, description(image)


def turned(scan: Scan, values: NDArray[Any], back: bool = False) -> NDArray[Any]:
    """Values with axes that point right, front and up, or back as the file has them; a single slice stays as it is.

    Args:
        scan: whose affine says where the axes point.
        values: (X, Y, Z, ...).
        back: into the space of the file.
    """
    from nibabel import orientations

    if scan.shape[2:] in ((), (1,)):
        return values
    own = orientations.io_orientation(scan.affine)  # type: ignore[no-untyped-call]
    straight = orientations.axcodes2ornt("RAS")  # type: ignore[no-untyped-call]
    pair = (straight, own) if back else (own, straight)
    turn = orientations.ornt_transform(*pair)  # type: ignore[no-untyped-call]
    found: NDArray[Any] = np.ascontiguousarray(orientations.apply_orientation(values, turn))  # type: ignore[no-untyped-call]
    return found


def _check_patch(path: Path, extent: Sequence[int], patch: tuple[int, ...]) -> None:
    if any(n < w for n, w in zip(extent, patch, strict=False)):
        sides = " x ".join(map(str, extent))
        why = f"the image is of {sides} voxels, and a patch of {' x '.join(map(str, patch))} is larger"
        smaller = ",".join(str(min(n, w)) for n, w in zip(extent, patch, strict=False))
        refuse(path, why, f"--data-options.patch {smaller}, or smaller")


def _names(rows: Sequence[_Row], labels: Sequence[Tensor], classes: Sequence[str]) -> tuple[str, ...]:
    counts = torch.stack([torch.bincount(label.flatten(), minlength=OUTSIDE) for label in labels])
    largest = [int(count.nonzero().max()) for count in counts]
    names = tuple(classes) or tuple(str(number) for number in range(max(largest) + 1))
    gap = next((k for k in range(max(largest)) if not counts[:, k].any()), None)
    if gap is not None and not classes:
        why = f"it holds the label {max(largest)}, and no image has the label {gap}"
        wanted = "labels 0, 1, 2, ... without gaps (renumber them), or classes= that names all of them"
        refuse(rows[largest.index(max(largest))].label, why, wanted)
    for row, most in zip(rows, largest, strict=True):
        if most >= len(names):
            why = f"it holds the label {most}, and classes= names {len(names)}, 0 to {len(names) - 1}"
            refuse(row.label, why, "a name for every label")
    return names


def write_map(path: Path, scan: Scan, values: NDArray[Any]) -> Path:
    """Write values of an image's voxels as NIfTI in the space of its file: the same affine and shape.

    Args:
        path: ends in .nii.gz.
        scan: the image.
        values: (*extent), with axes that point right, front and up; of uint8 or float32.
    """
    import gzip

    import nibabel

    data = turned(scan, values, back=True).reshape(scan.shape)
    header = None
    if scan.path is not None:
        header = open_nifti(scan.path).header.copy()
        header.set_data_dtype(data.dtype)
        header.set_slope_inter(1, 0)
    image = nibabel.Nifti1Image(data, scan.affine, header)  # type: ignore[no-untyped-call]
    image.header["descrip"] = b"written by mcrepar evaluate"
    image.header["cal_min"] = image.header["cal_max"] = 0
    return write_file(path, gzip.compress(image.to_bytes(), 6, mtime=0))
