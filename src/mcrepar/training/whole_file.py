"""A file that is replaced in one step: whatever interrupts it, the old or the new one is there, whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_bytes(path: Path, data: bytes) -> None:
    """Write beside the place, have it on the disk, then take the name; an OSError leaves the old file as it is.

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
