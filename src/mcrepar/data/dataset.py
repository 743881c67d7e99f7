"""What every reader returns: the parts of a data set as tensors, with names for the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mcrepar.data.files import some
from mcrepar.errors import ParameterError

OUTSIDE = 255  # in the place of a voxel's class where nothing is to be predicted
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "validation"
)  # as files spell it -> as a Dataset does


@dataclass(frozen=True, eq=False)
class Split:
    """Images, volumes or features, and what is to be predicted of each.

    Args:
        x: (N, C, *size), uint8 or float32; (N, C) for features without a place.
        y: (N,), int64 classes (all -1 where there are no labels), or float32 targets of a regression; (N, *size) of
            uint8 for a class of every pixel or voxel, 255 where it does not count.

    >>> len(Split(torch.zeros(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64)))
    5
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dtype not in (torch.uint8, torch.float32) or self.x.dim() < 2:
            self._refuse(f"x is {self.x.dtype} of shape {tuple(self.x.shape)}", "uint8 or float32 of (N, C, *size)")
        if self.y.dtype not in (torch.int64, torch.float32, torch.uint8):
            self._refuse(f"y is {self.y.dtype}", "int64 classes or float32 targets, or uint8 classes of voxels")
        if self.y.shape != (len(self.x), *(self.x.shape[2:] if self.y.dtype == torch.uint8 else ())):
            self._refuse(
                f"x holds {len(self.x)} examples, and y has the shape {tuple(self.y.shape)}", "one y for each x"
            )
        if len(self.x) == 0:
            self._refuse("it is empty", "at least one example")

    def _refuse(self, why: str, instead: str) -> None:
        raise ParameterError("Split(x, y)", why, instead)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labelled(self) -> bool:
        """Whether y says anything: False where all labels are -1."""
        return self.y.is_floating_point() or bool((self.y >= 0).all())

    @property
    def size(self) -> tuple[int, ...]:
        """The spatial size of what a network sees."""
        return tuple(self.x.shape[2:])

    @property
    def repeats(self) -> int:
        """How often an epoch sees each example."""
        return 1

    @property
    def labels(self) -> Tensor:
        """All of y that counts, in a row."""
        return self.y[self.y != OUTSIDE] if self.y.dtype == torch.uint8 else self.y.flatten()

    def at(self, index: Tensor) -> Split:
        """The examples at these places.

        Args:
            index: places, or a mask.
        """
        return Split(self.x[index], self.y[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory.

    Args:
        name: that of the table of data sets.
        train: None where the files hold a test set only.
        validation: None where the files have no third part (see `hold_out`).
        test: always there.
        classes: their names, in the order of the labels; () for a regression or without labels.
        simulated: whether the data were made by a program.
        source: what was read, without folders.
        skipped: the files that were damaged and left out, below the root.

    >>> part = Split(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]))
    >>> d = Dataset("mine", part, None, part, ("cat", "dog"))
    >>> d.channels, d.size
    (3, (8, 8))
    """

    name: str
    train: Split | None
    validation: Split | None
    test: Split
    classes: tuple[str, ...]
    simulated: bool = False
    source: str = ""
    skipped: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        """C of (N, C, *size)."""
        return int(self.test.x.shape[1])

    @property
    def size(self) -> tuple[int, ...]:
        """The spatial size: (H, W) of images, three numbers of volumes, () of features."""
        return self.test.size

    @property
    def parts(self) -> dict[str, Split]:
        """The parts that are there, by name."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in parts.items() if part is not None}


def joined(
    name: str, parts: Mapping[str, Split], classes: Sequence[str], source: str, simulated: bool = False
) -> Dataset:
    """A data set of the parts that were found; a validation part without a test part is the test set.

    Args:
        name: of the data set.
        parts: train, validation, test, as far as they are there.
        classes: the names of the classes.
        source: what was read.
        simulated: whether the data were made by a program.
    """
    train, validation, test = (parts.get(part) for part in ("train", "validation", "test"))
    if test is None and validation is not None:
        validation, test, source = None, validation, f"{source}; its validation part is the test set"
    if test is None:
        raise ParameterError(
            f"data set {name!r} ({source})", "it has no test part", "a test or validation part as well"
        )
    return Dataset(name, train, validation, test, tuple(classes), simulated, source)


def checked_size(asked: str, size: object, count: int, least: int = 1) -> tuple[int, ...]:
    """The lengths of an option size=, or a refusal.

    Args:
        asked: the first part of the error.
        size: what was given.
        count: how many lengths there must be.
        least: the smallest length.

    >>> checked_size("load('folder')", [32, 32], 2)
    (32, 32)
    """
    lengths = tuple(size) if isinstance(size, Sequence) else ()
    if len(lengths) != count or not all(type(length) is int and length >= least for length in lengths):
        wanted = f"{count} whole numbers of at least {least}, such as {[32] * count}"
        raise ParameterError(f"{asked}, size={size!r}", f"a size is {count} lengths of at least {least}", wanted)
    return lengths


def check(dataset: Dataset) -> Dataset:
    """The data set itself, unless its parts differ in size, a label is out of range or a class has no example.

    Args:
        dataset: what a reader made of its files.
    """
    asked = f"data set {dataset.name!r} ({dataset.source})"
    for name, part in dataset.parts.items():
        if part.x.shape[1:] != dataset.test.x.shape[1:]:
            sizes = f"{name} has examples of {tuple(part.x.shape[1:])}, test of {tuple(dataset.test.x.shape[1:])}"
            raise ParameterError(asked, sizes, "parts of one size")
        if part.y.dtype != dataset.test.y.dtype:
            raise ParameterError(
                asked, f"y of {name} is {part.y.dtype}, of test {dataset.test.y.dtype}", "one kind of y"
            )
        if part.x.is_floating_point() and not bool(part.x.isfinite().all()):
            row = int((~part.x.isfinite()).flatten(1).any(1).nonzero()[0])
            raise ParameterError(asked, f"x of {name} is not finite, first in example {row}", "data without NaN or inf")
        if part.y.is_floating_point() and not bool(part.y.isfinite().all()):
            row = int((~part.y.isfinite()).nonzero()[0])
            raise ParameterError(
                asked, f"y of {name} is not finite, first in example {row}", "targets without NaN or inf"
            )
        if dataset.classes:
            check_labels(part.labels, dataset.classes, f"{asked}, {name}")
    if dataset.train is not None and dataset.classes:
        if len(dataset.classes) < 2:
            why = f"{dataset.classes[0]!r} is its only class, and there is nothing to tell apart"
            raise ParameterError(asked, why, "examples of two classes or more")
        count = torch.bincount(dataset.train.labels, minlength=len(dataset.classes))
        empty = [name for name, number in zip(dataset.classes, count.tolist(), strict=True) if not number]
        if empty:
            raise ParameterError(
                asked,
                f"no training example of class {some([repr(name) for name in empty], 5)}",
                "data with every class",
            )
    return dataset


def check_labels(y: Tensor, classes: Sequence[str], asked: str) -> None:
    """Refuse a label that is the place of no class, and say where it is.

    Args:
        y: int64 labels.
        classes: the names.
        asked: the first part of the error.
    """
    wrong = ((y < 0) | (y >= len(classes))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        why = f"example {row} (counted from 0) has the label {int(y[row])}, one of {len(wrong)} out of range"
        raise ParameterError(asked, why, f"labels 0 to {len(classes) - 1}, for {len(classes)} classes")
