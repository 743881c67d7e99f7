"""Silence where the bias of taylor is what is looked at."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mcrepar.errors import TaylorWarning

_FILTERS = threading.Lock()  # the filters of warnings belong to the whole process


@contextmanager
def without_taylor_warning() -> Iterator[None]:
    """Say nothing of the bias of taylor meanwhile; safe in threads that all use this."""
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore", TaylorWarning)
        yield
