"""Images in folders, one folder for each class, in parts or not."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
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


@dataclass(frozen=True, eq=False)
class _Image:
    size: tuple[int, int]  # height and width in the file
    mode: str  # pillow's
    pixels: Tensor | None  # (1 or 3, H, W) of uint8; None where the mode has other than 8 bits a channel


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
    images = skips.whole([file.path for file in found], partial(_decode, size=target))
    x, files = _stacked(((found[i], image) for i, image in images), len(found), target)
    whole = Split(x, torch.tensor([file.label for file in files]))
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


def _stacked(images: Iterable[tuple[_File, _Image]], count: int, size: tuple[int, ...]) -> tuple[Tensor, list[_File]]:
    """All images as one tensor, in colour as soon as one of them is, and their files.

    Args:
        images: as they are decoded.
        count: how many there may be.
        size: that was asked for; () demands one size of all.
    """
    x, files = torch.empty(0), list[_File]()
    for file, image in images:
        if image.pixels is None:
            refuse(file.path, f"its pixels are of mode {image.mode!r}", "8 bits a channel, or load('arrays')")
        if not files:
            first, demanded = image.size, size or image.size
            x = torch.empty(count, len(image.pixels), *demanded, dtype=torch.uint8)
        if not size and image.size != first:
            texts = (f"{f.path.name} is {s[0]} x {s[1]}" for f, s in ((files[0], first), (file, image.size)))
            instead = f"size=({first[0]}, {first[1]}) to resize all of them (--data-options.size {first[0]},{first[1]})"
            raise ParameterError("images of one size", f"{', '.join(texts)} (height x width)", instead)
        if len(image.pixels) > x.shape[1]:
            x = x.repeat(1, 3, 1, 1)  # the grey ones so far
        x[len(files)] = image.pixels  # a grey one is the same in three channels
        files.append(file)
    return x[: len(files)], files


@contextmanager
def _opened(path: Path, raw: bytes) -> Iterator[Image]:
    """The image in the bytes of a file; what goes wrong inside is an error that names it."""
    from PIL import Image, UnidentifiedImageError

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


def _decode(path: Path, size: tuple[int, ...]) -> _Image:
    """An image of a file that is read once, resized where a size is asked for."""
    try:
        raw = read_file(path, LARGEST_IMAGE)
    except FileNotFoundError:
        refuse(path, "it is a link to no file", "an image, or move the file away")
    with _opened(path, raw) as image:
        own, mode = (image.height, image.width), image.mode
        if mode not in EIGHT_BITS:
            return _Image(own, mode, None)
        image.verify()  # PNG's checksums; decoding looks at those of zlib alone
    with _opened(path, raw) as image:
        pixels = image.convert("L" if mode in GREY else "RGB")
    if size and own != size:
        from PIL.Image import Resampling

        pixels = pixels.resize((size[1], size[0]), Resampling.BILINEAR)
    return _Image(own, mode, torch.from_numpy(np.atleast_3d(np.array(pixels))).permute(2, 0, 1))
