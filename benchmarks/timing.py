"""How benchmarks are timed, and on what."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # the experiments measure the machine in the same way

from experiments.machine import QUIET, cpu_name, seconds_of_others

Timings = dict[str, dict[str, Any]]


def take_turns(cases: dict[str, Callable[[], None]], rounds: int, warm_up: int = 1) -> Timings:
    """Seconds of every case in each of `rounds` rounds, in which all take their turn."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(warm_up + rounds):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return {
        name: {"median": statistics.median(s), "fastest": min(s), "slowest": max(s), "rounds": rounds, "each": s}
        for name, s in seconds.items()
    }


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores other work keeps busy while this process sleeps; the load average where that is not told."""
    start, before = time.perf_counter(), seconds_of_others()
    time.sleep(seconds)
    after, passed = seconds_of_others(), time.perf_counter() - start
    return os.getloadavg()[0] if before is None or after is None else max(0.0, (after - before) / passed)


def quiet(seconds: float, tries: int = 10) -> float:
    """The busy cores once they are few; what ended just before is still being cleared away, which is waited for."""
    for _ in range(tries):
        if (load := busy_cores(seconds)) <= QUIET:
            break
    return load


def machine() -> dict[str, object]:
    """What the numbers were taken on."""
    return {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load at start": round(busy_cores(), 2),
    }
