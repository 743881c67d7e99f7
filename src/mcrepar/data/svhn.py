"""SVHN, cropped house numbers, from its MATLAB files."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mcrepar.data.dataset import Dataset, Split
from mcrepar.data.files import Layout, find, most_unpacked, read_bytes, refuse, some

MATRIX, PACKED = 14, 15  # kinds of elements
NUMBERS = range(6, 16)  # classes of matrices: not cells, structures, objects or texts
TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"
KEYS = {"X", "y"}


def read_svhn(root: Path) -> Dataset:
    """SVHN: 73,257 training and 26,032 test images of 32 x 32 in colour, 10 digits.

    Args:
        root: the folder with test_32x32.mat, and with train_32x32.mat where one wants to train.
    """
    layout, folder = find(root, [Layout((TEST,), ("SVHN",)), Layout((TRAIN, TEST), ("SVHN",))])
    parts = {name: read_mat(folder, name) for name in layout.files}
    return Dataset("svhn", parts.get(TRAIN), None, parts[TEST], tuple("0123456789"), source=some(layout.files))


def read_mat(folder: Path, name: str) -> Split:
    """The images X (32, 32, 3, N) and labels y (N, 1) of a file, in which the digit 0 has the label 10.

    Args:
        folder: where it is.
        name: of the file.
    """
    from scipy.io import loadmat

    raw = read_bytes(folder, name)
    try:
        found = loadmat(io.BytesIO(_numbers(raw)), variable_names=list(KEYS))
    except Exception as error:  # scipy raises anything for bytes of another kind
        refuse(folder / name, f"its {len(raw):,} bytes are no whole MATLAB file ({type(error).__name__}: {error})")
    if not set(found) >= KEYS:
        names = some(sorted(key for key in found if not key.startswith("__"))) or "nothing"
        refuse(folder / name, f"it holds {names}, without X or y", "SVHN's format 2, cropped digits")
    x, y = found["X"], found["y"].reshape(-1)
    if x.dtype != np.uint8 or x.shape[:-1] != (32, 32, 3) or len(y) != x.shape[-1]:
        why = f"X is {x.dtype} of {x.shape}, with {len(y):,} labels"
        refuse(folder / name, why, "SVHN's format 2, X of unsigned bytes in (32, 32, 3, N)")
    if y.size and not (y.min() >= 1 and y.max() <= 10):
        refuse(folder / name, f"its labels go from {y.min()} to {y.max()}", "labels of 1 to 10, which is the digit 0")
    return Split(torch.from_numpy(x.transpose(3, 2, 0, 1).copy()), torch.from_numpy(y.astype(np.int64) % 10))


def _numbers(raw: bytes | bytearray) -> bytes:
    """A MATLAB 5 file with its matrices of numbers alone, unpacked to their ends, where their checksums are."""
    if raw[126:128] not in (b"IM", b"MI"):
        raise ValueError("it does not start as MATLAB 5 does")
    order = "<" if raw[126:128] == b"IM" else ">"
    found, left = [bytes(raw[:128])], most_unpacked(len(raw))
    for kind, element in _elements(raw[128:], order):
        for inner, matrix in _elements(_unpacked(element[8:], left), order) if kind == PACKED else [(kind, element)]:
            left -= len(matrix)
            if inner == MATRIX and struct.unpack_from(f"{order}I", matrix, 16)[0] & 255 in NUMBERS:
                found.append(matrix)
    return b"".join(found)


def _elements(raw: bytes | bytearray, order: str) -> Iterator[tuple[int, bytes]]:
    """Each element with its kind: both, and the length of its content, are in its first eight bytes."""
    place = 0
    while place < len(raw):
        kind, length = struct.unpack_from(f"{order}2I", raw, place)
        if place + 8 + length > len(raw):
            raise ValueError(f"its element of {length:,} bytes is cut")
        yield kind, bytes(raw[place : place + 8 + length])
        place += 8 + length


def _unpacked(packed: bytes, most: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(packed, most + 1)
    if not stream.eof or len(found) > most:
        raise ValueError(f"a packed element of {len(packed):,} bytes is cut, or has more than {most:,} when unpacked")
    return found
