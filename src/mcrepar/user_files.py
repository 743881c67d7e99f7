"""The one way to read a file that a user named, and the one way to write a file whole.

Only regular files of bounded size are read, never a pipe, a device or a folder; whatever interrupts a write, the file
holds what was there before or what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from mcrepar.errors import ParameterError

LARGEST = 2**32  # bytes of a file that is read whole; the standard data sets stay below 2^28
ANY_SIZE = 2**63  # of a file of which parts are read, or a checkpoint, which is as large as its network
LARGEST_TEXT = 2**23  # bytes of a text, a table or JSON
LARGEST_YAML = 2**16  # its parser takes a second for so many; config.yaml has three thousand
CHUNK = 2**20
_MOST_VALUES = 100_000  # in a YAML file
_TEMPORARY = re.compile(r"\.(?:(?P<name>.+)\.\d+|[0-9a-f]{16})\.tmp")  # .NAME.PID.tmp, and those of earlier versions


def open_file(path: Path, most: int = LARGEST) -> io.BufferedReader:
    """A regular file of at most so many bytes, opened for reading; nothing that waits for another process.

    A missing file is a FileNotFoundError, since only the caller knows what that means; all else is a ParameterError.

    Args:
        path: what the user gave.
        most: bytes.
    """
    try:
        file = open(path, "rb", opener=_at_once)  # noqa: SIM115  # the caller closes it
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        why = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
        raise _refused(path, why, "a file that you may read") from None
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size <= most:
        return file
    file.close()
    if not stat.S_ISREG(found.st_mode):
        raise _refused(path, "it is no regular file but a pipe, a socket or a device", "a file on a disk")
    raise _refused(path, f"it has {found.st_size:,} bytes, more than {most:,}", "a smaller file")


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer would wait for one


def _refused(path: Path, why: str, instead: str) -> ParameterError:
    return ParameterError(f"file {str(path)!r}", why, instead)


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a file.

    Args:
        path: what the user gave.
        most: bytes.
    """
    with open_file(path, most) as file:
        try:
            return bytes(read_all(file, most))
        except TooLarge:  # it grew since it was opened
            raise _refused(path, f"it has more than {most:,} bytes", "a smaller file") from None
        except OSError as error:
            raise _refused(path, f"it cannot be read ({error.strerror or error})", "a whole copy") from None


class TooLarge(Exception):
    """A stream that holds more than it may."""


def read_all(stream: IO[bytes], most: int) -> bytearray:
    """All that a stream holds, in pieces, so that no more memory is taken than there are bytes.

    Args:
        stream: a file, or what unpacks one.
        most: bytes; beyond them TooLarge is raised.
    """
    found = bytearray()
    while piece := stream.read(CHUNK):
        found += piece
        if len(found) > most:
            raise TooLarge
    return found


def read_text(path: Path, most: int = LARGEST_TEXT, encoding: str = "utf-8") -> str:
    """The text of a file.

    Args:
        path: what the user gave.
        most: bytes.
        encoding: of the text.
    """
    try:
        return read_file(path, most).decode(encoding)
    except UnicodeDecodeError as error:
        raise _refused(path, f"it is no text in {encoding} ({error})", "a whole copy") from None


def read_json(path: Path, most: int = LARGEST_TEXT) -> Any:
    """What a JSON file holds.

    Args:
        path: what the user gave.
        most: bytes.
    """
    text = read_text(path, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"its {len(text):,} characters are no JSON ({error})", "a whole copy") from None


def read_yaml(path: Path, most: int = LARGEST_YAML) -> Any:
    """What a YAML file holds.

    Args:
        path: what the user gave.
        most: bytes.
    """
    import yaml  # type: ignore[import-untyped]

    text = read_text(path, most)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if _too_many(node):
            raise _refused(path, f"its aliases stand for more than {_MOST_VALUES:,} values", "YAML without aliases")
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        if isinstance(error, ParameterError):
            raise
        raise _refused(
            path, f"it is no YAML ({type(error).__name__}: {' '.join(str(error).split())})", "a whole copy"
        ) from None


def _too_many(node: Any) -> bool:
    """Whether there are too many values below a node: an alias counts as often as it is used, or without end."""
    count, waiting = 0, [node]
    while waiting and count <= _MOST_VALUES:
        value = getattr(waiting.pop(), "value", None)
        if isinstance(value, list):
            count += len(value)
            waiting += [part for item in value for part in (item if isinstance(item, tuple) else (item,))]
    return count > _MOST_VALUES


def write_file(path: Path, content: bytes | str | Callable[[IO[bytes]], object]) -> Path:
    """Write a file beside its place, have it on the disk, then give it its name; an OSError leaves the old one.

    Args:
        path: of the file; its folder is made where it does not exist. `{digest}` in its name becomes the first 16 hex
            digits of the content's SHA-256.
        content: all of it, a text being written in UTF-8; or a function that writes to the open file.

    Returns:
        The path under which the file is there now.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "a-{digest}.txt", "text").name
    'a-982d9e3eb996f559.txt'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name.replace('{digest}', 'new')}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if "{digest}" in path.name:
            path = path.with_name(path.name.replace("{digest}", digest_of(fresh)[:16]))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    if os.name == "posix":  # have the name on the disk too
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return path


def digest_of(path: Path) -> str:
    """The SHA-256 of a file.

    Args:
        path: of the file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_stale(folder: Path, name: str = ".*", older: float = 0.0) -> None:
    """Remove the temporary files of killed writes; where others may be writing, only what is too old to be theirs.

    Args:
        folder: whose temporary files go; one that does not exist has none.
        name: a pattern of the files that were to be written.
        older: seconds since their last change.
    """
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.fullmatch(path.name)
        with contextlib.suppress(OSError):  # somebody else has removed it, or made a folder of that name
            if found and re.fullmatch(name, found["name"] or "") and time.time() - path.lstat().st_mtime >= older:
                path.unlink()
