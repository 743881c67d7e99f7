"""Reading run folders below one folder: nothing outside it can be named, and nothing in it is trusted to be whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mcrepar.data.numpy_files import npz_names, read_npz
from mcrepar.errors import ParameterError
from mcrepar.user_files import read_json
from mcrepar.workbench.app.run_arrays import Arrays, Damaged, checked, ood_set, wanted
from mcrepar.workbench.training.log import read_log

_MARKS = ("predictions.npz", "config.yaml", "log.csv")  # a folder with one of these is a run
_NETWORKS = ("config.json", "model/config.json", "checkpoints")  # one of these has a network, saved or of a run
STRUCTURE = ("name", "images", "voxels", "dice", "dice_at_95_coverage", "ece")  # what metrics.json has of one
_DEEPEST = 3  # folders below the root
_MOST_RUNS = 500
MOST_BYTES = 512 * 2**20  # of predictions.npz, unpacked
_MOST_TEXT = 4 * 2**20  # of a text file

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Run:
    """What a run folder holds.

    Args:
        name: its path below the root.
        facts: of run.json.
        log: the columns of log.csv.
        arrays: of predictions.npz; empty before `mcrepar evaluate`.
        structures: of a segmentation, which has no predictions.npz: those of metrics.json.
    """

    name: str
    facts: Mapping[str, Any]
    log: Mapping[str, list[float]]
    arrays: Arrays
    structures: Sequence[Mapping[str, Any]] = ()

    @property
    def ood_sets(self) -> list[str]:
        """The names of the data sets that the network was not trained for."""
        return [name for name in map(ood_set, self.arrays) if name]


@dataclass(frozen=True)
class Runs:
    """The runs below a folder; None stands for no folder."""

    root: Path | None

    def names(self, networks: bool = False) -> dict[str, str]:
        """The run folders and what to call them, newest first; those whose name is no text cannot be asked for.

        Args:
            networks: of these and of saved networks those that hold a network.
        """
        if self.root is None or not self.root.is_dir():
            return {}
        top, marks = self.root.resolve(), _NETWORKS if networks else _MARKS
        found = sorted(islice(_folders(top, marks, _DEEPEST), _MOST_RUNS), key=_modified, reverse=True)
        names = [folder.relative_to(top).as_posix() for folder in found]
        names = [name for name in names if name.isascii() or name == name.encode("utf-8", "replace").decode()]
        return {name: top.name if name == "." else name for name in names}

    def folder(self, name: str) -> Path:
        """The folder of a run or of a saved network."""
        asked = f"run {name!r}"
        if self.root is None or not self.root.is_dir():
            where = "no folder was given" if self.root is None else f"there is no folder {self.root}"
            raise ParameterError("runs", where, "mcrepar app --runs FOLDER")
        folder = inside(self.root, name, asked)
        if not folder.is_dir() or not any((folder / mark).exists() for mark in (*_MARKS, *_NETWORKS)):
            raise ParameterError(asked, "there is no run in this folder", "a folder that mcrepar train wrote")
        return folder

    def open(self, name: str) -> Run:
        """Read a run; whatever is missing or damaged is named."""
        asked, folder = f"run {name!r}", self.folder(name)
        arrays: Arrays = self._read(asked, folder / "predictions.npz", _predictions, {})
        return Run(
            name,
            self._read(asked, folder / "run.json", _facts, {}),
            self._read(asked, folder / "log.csv", read_log, {}),
            arrays,
            () if arrays else self._read(asked, folder / "metrics.json", _structures, ()),
        )

    def _read(self, asked: str, path: Path, read: Callable[[Path], T], missing: T) -> T:
        """What a file of the run holds; an error says which file it is about."""
        assert self.root is not None
        real = inside(self.root, str(path), f"{asked}: {path.name}")
        evaluated = path.name in ("predictions.npz", "metrics.json")
        instead = "mcrepar evaluate, once more" if evaluated else "a run that is whole"
        try:
            return read(real)
        except FileNotFoundError:
            return missing
        except ParameterError as error:
            raise ParameterError(asked, f"{path.name} is damaged: {error.why}", instead) from None
        except (OSError, Damaged) as error:
            raise ParameterError(asked, f"{path.name} is damaged: {error}", instead) from None


def inside(root: Path, name: str, asked: str) -> Path:
    """The path of `name` below `root`, links followed; refused where it leads outside."""
    top = root.resolve()
    try:
        path = (top / name).resolve()
        path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, a loop of links, a name of a thousand letters
        raise ParameterError(asked, f"it is no path ({error})", "a name from the list") from None
    if not path.is_relative_to(top):
        raise ParameterError(asked, "it lies outside the folder of runs", "a name from the list")
    return path


def _folders(folder: Path, marks: tuple[str, ...], depth: int) -> Iterator[Path]:
    try:
        if any((folder / mark).exists() for mark in marks):
            yield folder
            return
        children = sorted(folder.iterdir()) if depth else []
    except OSError:  # it may not be read, or has gone
        return
    for child in children:
        if child.is_dir() and not child.is_symlink():
            yield from _folders(child, marks, depth - 1)


def _modified(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _facts(path: Path) -> Mapping[str, Any]:
    found = read_json(path, _MOST_TEXT)
    return found if isinstance(found, dict) else {}


def _structures(path: Path) -> Sequence[Mapping[str, Any]]:
    """The scores of a segmentation, structure by structure; none of another task."""
    found = _facts(path)
    if found.get("task") != "segmentation":
        return ()
    rows = found.get("structures")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and _is_structure(row) for row in rows):
        raise Damaged("its structures are of another form")
    return rows


def _is_structure(row: Mapping[str, Any]) -> bool:
    """Whether there are a name and numbers; a structure that is in no image has no Dice."""
    name, *numbers = (row.get(key, "") for key in STRUCTURE)
    known = all(n is None or (isinstance(n, int | float) and abs(n) < 2**53) for n in numbers)
    return known and isinstance(name, str) and name.isprintable()


def _predictions(path: Path) -> Arrays:
    stat = path.stat()
    return _arrays(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _arrays(path: Path, modified: int, size: int) -> Arrays:
    """The arrays of a file as it is now: the key says when it was written."""
    return checked(read_npz(path, wanted(npz_names(path)), MOST_BYTES))
