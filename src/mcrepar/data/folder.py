"""Images in folders, one folder for each class, in parts or not."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mcrepar.data.batches import divided
from mcrepar.data.dataset import PARTS, Dataset, Split, checked_size, joined
from mcrepar.data.files import listing, refuse, some
from mcrepar.data.skips import Skips
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


def read_folder(
    root: Path, size: Sequence[int] = (), test_share: float = 0.2, seed: int = 0, skip_damaged: bool = False
) -> Dataset:
    """Images in root/train/<class>, root/val/<class>, root/test/<class>; or in root/<class>, split at random.

    They are grey if all files are, and in colour otherwise.

    Args:
        root: the folder.
        size: (height, width) to which every image is resized; needed where they differ.
        test_share: of all images, where the folder has no parts.
        seed: of that choice.
        skip_damaged: leave damaged images out, with a warning that lists them, instead of refusing the folder.
    """
    target = checked_size("load('folder')", size, 2) if size else ()
    if not root.is_dir():
        why = "it is a file" if root.is_file() else "there is no such folder"
        raise ParameterError(f"root={str(root)!r}", why, "a folder with one folder for each class")
    if find_spec("PIL") is None:
        raise ParameterError("load('folder')", "pillow is not installed", "pip install pillow")
    found, classes = _files(root)
    skips = Skips(root, skip_damaged)
    headers = [(found[i], *header) for i, header in skips.whole([file.path for file in found], _header)]
    target, grey = _common(headers, target)
    x = torch.empty(len(headers), 1 if grey else 3, *target, dtype=torch.uint8)
    files: list[_File] = []
    decode = partial(_pixels, size=target, grey=grey)
    for i, pixels in skips.whole([file.path for file, *_ in headers], decode):
        x[len(files)] = pixels
        files.append(headers[i][0])
    whole = Split(x[: len(files)], torch.tensor([file.label for file in files]))
    parts = divided(whole, [file.part for file in files], test_share, seed)
    return skips.noted(joined("folder", parts, classes, source=f"{root.name}, {len(files)} images"), len(found))


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


def _header(path: Path) -> tuple[tuple[int, int], str]:
    """Height and width, and the mode, of an image that is not decoded."""
    with _opened(path) as image:
        return (image.height, image.width), image.mode


def _common(
    headers: Sequence[tuple[_File, tuple[int, int], str]], size: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    """The size of all images and whether all are grey."""
    first, grey = "", True
    for file, own, mode in headers:
        path = file.path
        if mode not in EIGHT_BITS:
            refuse(path, f"its pixels are of mode {mode!r}", "8 bits a channel, or load('arrays')")
        grey = grey and mode in GREY
        if size and not first:  # a size was asked for: any will do
            continue
        if first and own != size:
            why = f"{first} is {size[0]} x {size[1]}, {path.name} is {own[0]} x {own[1]} (height x width)"
            instead = f"size=({size[0]}, {size[1]}) to resize all of them (--data-options.size {size[0]},{size[1]})"
            raise ParameterError("images of one size", why, instead)
        size, first = own, first or path.name
    return size, grey


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """The image of a file; what goes wrong inside is an error that names it."""
    from PIL import Image, UnidentifiedImageError

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
        image.verify()  # PNG's checksums; decoding looks at those of zlib alone
    with _opened(path) as image:
        pixels = image.convert("L" if grey else "RGB")
    if (pixels.height, pixels.width) != size:
        from PIL.Image import Resampling

        pixels = pixels.resize((size[1], size[0]), Resampling.BILINEAR)
    return torch.from_numpy(np.atleast_3d(np.array(pixels))).permute(2, 0, 1)
