"""The files of a run folder that the report needs."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcrepar import user_files
from mcrepar.data.numpy_files import npz_names, read_npz
from mcrepar.errors import ParameterError


def read_results(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """metrics.json and predictions.npz of an evaluated run, or a refusal.

    Args:
        folder: of the run.
    """
    asked, instead = f"the report of {folder}", f"mcrepar evaluate {folder}, which writes it"
    try:
        results = user_files.read_json(folder / "metrics.json")
        arrays = read_npz(folder / "predictions.npz", npz_names(folder / "predictions.npz"))
    except FileNotFoundError as error:
        raise ParameterError(asked, f"there is no {Path(str(error.filename)).name}", instead) from None
    except (OSError, ValueError, EOFError) as error:
        raise ParameterError(asked, f"its results cannot be read ({type(error).__name__}: {error})", instead) from None
    if not isinstance(results, dict) or not {"in", "task", "command"} <= set(results) or "y" not in arrays:
        raise ParameterError(asked, "metrics.json or predictions.npz is of another form", instead)
    for name in results.get("ood") or ():
        figure_path(folder, str(name))
    return results, arrays


def figure_path(folder: Path, name: str) -> Path:
    """Where a figure is written: inside the run folder, or a refusal.

    Args:
        folder: of the run.
        name: of the figure, without suffix; part of it may come from a file that anyone can have changed.
    """
    asked, place = f"the report of {folder}", folder / "figures"
    if not re.fullmatch(r"[\w-]+", name):
        why, instead = f"{name!r} cannot be a part of a file name", "letters, digits, _ and -"
        raise ParameterError(asked, why, f"{instead} in the names of out-of-distribution data")
    if place.is_symlink():
        raise ParameterError(asked, f"{place} is a symbolic link, which is not followed", "the folder without it")
    return place / f"{name}.png"


def read_log(folder: Path) -> dict[str, NDArray[np.float64]]:
    """The columns of log.csv, NaN where a cell is empty; nothing where there is no log.

    Args:
        folder: of the run.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(user_files.read_text(folder / "log.csv"), newline="")))
        return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}
    except (OSError, ValueError, TypeError, csv.Error):
        return {}


def read_text(path: Path) -> str:
    """A text file, or nothing where it is not there.

    Args:
        path: of the file.
    """
    try:
        return user_files.read_text(path)
    except (OSError, ValueError):
        return ""
