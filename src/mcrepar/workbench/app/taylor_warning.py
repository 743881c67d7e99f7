"""Silence where what a warning says is what is looked at, such as the bias of taylor."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from mcrepar.errors import TaylorWarning

_FILTERS = threading.Lock()  # the filters of warnings belong to the whole process


@contextmanager
def without_warning(kind: type[Warning]) -> Iterator[None]:
    """Say nothing of this kind meanwhile; safe in threads that all use this."""
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore", kind)
        yield


def without_taylor_warning() -> AbstractContextManager[None]:
    """Say nothing of the bias of taylor meanwhile."""
    return without_warning(TaylorWarning)
