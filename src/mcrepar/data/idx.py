"""MNIST and Fashion-MNIST from their idx files, packed by gz or not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcrepar.data.dataset import Dataset, Split
from mcrepar.data.files import Layout, find, read_bytes, refuse, some

FASHION = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
STEMS = ("train-images{}idx3-ubyte", "train-labels{}idx1-ubyte", "t10k-images{}idx3-ubyte", "t10k-labels{}idx1-ubyte")
UNSIGNED_BYTES = 8  # the code of the only type that these files use


def read_mnist(root: Path) -> Dataset:
    """MNIST: 60,000 training and 10,000 test images of 28 x 28, 10 digits.

    Args:
        root: the folder with the four files, or the one that holds MNIST/raw.
    """
    return _read("mnist", root, ("MNIST/raw", "MNIST", "raw"), tuple("0123456789"))


def read_fashion_mnist(root: Path) -> Dataset:
    """Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28, 10 kinds of clothing.

    Args:
        root: the folder with the four files, or the one that holds FashionMNIST/raw.
    """
    return _read("fashion_mnist", root, ("FashionMNIST/raw", "FashionMNIST", "raw"), FASHION)


def _read(name: str, root: Path, inside: tuple[str, ...], classes: tuple[str, ...]) -> Dataset:
    layouts = [Layout(tuple(stem.format(mark) for stem in STEMS), inside) for mark in "-."]
    layout, folder = find(root, layouts)
    arrays = [read_idx(folder, file, 3 if "images" in file else 1) for file in layout.files]
    for images, labels, file in zip(arrays[::2], arrays[1::2], layout.files[1::2], strict=True):
        if len(images) != len(labels):
            refuse(folder / file, f"it holds {len(labels):,} labels for {len(images):,} images", "files of one set")
    x_train, y_train, x_test, y_test = (torch.from_numpy(array) for array in arrays)
    train, test = Split(x_train[:, None], y_train.long()), Split(x_test[:, None], y_test.long())
    return Dataset(name, train, None, test, classes, source=some(layout.files))


def read_idx(folder: Path, name: str, dimensions: int) -> NDArray[Any]:
    """The array of an idx file: two zeros, the type, the number of dimensions, their lengths (big end first), bytes.

    Args:
        folder: where it is.
        name: without .gz.
        dimensions: how many are expected.
    """
    raw = read_bytes(folder, name)
    header = 4 + 4 * dimensions
    start = bytes((0, 0, UNSIGNED_BYTES, dimensions))
    if len(raw) < header or raw[:4] != start:
        why = f"its {len(raw):,} bytes start with {raw[:4].hex(' ') or 'nothing'}"
        refuse(folder / name, why, f"an idx file of unsigned bytes in {dimensions} dimensions, {start.hex(' ')}")
    shape = tuple(int(length) for length in np.frombuffer(raw, ">u4", count=dimensions, offset=4))
    expected = header + math.prod(shape)
    if len(raw) != expected:
        refuse(folder / name, f"it has {len(raw):,} bytes, and its header of {shape} asks for {expected:,}")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy()
