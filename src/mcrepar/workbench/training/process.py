"""The process of a training: signals that stop it, the memory that it keeps; importing it imports no torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
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


_OPTIONS = (  # of glibc's mallopt
    (-4, 0),  # M_MMAP_MAX: no block of its own from the kernel for a large tensor
    (-1, -1),  # M_TRIM_THRESHOLD: nothing back to the kernel
    (-2, 64 * 2**20),  # M_TOP_PAD: grow by so many bytes at least
)


def keep_freed_memory() -> bool:
    """Have the C library reuse freed memory; whether it does.

    The default returns a large tensor to the kernel, which must clear new pages for the next one: half of the time of a
    prediction on volumes. The price is that memory once needed stays with the process. Elsewhere than on Linux with
    glibc, and where one of its variables is set in the environment, nothing is changed.

    >>> kept = keep_freed_memory()
    """
    mallopt = None if os.name == "nt" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    taken = [mallopt(option, value) for option, value in _OPTIONS]
    return all(taken)
