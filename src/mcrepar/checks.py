"""Checks of a tensor's numbers: at once on the CPU, on other devices one flag that is read later.

Python can only read a number of a device by waiting for it. So on a device a step notes what is wrong in a flag there,
gradients are set to zero under it, and every `EVERY` steps the flag is read and reported.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mcrepar.errors import McreparError, ParameterError

EVERY = 100  # steps between two readings of a device's flag

_AT_ONCE: ContextVar[bool] = ContextVar("checks wait for the device", default=False)
_STEP: ContextVar[Record | None] = ContextVar("the record of the step that runs", default=None)
_RECORDS: WeakKeyDictionary[nn.Module, Record] = WeakKeyDictionary()


class Record:
    """What was found wrong with a network on its device since the last reading.

    Attributes:
        wrong: whether anything was, a tensor of the device; None before the first check.
        zeroed: the ids of parameters whose gradients are set to zero where they are computed.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.notes: list[tuple[str, Tensor]] = []
        self.flags: dict[tuple[str, ...], Tensor] = {}
        self.wrong: Tensor | None = None
        self.zeroed: set[int] = set()

    def close(self, owner: nn.Module) -> None:
        """Add the notes of a step to the flags; read them where it is time."""
        if not self.notes:
            return
        names, found = zip(*self.notes, strict=True)
        self.notes = []
        now = torch.stack(found)
        self.flags[names] = self.flags[names].logical_or_(now) if names in self.flags else now
        self.wrong = torch.cat(list(self.flags.values())).any() if len(self.flags) > 1 else self.flags[names].any()
        self.steps += 1
        if self.steps % EVERY == 0:
            self.read(owner)

    def read(self, owner: nn.Module) -> None:
        """Wait for the device, and raise what the flags say."""
        steps, flags = self.steps, self.flags
        self.steps, self.flags, self.wrong = 0, {}, None
        found = [name for names, flag in flags.items() for name, one in zip(names, flag.tolist(), strict=True) if one]
        if found:
            broken = next((n for n, p in owner.named_parameters() if not bool(p.isfinite().all())), None)
            why = f"{found[0]} in one of the last {steps} steps, whose gradients were set to zero from then on"
            here = f"; {broken} is not finite now" if broken else "; all parameters are finite"
            instead = "mcrepar.checks.at_once() around a step to be told of it there"
            raise ParameterError("a step on a device", why + here, instead)


def refuse(
    wrong: Callable[[], Tensor],
    error: Callable[[], McreparError],
    what: str,
    number: Callable[[], Tensor] | None = None,
) -> None:
    """Raise an error where something is wrong; in a step on a device note it, to be reported later.

    Args:
        wrong: makes a bool tensor of no dimension.
        error: makes the error.
        what: all that a later report says of it.
        number: makes a number that is finite only where nothing is wrong, and cheaper to make.
    """
    if torch.compiler.is_compiling():
        return
    record = _STEP.get()
    if record is None or _AT_ONCE.get():
        if bool(wrong()):
            raise error()
        return
    found = wrong() if number is None else number()
    if found.device.type != "cpu":
        record.notes.append((what, found if number is None else wrong()))
    elif (bool(found) if number is None else not math.isfinite(found)) and bool(wrong()):
        raise error()


def waits(device: torch.device) -> bool:
    """Whether a number of this device may be read now: on the CPU, outside of a step, and inside `at_once`."""
    return device.type == "cpu" or torch.compiler.is_compiling() or _STEP.get() is None or _AT_ONCE.get()


@contextlib.contextmanager
def step(owner: nn.Module) -> Iterator[Record]:
    """A context in which checks on a device are noted for a network; inside another one it is that one's."""
    if torch.compiler.is_compiling():  # a graph has no contexts
        yield Record()
        return
    outer = _STEP.get()
    if outer is not None:
        yield outer
        return
    record = _RECORDS.setdefault(owner, Record())
    record.zeroed.clear()
    record.notes.clear()
    token = _STEP.set(record)
    try:
        yield record
    finally:
        _STEP.reset(token)
    record.close(owner)


def skip_gradients(loss: Tensor, record: Record, parameters: Iterable[nn.Parameter]) -> None:
    """Let the backward of `loss` end with gradients of zero where the record's flag is set, without waiting for it."""
    wrong = record.wrong
    if not loss.requires_grad:
        return
    assert wrong is not None
    owned = list(parameters)

    def clear() -> None:
        rest = [p.grad for p in owned if p.grad is not None and id(p) not in record.zeroed]
        for dtype in {g.dtype for g in rest}:
            grads = [g for g in rest if g.dtype == dtype]
            flat = torch.cat([g.reshape(-1) for g in grads]).masked_fill_(wrong, 0)
            parts = torch.split(flat, [g.numel() for g in grads])
            torch._foreach_copy_(grads, [part.view(g.shape) for part, g in zip(parts, grads, strict=True)])

    def at_the_end(grad: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(clear)

    loss.register_hook(at_the_end)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """A context in which every check waits for its device and raises there, to find a mistake.

    >>> with at_once():
    ...     refuse(lambda: torch.tensor(False), McreparError, "nothing")
    """
    token = _AT_ONCE.set(True)
    try:
        yield
    finally:
        _AT_ONCE.reset(token)


def read(owner: nn.Module) -> None:
    """Wait for the device of a network and raise what was found wrong in its steps since the last reading.

    Args:
        owner: what was given to `elbo`.

    Raises:
        ParameterError: names the check that failed, and a parameter that is not finite.
    """
    if owner in _RECORDS:
        _RECORDS[owner].read(owner)
