"""What numbers were taken on, without its name or paths; seconds, and how busy other work kept the machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
QUIET = 0.25  # cores: where other work kept more of them busy, seconds are not judged
_STAT = Path("/proc/stat")


def cpu_name() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine() -> Row:
    """Processor, device, threads, system, and the versions of what computes.

    >>> sorted(machine())
    ['architecture', 'cores', 'cpu', 'device', 'numpy', 'python', 'system', 'threads', 'torch']
    """
    import numpy
    import torch

    return {
        "cpu": cpu_name(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def seconds_of_others() -> float | None:
    """CPU seconds of other processes since the machine started; None where the system does not report them."""
    if not _STAT.exists():
        return None
    ticks = [int(x) for x in _STAT.read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return float((sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - time.process_time())


def wait() -> None:
    """Wait until a GPU has done what it was asked to do, so that it can be timed."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


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


def busy_text(rows: Sequence[Row]) -> str:
    """A sentence about the other work, for the page."""
    known = [row["busy"] for row in rows if row.get("busy") is not None]
    if not known:
        return "How busy other work kept the machine is not known."
    text = f"While steps were timed, other work kept at most {max(known):.2f} cores busy"
    parts = busy_parts(rows)
    return f"{text}: more than {QUIET:g} during {', '.join(parts)}." if parts else f"{text} (mean over a part)."
