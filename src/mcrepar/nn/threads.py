"""What threads and forked processes share: locks that outlive a fork, and the mode in which a thread runs a network."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from weakref import WeakSet, ref

import torch
from torch import nn

PATIENCE = 30.0  # seconds that a fork waits for forwards of other threads

_LOCKS: WeakSet[Lock] = WeakSet()
_HELD: list[Lock] = []  # by the thread that forks, while it does
_PREDICTED: ContextVar[frozenset[int]] = ContextVar("networks that this thread predicts with", default=frozenset())


class Lock:
    """A reentrant lock that a copy or a pickle of its module gets anew, and that is free in a forked process.

    `trainer` is the thread that last ran the network in training.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.trainer: ref[threading.Thread] | None = None
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()

    @property
    def trained_elsewhere(self) -> bool:
        """Whether the thread that trains is another one, and alive."""
        trainer = None if self.trainer is None else self.trainer()
        return trainer is not None and trainer.is_alive() and trainer is not threading.current_thread()


@contextlib.contextmanager
def locked(locks: Iterable[Lock]) -> Iterator[None]:
    """A context that holds all of these."""
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


# ---- forks


def _before_fork() -> None:
    """Wait until no other thread is inside a forward, in which the network holds a draw that the child would keep.

    Locks are taken all or none, so that a thread that holds one and waits for another is never in the way.
    """
    locks, deadline = _all_locks(), time.monotonic() + PATIENCE
    first: Lock | None = None
    while True:
        held: list[Lock] = [] if first is None else [first]
        busy = next((lock for lock in locks if lock is not first and not _taken(lock, held)), None)
        if busy is None:
            _HELD.extend(held)
            return
        for lock in held:
            lock.lock.release()
        if not busy.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return  # the child renews what it cannot take
        first = busy


def _all_locks() -> list[Lock]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has made one meanwhile
            return list(_LOCKS)


def _taken(lock: Lock, held: list[Lock]) -> bool:
    if not lock.lock.acquire(blocking=False):
        return False
    held.append(lock)
    return True


def _after_fork() -> None:
    while _HELD:
        _HELD.pop().lock.release()


def _in_child() -> None:
    """Renew the locks of threads that the child does not have."""
    _after_fork()
    for lock in _all_locks():
        if lock.lock.acquire(blocking=False):
            lock.lock.release()
        else:
            lock.lock = threading.RLock()


if sys.platform != "win32":  # a fork may come at any time after a lock was made, so the handlers are there before one
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


# ---- modes


@contextlib.contextmanager
def predicting(networks: Iterable[nn.Module]) -> Iterator[None]:
    """A context in which this thread runs these Bayesian networks in eval mode, and no other thread does."""
    token = _PREDICTED.set(_PREDICTED.get() | {id(network) for network in networks})
    try:
        yield
    finally:
        _PREDICTED.reset(token)


def note_training(network: nn.Module, lock: Lock) -> None:
    """Remember this thread as the one that trains a network, if it runs it in training mode and with gradients."""
    if network.training and torch.is_grad_enabled():
        lock.trainer = ref(threading.current_thread())


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """A context in which modes are as they are set."""
    token = _PREDICTED.set(frozenset())
    try:
        yield
    finally:
        _PREDICTED.reset(token)


@contextlib.contextmanager
def own_mode(network: nn.Module) -> Iterator[None]:
    """The layers of a Bayesian network in the mode in which this thread runs it, for as long as its lock is held."""
    layers = [m for m in network.modules() if m.training] if id(network) in _PREDICTED.get() else []
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
