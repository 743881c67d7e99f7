"""Locks, and what they protect, with the other state of `nn` that the threads of a process share.

Invariants:
- The lock of a Bayesian neural network (`bnn.slots.lock`) is held while a sample of its weights is swapped in, while
  modes of its layers are set, and while it is copied or written to a folder.
- `SEEDING` is held while the default RNGs are seeded for one forward of `elbo(..., generator=...)`: there is one
  default RNG for all threads.
- `MODES` is held while layers around Bayesian ones, which have no lock, are switched to eval mode or back.
- `FREEZING` is held while the contexts in which a network is frozen are counted.
- `SEEDING` or `MODES` is taken before the lock of a network, never after it. A fork takes all locks or none,
  and gives back those that its own thread took.

Other state of the process: `prediction_passes._SWITCHED`, the layers that predictions have switched to eval mode, under
`MODES`; `select._EMPTIED`, with the hook of all optimizers that looks there, and `layer_weight._WARNED`, weak
collections without a lock: two threads at once give the same warning twice, at worst.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet, ref

import torch
from torch import nn

from mcrepar.errors import MethodError

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

T = TypeVar("T")
PATIENCE = 30.0  # seconds that a fork waits for forwards of other threads

_LOCKS: WeakSet[Lock] = WeakSet()
_FORKING = threading.local()  # its `held` are the locks of a thread that forks, while it does
_PREDICTED: ContextVar[frozenset[int]] = ContextVar("networks that this thread predicts with", default=frozenset())


class Lock:
    """A reentrant lock that a copy or a pickle of its module gets anew, and that is free in a forked process.

    `trainer` is the thread that last ran the network in training, `predictors` are the threads that have switched the
    layers around it to eval mode.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.trainer: ref[threading.Thread] | None = None
        self.predictors: list[threading.Thread] = []
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


SEEDING, MODES, FREEZING = Lock(), Lock(), Lock()


# ---- forks


def _before_fork() -> None:
    """Wait until no other thread is inside a forward, in which the network holds a sample that the child would keep.

    Locks are taken all or none, so that a thread that holds one and waits for another is never in the way.
    """
    locks, deadline = _all_locks(), time.monotonic() + PATIENCE
    first: Lock | None = None
    while True:
        held: list[Lock] = [] if first is None else [first]
        busy = None
        for lock in locks:
            if lock is first:
                continue
            if not lock.lock.acquire(blocking=False):
                busy = lock
                break
            held.append(lock)
        if busy is None:
            _FORKING.held = held
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


def _after_fork() -> None:
    for lock in vars(_FORKING).pop("held", ()):  # none where the fork did not wait any longer
        lock.lock.release()


def _in_child() -> None:
    """Renew the locks of threads that the child does not have."""
    _after_fork()
    for lock in _all_locks():
        lock.predictors = [thread for thread in lock.predictors if thread is threading.current_thread()]
        if lock.lock.acquire(blocking=False):
            lock.lock.release()
        else:
            lock.lock = threading.RLock()


if sys.platform != "win32":  # a fork may come at any time after a lock was made, so the handlers are there before one
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


# ---- modes


@contextlib.contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """A context in which a variable has this value, for this thread."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def predicting(networks: Iterable[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """A context in which this thread runs these Bayesian neural networks in eval mode, and no other thread does."""
    return during(_PREDICTED, _PREDICTED.get() | {id(network) for network in networks})


def measuring() -> contextlib.AbstractContextManager[None]:
    """A context in which modes are as they are set."""
    return during(_PREDICTED, frozenset())


def own_mode(bnn: BayesianModule) -> contextlib.AbstractContextManager[None]:
    """The layers of a Bayesian neural network in the mode in which this thread runs it, while its lock is held."""
    return _in_eval_mode(bnn) if id(bnn) in _PREDICTED.get() else _AS_IT_IS


_AS_IT_IS = contextlib.nullcontext()


@contextlib.contextmanager
def _in_eval_mode(bnn: BayesianModule) -> Iterator[None]:
    layers = [vars(layer) for layer in (bnn, *bnn.net.modules()) if layer.training]  # a module's own way is slow
    for layer in layers:
        layer["training"] = False
    try:
        yield
    finally:
        for layer in layers:
            layer["training"] = True


def note_training(network: nn.Module, lock: Lock) -> None:
    """Remember this thread as the one that trains a network, if it runs it in training mode and with gradients."""
    if not (network.training and torch.is_grad_enabled()):
        return
    if any(thread is not threading.current_thread() for thread in lock.predictors):
        raise MethodError(
            "training a network while another thread predicts with it",
            "the layers around its Bayesian ones are in eval mode until that prediction ends",
            "copy.deepcopy(net) for the predictions, or train when they are done",
        )
    if lock.trainer is None and not torch.compiler.is_compiling():
        _warn_of_halves(network)
    lock.trainer = ref(threading.current_thread())


def _warn_of_halves(network: nn.Module) -> None:
    """Say before a network is trained that steps of an optimizer vanish in the rounding of its scales."""
    scales = [p for name, p in network.named_parameters() if name.endswith("log_scale") and p.requires_grad]
    half = next((p.dtype for p in scales if torch.finfo(p.dtype).bits < 32), None)
    if half is not None:
        warnings.warn(
            f"the scales of the posterior are learned as {half}, in which log_scale = -5 has no neighbour nearer than "
            f"{4 * torch.finfo(half).eps:.1g}: smaller steps of an optimizer leave it where it is; keep the parameters "
            "in float32 and train under torch.autocast",
            stacklevel=2,
        )
