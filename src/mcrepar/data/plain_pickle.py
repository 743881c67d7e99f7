"""A reader of pickled numbers, text, lists, dicts and numpy arrays that can do nothing else.

The python version of CIFAR is stored as pickles, and a pickle is a program. This reader knows the few instructions that
data needs and the four names that numpy writes; it imports nothing and calls nothing that a file names.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from mcrepar.errors import ParameterError

ASKED = "a pickle of plain data"
MOST_INSTRUCTIONS = 1_000_000  # a file of CIFAR has a quarter of a million at most
_MARK = object()


class _Refused(Exception):
    """An instruction or a name that plain data does not need."""


class _Array:
    """An array between its creation and its state."""

    value: Any = None


class _Type:
    """The dtype of an array: integers of one to eight bytes."""

    def __init__(self, code: str) -> None:
        if not re.fullmatch(r"[ui][1248]", code):
            raise _Refused(f"an array of dtype {code[:20]!r}")
        self.code = code
        self.order = "="


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin-1" if encoding in ("latin1", "latin-1") else "ascii")


_NAMES: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": lambda kind, shape, code: _Array(),
    "numpy._core.multiarray _reconstruct": lambda kind, shape, code: _Array(),
    "numpy ndarray": lambda *_: _Array(),
    "numpy dtype": lambda code, *_: _Type(_text(code)),
    "_codecs encode": _encode,  # how Python 3 writes bytes in protocol 2
}


def read_plain_pickle(raw: bytes | bytearray) -> Any:
    """What a pickle of plain data holds; text of Python 2 comes as bytes.

    Args:
        raw: the whole pickle, of protocol 2 to 4.

    >>> read_plain_pickle(bytes.fromhex("80027d55016b4b05732e"))
    {b'k': 5}
    """
    try:
        return _resolved(_run(raw))
    except _Refused as error:
        why = f"it asks for {error}, which plain data does not need"
        raise ParameterError(ASKED, why, "the original file: dicts, lists, numbers, text and integer arrays") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ParameterError(ASKED, f"its {len(raw):,} bytes are damaged or none ({error})", "a whole copy") from error


def _run(raw: bytes | bytearray) -> Any:
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if number > MOST_INSTRUCTIONS:
            raise _Refused(f"more than {MOST_INSTRUCTIONS:,} instructions")
        name = opcode.name
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(_known(memo[argument]))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name](argument))
        elif name in _ACTIONS:
            _ACTIONS[name](stack)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _Refused(f"the instruction {name}")
    (value,) = stack
    return value


def _known(value: Any) -> Any:
    """What stands in a second place: a few nested lists that share their parts would be billions of values."""
    if isinstance(value, list | dict | tuple):
        raise _Refused(f"a {type(value).__name__} in two places")
    return value


def _name(argument: str) -> Callable[..., Any]:
    if argument not in _NAMES:
        raise _Refused(argument.replace(" ", "."))
    return _NAMES[argument]


def _since_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
        if place < 0:
            raise ValueError("a mark is missing")
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _last(stack: list[Any], count: int) -> list[Any]:
    items = [stack.pop() for _ in range(count)]
    return items[::-1]


def _set_items(stack: list[Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes | int):  # the hash of a deep tuple overflows the stack
            raise _Refused(f"a key that is a {type(key).__name__}")
        stack[-1][key] = value


def _reduce(stack: list[Any]) -> None:
    function, arguments = _last(stack, 2)
    if not any(function is known for known in _NAMES.values()):
        raise _Refused("a call of something else than numpy's")
    stack.append(function(*arguments))


def _build(stack: list[Any]) -> None:
    state = stack.pop()
    target = stack[-1]
    if isinstance(target, _Type):
        target.order = _text(state[1])
    elif isinstance(target, _Array):
        _, shape, kind, columns_first, raw = state
        dtype = np.dtype(kind.code).newbyteorder(kind.order)
        target.value = np.frombuffer(raw, dtype).reshape(shape, order="F" if columns_first else "C")
    else:
        raise _Refused(f"a state for a {type(target).__name__}")


def _resolved(value: Any) -> Any:
    """The value with arrays in place of what they were made from."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {key: _resolved(item) for key, item in value.items()}
    return [_resolved(item) for item in value] if isinstance(value, list) else value


_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), lambda number: number),
    **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING"), lambda text: text.encode("latin-1")),  # str of Python 2
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), lambda text: text),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8"), lambda raw: raw),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "MARK": lambda _: _MARK,
    "EMPTY_DICT": lambda _: {},
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "GLOBAL": _name,
}
_ACTIONS: dict[str, Callable[[list[Any]], object]] = {
    "SETITEM": lambda stack: _set_items(stack, _last(stack, 2)),
    "SETITEMS": lambda stack: _set_items(stack, _since_mark(stack)),
    "APPEND": lambda stack: _append(stack, _last(stack, 1)),
    "APPENDS": lambda stack: _append(stack, _since_mark(stack)),
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "TUPLE1": lambda stack: stack.append(tuple(_last(stack, 1))),
    "TUPLE2": lambda stack: stack.append(tuple(_last(stack, 2))),
    "TUPLE3": lambda stack: stack.append(tuple(_last(stack, 3))),
    "STACK_GLOBAL": lambda stack: stack.append(_name(" ".join(_last(stack, 2)))),
    "REDUCE": _reduce,
    "BUILD": _build,
}


def _append(stack: list[Any], items: list[Any]) -> None:
    stack[-1].extend(items)
