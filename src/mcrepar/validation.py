"""The one place that checks arguments: names, whole numbers, generators, and options by their type hints."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from mcrepar.errors import ParameterError

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
_ITEMS = {str: "texts", int: "whole numbers", float: "numbers"}


def closest(name: object, known: Iterable[str]) -> list[str]:
    """The known names that look most like one that is not known; all of them where none does.

    Args:
        name: what was asked for.
        known: the names that exist.

    >>> closest("cifar-10", ["mnist", "cifar10", "svhn"]), closest(3, ["mnist", "svhn"])
    (['cifar10'], ['mnist', 'svhn'])
    """
    names = list(known)
    return difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.5) or names


def whole_number(name: str, value: object, least: int = 1, other: str = "") -> int:
    """A count as an int.

    Args:
        name: of the argument.
        value: given.
        least: the smallest that is allowed.
        other: a word that is allowed in the place of a number, for the error.

    Raises:
        ParameterError: where it is no whole number, or too small.

    >>> whole_number("draws", 3)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        instead = f"a whole number or {other}" if other else "a whole number"
        raise ParameterError(f"{name}={value!r}", f"it is a {type(value).__name__}", instead)
    if value < least:
        raise ParameterError(f"{name}={value}", "it is too small", f"a whole number of at least {least}")
    return int(value)


def real_number(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, *, closed: bool = False, instead: str = ""
) -> float:
    """A finite number between two bounds as a float.

    Args:
        name: of the argument.
        value: given.
        low: what it must be above.
        high: what it must be below.
        closed: whether it may be `low` as well.
        instead: what to use, for the error.

    Raises:
        ParameterError: where it is no number, or not between the bounds.

    >>> real_number("scale", 3, 0)
    3.0
    """
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if low < number < high or (closed and number == low):
        return number
    kind = "finite number" if low == -math.inf else "positive number" if low == 0 else f"number above {low:g}"
    kind = f"finite number of at least {low:g}" if closed else kind
    kind += "" if high == math.inf else f" and below {high:g}"
    raise ParameterError(f"{name}={value!r}", f"it is not a {kind}", instead or f"a {kind}")


def check_generator(generator: object) -> None:
    """Refuse what is neither a torch.Generator nor None.

    Args:
        generator: given.

    Raises:
        ParameterError: where it is anything else, such as a seed.
    """
    import torch

    if generator is not None and not isinstance(generator, torch.Generator):
        why = f"it is of type {type(generator).__name__}, not a torch.Generator"
        raise ParameterError(f"generator={generator!r}", why, "torch.Generator().manual_seed(0)")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type: int also where a float is wanted, a list of them for Sequence[...], but no text.

    Args:
        value: given.
        kind: a type hint of int, float, bool, str, None, Literal, Sequence, tuple, Mapping or a union of them.

    >>> fits(3, float | None), fits("abc", int), fits(True, int), fits(["no", "yes"], Sequence[str])
    (True, False, False, True)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in parts)
    if origin is Literal:
        return value in parts
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if origin in (Sequence, tuple):
        return isinstance(value, Sequence) and not isinstance(value, str) and all(fits(v, parts[0]) for v in value)
    return isinstance(value, origin or kind)


def from_text(value: Any, kind: Any) -> Any:
    """Numbers that were typed as a text, (32, 32) or 32,32, as a list where one is wanted; other values as they are.

    Args:
        value: given.
        kind: the type hint.

    >>> from_text("(32, 32)", Sequence[int]), from_text("32,x", Sequence[int]), from_text("1,2", str)
    ([32, 32], '32,x', '1,2')
    """
    number = next(iter(get_args(kind)), None)
    if not isinstance(value, str) or get_origin(kind) is not Sequence or number not in (int, float):
        return value
    words = value.strip().strip("()[]").rstrip(",").split(",")
    try:
        return [number(word) for word in words]
    except ValueError:
        return value


def described(kind: Any) -> str:
    """What a type takes, in words.

    >>> described(int | None), described(Sequence[str])
    ('a whole number or none', 'a list of texts, each in quotes')
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(described(one) for one in parts)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Sequence, tuple):
        return f"a list of {_ITEMS[parts[0]]}" + (", each in quotes" if parts[0] is str else "")
    return _WORDS.get(kind, "names with values")


def check_option(asked: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of an option's type.

    Args:
        asked: the first part of the error, without the value.
        value: given.
        kind: the type hint.
    """
    if not fits(value, kind):
        raise ParameterError(f"{asked} {value!r}", "it is no value of this option", described(kind))


def probability(what: str, level: object) -> float:
    """A number between 0 and 1, both included, or a refusal.

    >>> probability("interval", 0.9)
    0.9
    """
    if isinstance(level, bool) or not isinstance(level, Real) or not 0 <= float(level) <= 1:
        raise ParameterError(f"{what}({level!r})", "it is not a probability between 0 and 1", f"{what}(0.9)")
    return float(level)
