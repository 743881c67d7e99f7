"""Activation checkpointing: what runs a second time, in the backward, runs on the weights of its first run.

torch.utils.checkpoint keeps a region as a function and calls it again. A draw that was swapped in for the first run is
gone by then, so the region is kept together with it. This is done for regions with use_reentrant=False, whose frame can
be found; others are refused when they run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import nn

Around = Callable[..., Any]  # around(run, *args): run(*args) in the surroundings of its first run

_RUN: ContextVar[tuple[Any, Around | None] | None] = ContextVar("the forward that runs", default=None)


@contextlib.contextmanager
def running(again: Around | None) -> Iterator[None]:
    """A forward whose regions run again by `again`; None refuses them, with a RuntimeError."""
    token = _RUN.set((_region(), again))
    try:
        yield
    finally:
        _RUN.reset(token)


def remember() -> None:
    """Let the region around this line run again on the same weights, if the region lies inside a forward."""
    frame, run = _region(), _RUN.get()
    if frame is None or run is None or frame is run[0]:
        return
    if run[1] is None:
        raise RuntimeError("the weights of this region do not outlive it")
    _surround(frame, run[1])


def remember_as(again: Around) -> None:
    """Let the region around this line run again by `again`."""
    frame = _region()
    if frame is not None:
        _surround(frame, again)


class Region(nn.Module):
    """A function that runs layers of a network, as a module, so that their weights can be swapped around it."""

    def __init__(self, net: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.net, self.run = net, run

    def forward(self, *args: Any) -> Any:
        """The function's value."""
        return self.run(*args)


class _Again(partial[Any]):
    """A region that has its surroundings."""


def _surround(frame: Any, again: Around) -> None:
    if not isinstance(frame.recompute_fn, _Again):
        frame.recompute_fn = _Again(again, frame.recompute_fn)


def _region() -> Any:
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
