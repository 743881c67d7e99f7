"""What predictions.npz must hold before a view computes with it: names, types, lengths and ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

MOST_EXAMPLES = 1_000_000
_LARGEST_SIDE = 512  # of a thumbnail, in pixels
_CLASSES = ("y", "label", "confidence", "probs", "draws")
_NUMBERS = ("y", "mean", "lower", "upper")
_MAY_BE = ("moments", "entropy", "mutual_information", "classes", "thumbnails", "thumbnail_indices")
_OOD = ("ood_", "_confidence")


class Damaged(ValueError):
    """What a file of a run holds and should not, as a sentence about that file."""


def wanted(names: Collection[str]) -> list[str]:
    """Of the names in a file those that a view looks at.

    >>> wanted(["y", "votes", "ood_noise_confidence"])
    ['y', 'ood_noise_confidence']
    """
    known = {*_CLASSES, *_NUMBERS, *_MAY_BE}
    return [name for name in names if name in known or ood_set(name)]


def ood_set(name: str) -> str:
    """The data set of an array ood_<name>_confidence; "" of others.

    >>> ood_set("ood_noise_confidence"), ood_set("confidence")
    ('noise', '')
    """
    ours = name.startswith(_OOD[0]) and name.endswith(_OOD[1])
    return name[len(_OOD[0]) : -len(_OOD[1])] if ours else ""


def checked(arrays: Arrays) -> Arrays:
    """The arrays, with names of classes that can be printed, or a Damaged that says what is wrong.

    Args:
        arrays: those that `wanted` names.
    """
    classes = "confidence" in arrays
    missing = [name for name in (_CLASSES if classes else _NUMBERS) if name not in arrays]
    if missing:
        raise Damaged(f"it has no array {missing[0]!r}")
    count = len(np.atleast_1d(arrays["y"]))
    if not 0 < count <= MOST_EXAMPLES:
        raise Damaged(f"it holds {count:,} examples, and 1 to {MOST_EXAMPLES:,} can be shown")
    if classes:
        return _of_classes(arrays, count)
    for name in _NUMBERS:
        _form(arrays, name, "fiu", (count,))
    return arrays


def _of_classes(arrays: Arrays, count: int) -> Arrays:
    _form(arrays, "probs", "f", (count, None), 0, 1)
    kinds = arrays["probs"].shape[1]
    for name in ("y", "label"):
        _form(arrays, name, "iu", (count,), 0, kinds - 1)
    _form(arrays, "confidence", "f", (count,), 0, 1)
    _form(arrays, "draws", "iu", (), 1)
    if "moments" in arrays:
        _form(arrays, "moments", "b", (), 0, 1)
    for name in ("entropy", "mutual_information"):
        if name in arrays:
            _form(arrays, name, "f", (count,))
    for name in filter(ood_set, arrays):
        _form(arrays, name, "f", (None,), 0, 1)
    if {"thumbnails", "thumbnail_indices"} <= set(arrays):
        _form(arrays, "thumbnail_indices", "iu", (None,), 0, count - 1)
        _form(arrays, "thumbnails", "u", (len(arrays["thumbnail_indices"]), None, None, None))
        *_, height, width, channels = arrays["thumbnails"].shape
        if arrays["thumbnails"].dtype != np.uint8 or max(height, width) > _LARGEST_SIDE or channels not in (1, 3):
            raise Damaged(f"thumbnails are {arrays['thumbnails'].dtype} of {arrays['thumbnails'].shape}")
    if "classes" not in arrays:
        return arrays
    _form(arrays, "classes", "U", (None,))
    try:
        names = [str(name).encode("utf-8", "replace").decode() for name in arrays["classes"].tolist()]
    except (ValueError, SystemError) as error:  # what is no character
        raise Damaged(f"classes are no names ({error})") from None
    return {**arrays, "classes": np.array(names, dtype=np.str_)}


def _form(
    arrays: Arrays, name: str, kinds: str, shape: tuple[int | None, ...], least: float = -np.inf, most: float = np.inf
) -> None:
    """Refuse another type, another shape (None is any length), and values that are not finite or out of range."""
    array = arrays[name]
    if array.dtype.kind not in kinds:
        raise Damaged(f"{name} is of type {array.dtype}")
    if array.ndim != len(shape) or any(b not in (None, a) for a, b in zip(array.shape, shape, strict=True)):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise Damaged(f"{name} has the shape {array.shape}, not ({wanted})")
    if kinds == "U" or not array.size:
        return
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite([low, high]).all() and low >= least - 1e-6 and high <= most + 1e-6):
        raise Damaged(f"{name} goes from {low:g} to {high:g}")
