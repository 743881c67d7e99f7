"""How a training ends before its time: a signal, or a loss that is not finite."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from mcrepar.errors import McreparError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """A signal came, and what was reached is kept.

    Args:
        number: of the signal.
        message: where it stopped, and how to go on.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class Diverged(McreparError):
    """The loss or a gradient is not finite; the state before that step is kept."""


class Caught:
    """The signal that came; 0 while there was none."""

    number = 0


@contextlib.contextmanager
def caught() -> Iterator[Caught]:
    """A context in which the first SIGINT or SIGTERM is only noted; a second one acts as it always does."""
    note = Caught()

    def handle(number: int, frame: FrameType | None) -> None:
        note.number = number
        signal.signal(number, before[number])

    before = {int(number): signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, handle)
    except ValueError:  # not the main thread, which alone hears signals
        pass
    try:
        yield note
    finally:
        with contextlib.suppress(ValueError):
            for number in SIGNALS:
                signal.signal(number, before[number])
