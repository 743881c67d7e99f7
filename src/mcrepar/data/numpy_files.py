"""numpy's files, read without numpy.load: no pickles, no more members or memory than are asked for."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mcrepar.data.files import existing, most_unpacked, refuse
from mcrepar.errors import ParameterError
from mcrepar.user_files import ANY_SIZE, open_file, read_all

Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LONGEST_HEADER = 2**16  # numpy reads one of ten thousand
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes no others


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy file, left on the disk until it is used; pickled objects are refused.

    Args:
        path: the file.
    """
    with _opened(existing(path)) as (file, size):
        if file.read(2) == b"PK":
            refuse(path, "it holds several arrays", "an .npy file")
        file.seek(0)
        shape, columns_first, dtype = _header(file, size)
        order = "F" if columns_first else "C"
        return np.memmap(file, dtype, "r", file.tell(), shape, order)  # type: ignore[call-overload,no-any-return]


def npz_names(path: Path) -> list[str]:
    """The names of the arrays in an .npz file.

    Args:
        path: the file.
    """
    with _archive(path) as (_, members):
        return list(members)


def read_npz(path: Path, names: Collection[str], most: int | None = None) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz file; the other ones in it are left alone.

    Args:
        path: the file.
        names: of the arrays; those that are not there are left out.
        most: bytes that they may unpack to together; None: a hundred times those of the file, at least 2^29.
    """
    with _archive(path) as (archive, members):
        chosen = {name: members[name] for name in names if name in members}
        total = sum(member.file_size for member in chosen.values())
        most = most_unpacked(path.stat().st_size) if most is None else most
        if total > most:
            refuse(path, f"it has {total:,} bytes when unpacked, more than {most:,}", "a file that you trust")
        return {name: _member(archive, member) for name, member in chosen.items()}


@contextmanager
def _archive(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    with _opened(path) as (file, _):
        if file.read(6) == npy.MAGIC_PREFIX:
            refuse(path, "it holds one array without a name", "an .npz file, made by numpy.savez")
        with zipfile.ZipFile(file) as archive:
            yield archive, {member.filename.removesuffix(".npy"): member for member in archive.infolist()}


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    if member.compress_type not in _PACKED:
        raise ValueError(f"{member.filename} is packed by method {member.compress_type}")
    with archive.open(member) as packed:
        raw = read_all(packed, member.file_size)  # to the end, where the checksum is compared
    start = io.BytesIO(raw[:_LONGEST_HEADER])
    shape, columns_first, dtype = _header(start, len(raw))
    return np.frombuffer(raw, dtype, offset=start.tell()).reshape(shape, order="F" if columns_first else "C")


def _header(file: IO[bytes], size: int) -> Header:
    """Shape, order and type of the array that follows, whose bytes must be those that are left of `size`."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"numpy's format {version}")
    shape, columns_first, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise _Objects
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted != size - file.tell():
        raise ValueError(f"the shape {shape} of {dtype} needs {wanted:,} bytes, and there are {size - file.tell():,}")
    return shape, columns_first, dtype


class _Objects(Exception):
    """An array of Python objects, which are stored as a pickle."""


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size; what goes wrong inside is an error that names it."""
    with open_file(path, ANY_SIZE) as file:
        start, size = file.read(6), file.seek(0, io.SEEK_END)
        file.seek(0)
        try:
            yield file, size
        except ParameterError:
            raise
        except MemoryError:
            refuse(path, "its arrays do not fit into the memory", "fewer examples, or a machine with more memory")
        except Exception as error:  # zip, zlib, the headers' grammar: damage fails in many ways
            if isinstance(error, _Objects) or start[:1] == b"\x80":
                why = f"its {size:,} bytes hold pickled objects, which can run code"
                refuse(path, why, "arrays of numbers, saved by numpy")
            known = start == npy.MAGIC_PREFIX or start[:2] == b"PK"
            said = f"{type(error).__name__}: {error}" if known else f"they start with {start!r}"
            refuse(path, f"its {size:,} bytes are no whole numpy file ({said})")
