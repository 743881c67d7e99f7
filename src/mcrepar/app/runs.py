"""Reading run folders below one folder: nothing outside it can be named, and nothing in it is trusted to be whole."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcrepar.errors import ParameterError

_MARKS = ("predictions.npz", "config.yaml", "log.csv")  # a folder with one of these is a run
_DEEPEST = 3  # folders below the root
_MOST_RUNS = 500
_MOST_BYTES = 512 * 2**20  # of predictions.npz, unpacked
_MOST_TEXT = 8 * 2**20  # of a text file

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Run:
    """What a run folder holds.

    Args:
        name: its path below the root.
        facts: of run.json.
        log: the columns of log.csv.
        arrays: of predictions.npz; empty before `mcrepar evaluate`.
    """

    name: str
    facts: Mapping[str, Any]
    log: Mapping[str, list[float]]
    arrays: Arrays

    @property
    def foreign(self) -> list[str]:
        """The names of the data sets that the network was not trained for."""
        ends = "_confidence"
        return [key[4 : -len(ends)] for key in self.arrays if key.startswith("ood_") and key.endswith(ends)]


@dataclass(frozen=True)
class Runs:
    """The runs below a folder; None stands for no folder."""

    root: Path | None

    def names(self) -> list[str]:
        """The run folders, newest first."""
        if self.root is None or not self.root.is_dir():
            return []
        found = list(_run_folders(self.root.resolve(), _DEEPEST))[:_MOST_RUNS]
        found.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        return [folder.relative_to(self.root.resolve()).as_posix() for folder in found]

    def open(self, name: str) -> Run:
        """Read a run; whatever is missing or damaged is named."""
        asked = f"run {name!r}"
        if self.root is None or not self.root.is_dir():
            where = "no folder was given" if self.root is None else f"there is no folder {self.root}"
            raise ParameterError("runs", where, "mcrepar app --runs FOLDER")
        folder = inside(self.root, name, asked)
        if not folder.is_dir() or not any((folder / mark).is_file() for mark in _MARKS):
            raise ParameterError(asked, "there is no run in this folder", "a folder that mcrepar train wrote")
        return Run(
            name,
            _json(self.root, folder / "run.json", asked),
            _log(self.root, folder / "log.csv", asked),
            _predictions(self.root, folder / "predictions.npz", asked),
        )


def inside(root: Path, name: str, asked: str) -> Path:
    """The path of `name` below `root`, links followed; refused where it leads outside."""
    top = root.resolve()
    try:
        path = (top / name).resolve()
        path.is_file()
    except (OSError, ValueError) as error:  # a null byte, a loop of links, a name of a thousand letters
        raise ParameterError(asked, f"it is no path ({error})", "a name from the list") from None
    if not path.is_relative_to(top):
        raise ParameterError(asked, "it lies outside the folder of runs", "a name from the list")
    return path


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / mark).is_file() for mark in _MARKS):
        yield folder
    elif depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.is_symlink():
                yield from _run_folders(child, depth - 1)


def _text(root: Path, path: Path, asked: str) -> str | None:
    """A text file of bounded length; None where there is none."""
    real = inside(root, str(path.relative_to(root.resolve())), asked)
    if not real.is_file():
        return None
    if real.stat().st_size > _MOST_TEXT:
        raise ParameterError(asked, f"{path.name} is larger than {_MOST_TEXT // 2**20} MB", "a run of mcrepar")
    try:
        return real.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(asked, f"{path.name} cannot be read ({error})", "a run that is whole") from None


def _json(root: Path, path: Path, asked: str) -> Mapping[str, Any]:
    text = _text(root, path, asked)
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise ParameterError(asked, f"{path.name} is damaged ({error})", "a run that is whole") from None
    return found if isinstance(found, dict) else {}


def _log(root: Path, path: Path, asked: str) -> dict[str, list[float]]:
    """The columns of log.csv as numbers, NaN where a cell is empty."""
    text = _text(root, path, asked)
    rows = list(csv.DictReader((text or "").splitlines()))
    try:
        return {
            name: [float(row[name]) if row[name] else math.nan for row in rows] for name in (rows[0] if rows else {})
        }
    except (TypeError, ValueError, KeyError) as error:
        raise ParameterError(asked, f"{path.name} is damaged ({error})", "a run that is whole") from None


def _predictions(root: Path, path: Path, asked: str) -> Arrays:
    real = inside(root, str(path.relative_to(root.resolve())), asked)
    if not real.is_file():
        return {}
    try:
        stat = real.stat()
        return _arrays(real, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ParameterError(asked, f"{path.name} is damaged ({error})", "mcrepar evaluate, once more") from None


@lru_cache(maxsize=4)
def _arrays(path: Path, modified: int, size: int) -> Arrays:
    """The arrays of a file as it is now: the key says when it was written."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > _MOST_BYTES:
        raise ValueError(f"{unpacked / 2**20:,.0f} MB when unpacked, more than {_MOST_BYTES // 2**20}")
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}
