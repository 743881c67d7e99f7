"""SVHN, cropped house numbers, from its MATLAB files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from mcrepar.data.dataset import Dataset, Split
from mcrepar.data.files import Layout, find, read_bytes, refuse, some

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
        found = loadmat(io.BytesIO(raw), variable_names=list(KEYS))
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
