"""What numbers were taken on, without its name or paths, and how busy other work kept it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

QUIET = 0.25  # cores: where other work kept more of them busy, seconds tell too little
_STAT = Path("/proc/stat")


def cpu_name() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine() -> dict[str, Any]:
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
    """CPU seconds since the start of the machine that were not this process's; None where the system does not tell."""
    if not _STAT.exists():
        return None
    ticks = [int(x) for x in _STAT.read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return float((sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - time.process_time())
