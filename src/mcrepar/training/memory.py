"""Freed memory that stays with the process, for commands that allocate the same large tensors again and again."""

from __future__ import annotations

import ctypes
import os

# Parameters of glibc's mallopt, each with its value and the variable by which users set it themselves.
_OPTIONS = (
    (-4, 0, "MALLOC_MMAP_MAX_"),  # no block of its own from the kernel for a large tensor
    (-1, -1, "MALLOC_TRIM_THRESHOLD_"),  # nothing back to the kernel
    (-2, 64 * 2**20, "MALLOC_TOP_PAD_"),  # grow by so many bytes at least
)


def keep_freed_memory() -> bool:
    """Have the C library reuse freed memory; whether it does.

    The default returns a large tensor to the kernel, which must clear new pages for the next one: half of the time of a
    prediction on volumes. The price is that memory once needed stays with the process. Elsewhere than on Linux with
    glibc, and where one of its variables is set in the environment, nothing is changed.

    >>> keep_freed_memory() in (True, False)
    True
    """
    mallopt = None if os.name == "nt" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(variable in os.environ for _, _, variable in _OPTIONS):
        return False
    taken = [mallopt(option, value) for option, value, _ in _OPTIONS]
    return all(taken)
