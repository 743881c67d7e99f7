"""Seconds of training steps, and how busy other work kept the machine meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from experiments.experiment import Row
from experiments.machine import QUIET, seconds_of_others
from experiments.training_step import TrainingStep, wait


def timed(cases: Mapping[str, Callable[[], object]], rounds: int) -> Row:
    """`seconds`, the median of every case over the rounds, and `busy`, the cores that other work took (None: unknown).

    All cases take their turns, so that a busy moment hits all alike; a first round does not count.

    Args:
        cases: what to run, by name.
        rounds: how often.

    >>> sorted(timed({"a": list, "b": dict}, rounds=3)["seconds"])
    ['a', 'b']
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    begun, before = time.perf_counter(), seconds_of_others()
    for turn in range(rounds + 1):
        for name, case in cases.items():
            wait()
            start = time.perf_counter()
            case()
            wait()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    after, passed = seconds_of_others(), time.perf_counter() - begun
    busy = None if before is None or after is None else round(max(0.0, (after - before) / passed), 3)
    return {"seconds": {name: statistics.median(times) for name, times in seconds.items()}, "busy": busy}


def busy_parts(rows: Sequence[Row]) -> list[str]:
    """The parts during which other work kept more than a quarter of a core busy."""
    return [row["key"] for row in rows if (row.get("busy") or 0.0) > QUIET]


def told_busy(rows: Sequence[Row]) -> str:
    """A sentence about the other work, for the page."""
    known = [row["busy"] for row in rows if row.get("busy") is not None]
    if not known:
        return "How busy other work kept the machine is not known."
    text = f"While steps were timed, other work kept at most {max(known):.2f} cores busy"
    parts = busy_parts(rows)
    return f"{text}: more than {QUIET:g} during {', '.join(parts)}." if parts else f"{text} (mean over a part)."


def accumulate(step: TrainingStep, batch: int, draws: int) -> None:
    """One step by gradient accumulation: a forward, a KL of one draw and a backward for each iteration.

    The gradient is that of the mean over iterations of likelihood and KL both; only one graph is alive at a time.

    Args:
        step: the network and its optimizer.
        batch: of the data.
        draws: M.
    """
    x, y = step.data(batch)
    for _ in range(draws):
        (step.loss(x, y, lambda: step.looped(1)) / draws).backward()  # type: ignore[no-untyped-call]
    step.optimizer.step()
    step.optimizer.zero_grad()
