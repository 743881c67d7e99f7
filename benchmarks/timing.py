"""How benchmarks are timed, and on what."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

BUSY = 0.25  # cores kept busy by other work above which numbers are only provisional
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


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores other work keeps busy while this process sleeps; the load average where that is not told."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return os.getloadavg()[0]

    def idle_and_all() -> tuple[int, int]:
        ticks = [int(x) for x in stat.read_text().splitlines()[0].split()[1:]]
        return ticks[3] + ticks[4], sum(ticks[:8])

    before = idle_and_all()
    time.sleep(seconds)
    idle, everything = (b - a for a, b in zip(before, idle_and_all(), strict=True))
    return (1 - idle / everything) * (os.cpu_count() or 1) if everything else 0.0


def quiet(seconds: float, tries: int = 10) -> float:
    """The busy cores once they are few; what ended just before is still being cleared away, which is waited for."""
    for _ in range(tries):
        if (load := busy_cores(seconds)) <= BUSY:
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
