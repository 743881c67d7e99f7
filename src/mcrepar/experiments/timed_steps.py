"""Seconds of training steps: all cases take their turns, so that a busy moment of the machine hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import randint, randn

from mcrepar.experiments.training_step import TrainingStep

DATA_SIZE = 50_000


def median_seconds(cases: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of every case over the rounds, after one round that does not count.

    Args:
        cases: what to run, by name.
        rounds: how often.

    >>> sorted(median_seconds({"a": list, "b": dict}, rounds=3))
    ['a', 'b']
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def accumulate(step: TrainingStep, batch: int, draws: int) -> None:
    """One step by gradient accumulation: a forward, a KL of one draw and a backward for each iteration.

    The gradient is that of the mean over iterations of likelihood and KL both; only one graph is alive at a time.

    Args:
        step: the network and its optimizer.
        batch: of the data.
        draws: M.
    """
    x, y = randn(batch, *step.shape), randint(step.classes, (batch,))
    for _ in range(draws):
        loss = F.cross_entropy(step.bnn(x), y) + step.looped(1) / DATA_SIZE
        (loss / draws).backward()  # type: ignore[no-untyped-call]
    step.optimizer.step()
    step.optimizer.zero_grad()
