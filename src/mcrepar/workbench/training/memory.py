"""Freed memory that stays with the process, for commands that allocate the same large tensors again and again."""

from __future__ import annotations

import ctypes
import os

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
