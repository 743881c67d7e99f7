"""Readers of the files users have: one row per data set; importing this imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from mcrepar.errors import ParameterError
from mcrepar.validation import check_option, closest, from_text

if TYPE_CHECKING:
    from mcrepar.data.dataset import Dataset


@dataclass(frozen=True)
class DataRow:
    """What can be read under a name.

    Args:
        home: "module.function" of the reader in this package; it takes a root and options.
        summary: one line for tables and help.
        files: what the root must hold; empty where no root is needed.
        augment: the augmentation that suits it: crop_flip, flip or none.
    """

    home: str
    summary: str
    files: str = ""
    augment: str = "none"

    @property
    def read(self) -> Callable[..., Dataset]:
        """The reader, imported when it is asked for."""
        module, _, name = self.home.rpartition(".")
        reader: Callable[..., Dataset] = getattr(import_module(f"{__name__}.{module}"), name)
        return reader

    @property
    def options(self) -> dict[str, Any]:
        """The types of the reader's options, apart from the root, by name."""
        return {name: kind for name, kind in get_type_hints(self.read).items() if name not in ("root", "return")}


DATASETS: Mapping[str, DataRow] = {
    "digits": DataRow("digits.read_digits", "scikit-learn's handwritten digits, 8 x 8, 10 classes"),
    "mnist": DataRow("idx.read_mnist", "MNIST, 28 x 28, 10 digits", "train-images-idx3-ubyte ..., also .gz"),
    "fashion_mnist": DataRow(
        "idx.read_fashion_mnist", "Fashion-MNIST, 28 x 28, 10 classes", "train-images-idx3-ubyte ..., also .gz", "flip"
    ),
    "cifar10": DataRow(
        "cifar.read_cifar10",
        "CIFAR-10, 32 x 32 in colour, 10 classes",
        "cifar-10-batches-bin or cifar-10-batches-py",
        "crop_flip",
    ),
    "cifar100": DataRow(
        "cifar.read_cifar100",
        "CIFAR-100, 32 x 32 in colour, 100 or 20 classes",
        "cifar-100-binary or cifar-100-python",
        "crop_flip",
    ),
    "cifar10_c": DataRow(
        "cifar.read_cifar10_c",
        "CIFAR-10-C: CIFAR-10's test set, corrupted",
        "CIFAR-10-C: labels.npy and <corruption>.npy",
    ),
    "svhn": DataRow(
        "svhn.read_svhn", "SVHN, 32 x 32 in colour, 10 digits", "train_32x32.mat and test_32x32.mat", "crop"
    ),
    "medmnist": DataRow("arrays.read_medmnist", "a set of MedMNIST, images or volumes", "the .npz file of a set"),
    "arrays": DataRow(
        "arrays.read_arrays",
        "your arrays: images, volumes or features; classes, a regression, or no labels",
        "an .npz file with x_train, y_train, x_test, y_test; or with images alone",
    ),
    "folder": DataRow(
        "folder.read_folder", "your images, a folder for each class", "train/<class>/*.png ... or <class>/*.png", "flip"
    ),
    "nifti": DataRow("nifti.read_nifti", "your volumes, listed by a table", "participants.csv and NIfTI files", "flip"),
    "segmentation": DataRow(
        "segmentation.read_segmentation",
        "your images with label maps, listed by a table: a class for every voxel",
        "images.csv and NIfTI files",
    ),
    "structures": DataRow("structures.read_structures", "simulated organs with lesions: a class for every voxel"),
    "brain": DataRow("brain.read_brain", "simulated brain volumes, 2 classes", augment="flip"),
}


def load(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """Read a data set into memory and check it.

    Args:
        name: a key of DATASETS.
        root: the folder or file to read.
        **options: those of the reader.

    >>> d = load("digits", test_share=0.25)
    >>> d.name, d.channels, d.size, len(d.train), len(d.test)
    ('digits', 1, (8, 8), 1348, 449)
    """
    from mcrepar.data.dataset import check

    row = DATASETS.get(name)
    if row is None:
        near = closest(name, DATASETS)
        raise ParameterError(f"load({name!r})", "there is no such data set", ", ".join(near))
    kinds = row.options
    for option, value in options.items():
        if option not in kinds:
            near = closest(option, kinds)
            why = f"the data set has no option {option!r}"
            raise ParameterError(f"load({name!r}, {option}=...)", why, ", ".join(near) or "no option")
        options[option] = from_text(value, kinds[option])
        check_option(f"load({name!r}), {option}=", options[option], kinds[option])
    if row.files and root is None:
        raise ParameterError(f"load({name!r})", "its files are not part of the package", f"root=: {row.files}")
    try:
        return check(row.read(None if root is None else Path(root), **options))
    except OSError as error:  # a folder that may not be listed, a loop of links, a name that is too long
        why = f"{error.filename or 'it'} cannot be read ({error.strerror or error})"
        raise ParameterError(f"load({name!r}, root={str(root)!r})", why, "files that you may read") from None
