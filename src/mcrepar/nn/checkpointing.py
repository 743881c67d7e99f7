"""Activation checkpointing, which runs parts of a network a second time, in the backward, when the sample is gone.

Such a region is kept together with its sample. This is done for use_reentrant=False, whose frame can be found; others
are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

Around = Callable[..., Any]  # around(run, *args): run(*args) in the surroundings of its first run

_RUN: ContextVar[tuple[Any, Around | None] | None] = ContextVar("the forward that runs", default=None)


class _Again(partial[Any]):
    """A region that has its surroundings."""


class running:  # a context, without the cost of a generator
    """A forward whose regions run again by `again`; None refuses them, with a RuntimeError."""

    def __init__(self, again: Around | None) -> None:
        self.again = again

    def __enter__(self) -> None:
        self.token = _RUN.set((_frame(), self.again))

    def __exit__(self, *_: object) -> None:
        _RUN.reset(self.token)


def remember() -> None:
    """Let the region around this line run again on the same weights, if the region lies inside a forward."""
    frame, now = _frame(), _RUN.get()
    if frame is None or now is None or frame is now[0]:
        return
    if now[1] is None:
        raise RuntimeError("the weights of this region do not outlive it")
    _surround(frame, now[1])


def remember_as(again: Around) -> None:
    """Let the region around this line run again by `again`."""
    frame = _frame()
    if frame is not None:
        _surround(frame, again)


def _surround(frame: Any, again: Around) -> None:
    if not isinstance(frame.recompute_fn, _Again):
        frame.recompute_fn = _Again(again, frame.recompute_fn)


def _frame() -> Any:
    """The frame of the checkpointed region that runs for the first time around this line; None outside of one.

    torch has no public way to ask: where the hooks of another torch look different, there is no region, and what runs
    again is refused.
    """
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    top = hooks(True) if hooks is not None and torch.is_grad_enabled() else None
    if top is None:
        return None
    cells = getattr(top[0], "__closure__", None) or ()
    return next((c.cell_contents for c in cells if type(c.cell_contents).__name__ == "_CheckpointFrame"), None)
