"""Files that are whole: replaced in one step, whatever interrupts it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = re.compile(r"\.(?:(?P<name>.+)\.\d+|[0-9a-f]{16})\.tmp")  # .NAME.PID.tmp, and those of a saved network


def write_bytes(path: Path, data: bytes) -> None:
    """Write beside the place, have it on the disk, then take the name; an OSError leaves the old file as it is.

    Args:
        path: of the file; its folder is made where it does not exist.
        data: all of it.
    """
    with staged(path, data):
        pass


@contextlib.contextmanager
def staged(path: Path, data: bytes) -> Iterator[None]:
    """A context that begins with the bytes on the disk and ends with them in their place, unless it fails.

    Args:
        path: of the file; its folder is made where it does not exist.
        data: all of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """The same for a text, in UTF-8.

    Args:
        path: of the file.
        text: all of it.
    """
    write_bytes(path, text.encode("utf-8"))


def remove_stale(folder: Path, name: str = ".*", older: float = 0.0) -> None:
    """Remove what killed writes have left; where others may be writing, only what is too old to be theirs.

    Args:
        folder: whose temporary files go; one that does not exist has none.
        name: a pattern of the files that were to be written.
        older: seconds since their last change.
    """
    for path in folder.glob(".*.tmp"):
        found = TEMPORARY.fullmatch(path.name)
        with contextlib.suppress(OSError):  # somebody else has removed it, or made a folder of that name
            if found and re.fullmatch(name, found["name"] or "") and time.time() - path.lstat().st_mtime >= older:
                path.unlink()
