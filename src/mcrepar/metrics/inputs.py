"""What metrics take: arrays that are checked before anything is counted, and the order of a score."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcrepar.errors import ParameterError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SUM_TOLERANCE = 1e-3  # of a row of probabilities, which may have been float16


def numbers(asked: str, *dims: int, **named: ArrayLike) -> list[Floats]:
    """Finite float64 arrays of one length, in the order given.

    Args:
        asked: the call, for the error.
        *dims: the dimensions allowed, (1,) if none are given.
        **named: the arrays by their argument's name.

    >>> numbers("rmse", mean=[1, 2], y=[0.5, 2])
    [array([1., 2.]), array([0.5, 2. ])]
    """
    arrays = [_array(asked, name, value) for name, value in named.items()]
    for name, array in zip(named, arrays, strict=True):
        if array.ndim not in (dims or (1,)):
            shape = " or ".join("(examples,)" if n == 1 else "(examples, ...)" for n in dims or (1,))
            _refuse(asked, f"{name} has the shape {array.shape}", f"an array of shape {shape}")
        if not len(array):
            _refuse(asked, f"{name} is empty", "at least one example")
        wrong = ~np.isfinite(array)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            _refuse(asked, f"{name} is {array[place]} at {place}, one of {int(wrong.sum())}", "finite numbers")
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        parts = ", ".join(f"{name} {n}" for name, n in zip(named, lengths, strict=True))
        _refuse(asked, f"the lengths differ: {parts}", "arrays of one length")
    return arrays


def classes(asked: str, y: ArrayLike, count: int, name: str = "y") -> Ints:
    """Labels 0 .. count - 1 as int64.

    Args:
        asked: the call, for the error.
        y: whole numbers, (examples,).
        count: how many classes there are.
        name: of the argument.
    """
    (given,) = numbers(asked, **{name: y})
    labels = given.astype(np.int64)
    wrong = np.flatnonzero((labels != given) | (labels < 0) | (labels >= count))
    if len(wrong):
        first = int(wrong[0])
        why = f"{name}[{first}] is {given[first]:g}, one of {len(wrong)} that are no class"
        _refuse(asked, why, f"whole numbers from 0 to {count - 1}")
    return labels


def probabilities(asked: str, probs: ArrayLike, y: ArrayLike) -> tuple[Floats, Ints]:
    """Rows of probabilities, (examples, classes), and a label for each.

    Args:
        asked: the call, for the error.
        probs: non-negative, each row summing to 1.
        y: the classes.
    """
    p = _array(asked, "probs", probs)
    if p.ndim != 2 or p.shape[1] < 2:
        _refuse(asked, f"probs has the shape {p.shape}", "an array of shape (examples, classes)")
    (p,) = numbers(asked, 2, probs=p)
    sums = p.sum(1)
    bad = np.flatnonzero((p < 0).any(1) | (np.abs(sums - 1) > SUM_TOLERANCE))
    if len(bad):
        row = int(bad[0])
        why = f"row {row} of probs has the sum {sums[row]:.4g} and the least value {p[row].min():.4g}"
        _refuse(asked, why, "probabilities, for instance logits.softmax(1)")
    labels = classes(asked, y, p.shape[1])
    if len(labels) != len(p):
        _refuse(asked, f"the lengths differ: probs {len(p)}, y {len(labels)}", "one label for each row")
    return p, labels


def share(asked: str, name: str, value: object) -> float:
    """A number between 0 and 1.

    Args:
        asked: the call, for the error.
        name: of the argument.
        value: its value.
    """
    if not isinstance(value, float | int | np.floating) or not 0 <= value <= 1:
        _refuse(asked, f"{name}={value!r} is no share", f"{name} between 0 and 1")
    return float(value)


def ranked(score: Floats, value: Floats) -> tuple[Floats, Ints]:
    """The values in the order of falling score, and the number of examples up to the end of each group of equal scores.

    Values of equal scores are replaced by their mean, the expectation over all orders of them; so no result depends on
    the order of the examples.

    Args:
        score: (examples,).
        value: (examples,).

    >>> ranked(np.array([0.5, 0.9, 0.5]), np.array([1.0, 3.0, 2.0]))
    (array([3. , 1.5, 1.5]), array([1, 3]))
    """
    order = np.argsort(-score, kind="stable")
    score, value = score[order], value[order]
    ends = np.flatnonzero(np.append(score[1:] != score[:-1], True)) + 1
    starts = np.append(0, ends[:-1])
    means = np.add.reduceat(value, starts) / (ends - starts)
    return np.repeat(means, ends - starts), ends


def _array(asked: str, name: str, value: ArrayLike) -> Floats:
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError:
        _refuse(asked, f"{name} has rows of different lengths", "an array of numbers")
    if array.dtype.kind not in "biuf":
        _refuse(asked, f"{name} has dtype {array.dtype}", "an array of numbers")
    return array.astype(np.float64)


def _refuse(asked: str, why: str, instead: str) -> NoReturn:
    raise ParameterError(asked, why, instead)
