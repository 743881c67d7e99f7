"""CIFAR-10, CIFAR-100 and CIFAR-10-C from their original files; images are planes of red, green and blue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcrepar.data.dataset import Dataset, Split
from mcrepar.data.files import Layout, find, listing, read_bytes, refuse, some
from mcrepar.data.numpy_files import read_npy
from mcrepar.data.plain_pickle import read_plain_pickle
from mcrepar.errors import ParameterError
from mcrepar.user_files import read_text

PIXELS = 3 * 32 * 32
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
BINARY10 = Layout((*(f"{name}.bin" for name in BATCHES), "test_batch.bin"), ("cifar-10-batches-bin",))
PYTHON10 = Layout((*BATCHES, "test_batch"), ("cifar-10-batches-py",))
BINARY100 = Layout(("train.bin", "test.bin"), ("cifar-100-binary",))
PYTHON100 = Layout(("train", "test"), ("cifar-100-python",))
KINDS = ("coarse", "fine")  # the order of the two label bytes
CLASSES100 = {"coarse": 20, "fine": 100}


def read_cifar10(root: Path) -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images of 10 classes.

    Args:
        root: the folder with the files, or the one that holds cifar-10-batches-bin or cifar-10-batches-py.
    """
    layout, folder = find(root, (BINARY10, PYTHON10))
    read = _binary(("labels",)) if layout is BINARY10 else _python
    parts = [Split(*read(folder, name, "labels")) for name in layout.files]
    *batches, test = parts
    for name, batch in zip(layout.files, batches, strict=False):
        if len(batch) != len(batches[0]):  # a file may be cut between two records
            why = f"it holds {len(batch):,} images, and {layout.files[0]} {len(batches[0]):,}"
            refuse(folder / name, why)
    train = Split(torch.cat([part.x for part in batches]), torch.cat([part.y for part in batches]))
    return Dataset("cifar10", train, None, test, CIFAR10, source=some(layout.files))


def read_cifar100(root: Path, labels: str = "fine") -> Dataset:
    """CIFAR-100: 50,000 training and 10,000 test images of 100 classes, which form 20 coarse ones.

    Args:
        root: the folder with the files, or the one that holds cifar-100-binary or cifar-100-python.
        labels: fine (100 classes) or coarse (20).
    """
    if labels not in KINDS:
        raise ParameterError(f"load('cifar100', labels={labels!r})", "there are two kinds of labels", "fine or coarse")
    layout, folder = find(root, (BINARY100, PYTHON100))
    read = _binary([f"{kind}_labels" for kind in KINDS]) if layout is BINARY100 else _python
    train, test = (Split(*read(folder, name, f"{labels}_labels")) for name in layout.files)
    return Dataset("cifar100", train, None, test, _names100(folder, labels), source=some(layout.files))


def read_cifar10_c(root: Path, corruption: str = "gaussian_noise", severity: int = 3) -> Dataset:
    """CIFAR-10-C: the test images of CIFAR-10 under one corruption, for a test of what a model knows under shift.

    Args:
        root: the folder with labels.npy and one .npy file for each corruption, or the one that holds CIFAR-10-C.
        corruption: the name of its file, without .npy.
        severity: 1 to 5; a file holds the images of severity 1 first.
    """
    if severity not in range(1, 6):
        raise ParameterError(f"load('cifar10_c', severity={severity})", "a corruption has five severities", "1 to 5")
    _, folder = find(root, (Layout(("labels.npy",), ("CIFAR-10-C",)),))
    path = folder / f"{corruption}.npy"
    if not path.is_file():
        present = some(sorted(p.stem for p in folder.glob("*.npy") if p.stem != "labels"), most=20)
        refuse(
            path,
            f"there is no such file; {listing(folder)}",
            f"corruption= one of {present}" if present else "CIFAR-10-C",
        )
    images, labels = read_npy(path), read_npy(folder / "labels.npy")
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images) % 5:
        refuse(path, f"it holds {images.dtype} of {images.shape}", "five severities of uint8 images of (32, 32, 3)")
    if labels.shape != (len(images),) or labels.dtype.kind not in "ui":
        refuse(folder / "labels.npy", f"it holds {labels.dtype} of {labels.shape}", f"{len(images):,} whole numbers")
    count = len(images) // 5
    chosen = slice((severity - 1) * count, severity * count)
    x = torch.from_numpy(np.array(images[chosen]).transpose(0, 3, 1, 2).copy())
    test = Split(x, torch.from_numpy(labels[chosen].astype(np.int64)))
    return Dataset("cifar10_c", None, None, test, CIFAR10, source=f"{path.name}, severity {severity}")


def _binary(kinds: Sequence[str]) -> Callable[[Path, str, str], tuple[Tensor, Tensor]]:
    """A reader of records of one byte for each kind of label, and 3,072 pixels."""

    def read(folder: Path, name: str, kind: str) -> tuple[Tensor, Tensor]:
        raw = np.frombuffer(read_bytes(folder, name), dtype=np.uint8)
        record = len(kinds) + PIXELS
        if len(raw) == 0 or len(raw) % record:
            shape = f"records of {record:,} bytes ({len(kinds)} label, {PIXELS:,} pixels)"
            refuse(folder / name, f"its {len(raw):,} bytes are no whole number of {shape}")
        rows = raw.reshape(-1, record)
        x = np.ascontiguousarray(rows[:, len(kinds) :]).reshape(-1, 3, 32, 32)
        return torch.from_numpy(x), torch.from_numpy(rows[:, kinds.index(kind)].astype(np.int64))

    return read


def _python(folder: Path, name: str, kind: str) -> tuple[Tensor, Tensor]:
    """A pickled dict with data, (N, 3072) uint8, and lists of labels."""
    content = _pickled(folder, name)
    data, labels = content.get("data"), content.get(kind)
    if data is None or labels is None:
        refuse(folder / name, f"it holds {some(sorted(content)) or 'nothing'}", f"a batch with data and {kind}")
    if not isinstance(data, np.ndarray) or (not isinstance(labels, np.ndarray) and not _whole_numbers(labels)):
        why = f"data is a {type(data).__name__}, {kind} a {type(labels).__name__}, not an array and whole numbers"
        refuse(folder / name, why)
    x, y = data, np.asarray(labels)
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS or y.shape != (len(x),) or y.dtype.kind not in "ui":
        why = f"data is {x.dtype} of {x.shape}, {kind} is {y.dtype} of {y.shape}"
        refuse(folder / name, why, f"uint8 of (N, {PIXELS}) and N whole numbers")
    return torch.from_numpy(x.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(y.astype(np.int64))


def _whole_numbers(labels: object) -> bool:
    return isinstance(labels, list) and all(isinstance(label, int) for label in labels)


def _pickled(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = read_plain_pickle(read_bytes(folder, name))
    except ParameterError as error:
        refuse(folder / name, f"read as {error.asked}: {error.why}", error.instead)
    if not isinstance(content, dict):
        refuse(folder / name, f"it holds a {type(content).__name__}", "a batch of CIFAR, which is a dict")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _names100(folder: Path, labels: str) -> tuple[str, ...]:
    """The names of the classes from the file beside the batches; their numbers where there is none."""
    count = CLASSES100[labels]
    names = [str(number) for number in range(count)]
    path = folder / "meta"
    if (folder / f"{labels}_label_names.txt").is_file():
        path = folder / f"{labels}_label_names.txt"
        names = read_text(path, encoding="latin-1").split()
    elif path.is_file():
        listed = _pickled(folder, "meta").get(f"{labels}_label_names", [])
        names = [name.decode("latin-1") if isinstance(name, bytes) else str(name) for name in listed]
    if len(names) != count:
        refuse(path, f"it names {len(names)} {labels} classes", f"the file with its {count} names, or none")
    return tuple(names)
