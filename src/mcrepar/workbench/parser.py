"""The parser of the command line, which refuses a value in a whole sentence."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import NoReturn

from jsonargparse import ArgumentParser

from mcrepar.errors import ParameterError

KEY = re.compile(r'Parser key "([\w.]+)":')
VALUE = re.compile(r"(?:Got|Given) value: (.*)")
KINDS = {  # what a type is called, and a value of it
    "<class 'int'>": ("a whole number", " 10"),
    "<class 'float'>": ("a finite number", " 0.1"),
    "<class 'collections.abc.Mapping'>": ("names with their values", ".NAME VALUE"),
    "<class 'str'>": ("a text", " NAME"),
    "<class 'NoneType'>": ("null", " null"),
}


class Parser(ArgumentParser):
    """A parser that says of a value what was asked, why it cannot be and what to do."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the usage and the refusal, and exit with 2."""
        super().error(sentence(message), ex)


def sentence(message: str) -> str:
    r"""The refusal of a value; other messages as they are.

    >>> sentence('Parser key "epochs":\n  Expected a <class \'int\'>. Got value: abc')
    '--epochs abc: it is not a whole number. Use --epochs 10.'
    """
    key, value = KEY.search(message), VALUE.search(message)
    kinds = [KINDS[kind] for kind in KINDS if f"Expected a {kind}" in message]
    literals = "".join(re.findall(r"Expected a typing\.Literal\[(.*?)\]", message))
    words = [word for word in re.findall(r"'([^']*)'", literals) if word]
    if key is None or value is None or not (kinds or words):
        return message
    flag, given = f"--{key[1].replace('_', '-')}", value[1]
    near = get_close_matches(given, words, n=1, cutoff=0.5)
    examples = [f" {near[0]}"] if near else [example for _, example in kinds[:1]] or [f" {word}" for word in words]
    why = f"it is not {' or '.join([*(name for name, _ in kinds), *words])}"
    return str(ParameterError(f"{flag} {given}", why, " or ".join(f"{flag}{example}" for example in examples)))
