"""Finding and reading files, with errors that say which file, how many bytes, and what was expected."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mcrepar.errors import ParameterError

WHOLE = "a whole copy of the original file"


@dataclass(frozen=True)
class Layout:
    """The files of one way to store a data set.

    Args:
        files: all of them are needed; each may also end in .gz.
        inside: the folders that archives unpack to, looked for in the root.
    """

    files: tuple[str, ...]
    inside: tuple[str, ...] = ()


def find(root: Path, layouts: Sequence[Layout]) -> tuple[Layout, Path]:
    """The layout whose files are there, and their folder: the root, or a folder in it.

    Args:
        root: what the user gave.
        layouts: in the order of preference.
    """
    asked, wanted = f"root={str(root)!r}", " or ".join(some(layout.files) for layout in layouts)
    if not root.is_dir():
        why = f"it is a file of {root.stat().st_size:,} bytes" if root.is_file() else "there is no such folder"
        raise ParameterError(asked, why, f"a folder with {wanted}")
    places = [(layout, root / name) for layout in layouts for name in ("", *layout.inside) if (root / name).is_dir()]
    layout, folder = max(places, key=lambda place: len(place[0].files) - len(_missing(*place)))  # the first of equals
    missing = _missing(layout, folder)
    if len(missing) == len(layout.files):
        raise ParameterError(asked, listing(root), f"a folder with {wanted}")
    if missing:
        raise ParameterError(
            asked, f"without {some(missing)} ({listing(folder)})", f"a folder with {some(layout.files)}"
        )
    return layout, folder


def _missing(layout: Layout, folder: Path) -> list[str]:
    return [name for name in layout.files if _either(folder, name) is None]


def _either(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def listing(folder: Path) -> str:
    """What a folder holds, for an error.

    Args:
        folder: one that exists.
    """
    names = sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())
    return f"the folder {folder.name!r} holds {some(names) if names else 'nothing'}"


def some(names: Sequence[str], most: int = 7) -> str:
    """The names in a row, cut where they are many.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def refuse(path: Path, why: str, instead: str = WHOLE) -> NoReturn:
    """The error of a file that is not what it should be.

    Args:
        path: the file.
        why: what is wrong with it.
        instead: what to use.
    """
    raise ParameterError(f"file {str(path)!r}", why, instead)


def existing(path: Path, instead: str = WHOLE) -> Path:
    """The path itself, unless there is no file.

    Args:
        path: where a file should be.
        instead: what to use where there is none.
    """
    if not path.is_file():
        beside = listing(path.parent.absolute()) if path.parent.is_dir() else f"nor a folder {path.parent.name!r}"
        refuse(path, f"there is no such file; {beside}", instead)
    return path


def read_bytes(folder: Path, name: str) -> bytes:
    """The bytes of a file, or of the file of that name with .gz, unpacked.

    Args:
        folder: where it is.
        name: without .gz.
    """
    path = _either(folder, name) or existing(folder / name)
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        refuse(path, f"its {len(raw):,} bytes are a damaged gz archive ({error})")


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy file, left on the disk until it is used; pickled objects are refused.

    Args:
        path: the file.
    """
    with numpy_errors(existing(path)):
        array: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        refuse(path, "it holds several arrays", "an .npy file")
    return array


@contextmanager
def numpy_errors(path: Path) -> Iterator[None]:
    """numpy's errors about a file, in our words.

    Args:
        path: the file that is read inside.
    """
    try:
        yield
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, ParameterError):
            raise
        raw = path.read_bytes()
        # numpy takes every file that it does not know for a pickle, and only some are: those start with 80 hex.
        if raw[:1] == b"\x80" or "Object arrays" in str(error) or "Python objects" in str(error):
            why = f"its {len(raw):,} bytes hold pickled objects, which can run code"
            refuse(path, why, "arrays of numbers, saved by numpy")
        known = raw[:6] == b"\x93NUMPY" or raw[:2] == b"PK"
        why = f"its {len(raw):,} bytes are no whole numpy file ({error if known else f'they start with {raw[:6]!r}'})"
        refuse(path, why)
