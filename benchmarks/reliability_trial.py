"""What one promise of docs/reliability.md was put to: how, how often, and what broke it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """A promise and the tries to break it.

    Args:
        promise: one sentence, as docs/reliability.md prints it.
        how: how a try is made, in a few words.
        tries: how many were made.
        failures: one sentence per try that broke the promise.
    """

    promise: str
    how: str
    tries: int
    failures: list[str]


Part = Callable[[random.Random, int], Trial]  # from a seeded generator and a number of tries
