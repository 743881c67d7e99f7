"""Images in folders, one folder for each class, in parts or not."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mcrepar.data.batches import divided
from mcrepar.data.dataset import PARTS, Dataset, Split, checked_size, joined
from mcrepar.data.files import listing, refuse, some
from mcrepar.errors import ParameterError
from mcrepar.user_files import read_file

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # pillow would run a program for some others
LARGEST_IMAGE = 2**28  # bytes
GREY = ("1", "L", "LA")
EIGHT_BITS = (*GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


@dataclass(frozen=True)
class _File:
    path: Path
    label: int
    part: str


def read_folder(root: Path, size: Sequence[int] = (), test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Images in root/train/<class>, root/val/<class>, root/test/<class>; or in root/<class>, split at random.

    They are grey if all files are, and in colour otherwise.

    Args:
        root: the folder.
        size: (height, width) to which every image is resized; needed where they differ.
        test_share: of all images, where the folder has no parts.
        seed: of that choice.
    """
    target = checked_size("load('folder')", size, 2) if size else ()
    if not root.is_dir():
        why = "it is a file" if root.is_file() else "there is no such folder"
        raise ParameterError(f"root={str(root)!r}", why, "a folder with one folder for each class")
    files, classes = _files(root)
    target, grey = _headers(files, target)
    x = torch.empty(len(files), 1 if grey else 3, *target, dtype=torch.uint8)
    for i, file in enumerate(files):
        x[i] = _pixels(file.path, target, grey)
    whole = Split(x, torch.tensor([file.label for file in files]))
    parts = divided(whole, [file.part for file in files], test_share, seed)
    return joined("folder", parts, classes, source=f"{root.name}, {len(files)} images")


def _files(root: Path) -> tuple[list[_File], list[str]]:
    """Every image with its class and part; the classes are those of the training part where there are parts."""
    folders = _folders(root)
    lower = all(folder.name.lower() in PARTS for folder in folders)  # else a class may be called Train
    parts = {
        PARTS[name]: folder for folder in folders if (name := folder.name.lower() if lower else folder.name) in PARTS
    }
    if parts and len(parts) < len(folders):
        used = [folder.name for folder in parts.values()]
        others = some([folder.name for folder in folders if folder.name not in used])
        why = f"it has the parts {some(used)}, and beside them {others}"
        raise ParameterError(f"root={str(root)!r}", why, "one folder for each part, or classes alone")
    places = parts or {"": root}
    first = places.get("train", next(iter(places.values())))
    classes = [folder.name for folder in _folders(first)]
    if not classes:
        raise ParameterError(f"root={str(root)!r}", listing(first), "a folder with one folder for each class")
    files = []
    for part, place in places.items():
        for folder in _folders(place):
            if folder.name not in classes:
                where = f"{place.name} has the class {folder.name!r}, {first.name} has {some(classes)}"
                raise ParameterError(f"root={str(root)!r}", where, "the same classes in all parts")
            images = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
            if not images:
                why = f"class {folder.name!r} has no image; {listing(folder)}"
                raise ParameterError(f"root={str(root)!r}", why, f"at least one image in {folder.name}/")
            files += [_File(path, classes.index(folder.name), part) for path in images]
    return files, classes


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _headers(files: Sequence[_File], size: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """The size of all images and whether all are grey, from their headers, before any is decoded."""
    first, grey = "", True
    for file in files:
        with _opened(file.path) as image:
            own, mode = (image.height, image.width), image.mode
        if mode not in EIGHT_BITS:
            refuse(file.path, f"its pixels are of mode {mode!r}", "8 bits a channel, or load('arrays')")
        grey = grey and mode in GREY
        if size and not first:  # a size was asked for: any will do
            continue
        if first and own != size:
            why = f"{first} is {size[0]} x {size[1]}, {file.path.name} is {own[0]} x {own[1]} (height x width)"
            raise ParameterError("images of one size", why, f"size=({size[0]}, {size[1]}) to resize all of them")
        size, first = own, first or file.path.name
    return size, grey


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """The image of a file; what goes wrong inside is an error that names it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ParameterError("load('folder')", "pillow is not installed", "pip install pillow") from error
    try:
        raw = read_file(path, LARGEST_IMAGE)
    except FileNotFoundError:
        refuse(path, "it is a link to no file", "an image, or move the file away")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
                yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        refuse(path, f"its {len(raw):,} bytes hold too many pixels ({error})", "smaller images")
    except UnidentifiedImageError:
        refuse(path, f"its {len(raw):,} bytes are no image", "an image, or move the file away")
    except MemoryError:
        refuse(path, "its pixels do not fit into the memory", "smaller images")
    except Exception as error:  # each format fails in ways of its own
        if isinstance(error, ParameterError):
            raise
        refuse(path, f"its {len(raw):,} bytes are a damaged image ({type(error).__name__}: {error})")


def _pixels(path: Path, size: tuple[int, ...], grey: bool) -> Tensor:
    """(C, H, W) of uint8."""
    with _opened(path) as image:
        pixels = image.convert("L" if grey else "RGB")
    if (pixels.height, pixels.width) != size:
        from PIL.Image import Resampling

        pixels = pixels.resize((size[1], size[0]), Resampling.BILINEAR)
    return torch.from_numpy(np.atleast_3d(np.array(pixels))).permute(2, 0, 1)
