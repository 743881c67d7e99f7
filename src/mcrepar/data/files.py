"""Finding and reading files, with errors that say which file, how many bytes, and what was expected."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from mcrepar.errors import ParameterError
from mcrepar.user_files import TooLarge, read_all, read_file

WHOLE = "a whole copy of the original file"
ALWAYS_UNPACKED = 2**29  # bytes: a small file of zeros is no trap


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
    """The file, or what stands in its place and is no file, so that it is refused by its name when it is read."""
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if os.path.lexists(path) and not path.is_dir()), None)


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
    """The path itself, unless there is nothing.

    Args:
        path: where a file should be.
        instead: what to use where there is none.
    """
    if not path.exists():
        beside = listing(path.parent.absolute()) if path.parent.is_dir() else f"nor a folder {path.parent.name!r}"
        refuse(path, f"there is no such file; {beside}", instead)
    return path


def read_bytes(folder: Path, name: str) -> bytes | bytearray:
    """The bytes of a file, or of the file of that name with .gz, unpacked.

    Args:
        folder: where it is.
        name: without .gz.
    """
    return unpacked(_either(folder, name) or existing(folder / name))


def unpacked(path: Path) -> bytes | bytearray:
    """The bytes of a file, unpacked to the end, where its checksum is, if it is a gz archive.

    Args:
        path: of the file.
    """
    raw = read_file(existing(path))
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return read_all(cast(BinaryIO, gzip.GzipFile(fileobj=io.BytesIO(raw))), most_unpacked(len(raw)))
    except TooLarge:
        why = f"its {len(raw):,} bytes unpack to more than {most_unpacked(len(raw)):,}, which is no data but a trap"
        refuse(path, why, "a file that you trust, unpacked")
    except (OSError, EOFError, zlib.error) as error:
        refuse(path, f"its {len(raw):,} bytes are a damaged gz archive ({error})")


def most_unpacked(packed: int) -> int:
    """How many bytes an archive may unpack to: real data shrink to a hundredth at most, small files excepted.

    Args:
        packed: its bytes.

    >>> most_unpacked(1000), most_unpacked(10**9)
    (536870912, 100000000000)
    """
    return max(ALWAYS_UNPACKED, 100 * packed)
