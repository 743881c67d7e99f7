"""What a prediction by moments costs, against one deterministic pass and against 100 draws.

python benchmarks/predict.py [--out FOLDER]

ResNet-20 (batch 64) and PreActResNet-18 (batch 16) on images of 32 x 32 after calibrate_moments, one thread; 100 draws
are 25 times a prediction with four. Seconds are CPU time of this process, which other work on the machine disturbs less
than wall-clock time; all cases take turns in 30 rounds, and a ratio is the median of the ratios within rounds: the
clock of a processor changes from round to round. Memory is the peak of a fresh process above what it held before the
pass (Linux), where every large block that is freed goes back at once: gaps in the heap would be counted otherwise,
which differ from run to run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import machine
from torch import nn

import mcrepar
from mcrepar.models import model
from mcrepar.nn.moments.moment_pass import moment_pass

NETWORKS = {"resnet20": 64, "preact_resnet18": 16}
STRUCTURES = {"mean-field": {"posterior": "normal"}, "rank-1": {"structure": "rank1"}}
ROUNDS, DRAWS = 30, 100
FOUR = "{}, four draws"
GOALS = {"mean-field": 6.0, "rank-1": 4.0}


def make(name: str, structure: str | None) -> nn.Module:
    torch.manual_seed(0)
    net = model(name).eval()
    if structure is None:
        return net
    bnn = mcrepar.bayesian(net, **STRUCTURES[structure]).eval()
    return mcrepar.calibrate_moments(bnn, torch.randn(8, 3, 32, 32))  # factors are a part of the cost


def take_turns(cases: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """CPU seconds of every case in every round; a first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(1 + ROUNDS):
        for name, run in cases.items():
            start = time.process_time()
            run()
            seconds[name] += [time.process_time() - start] if turn else []
    return seconds


def keep_memory() -> None:
    """Freed memory stays with the process: to fetch it again would count against whichever pass comes next."""
    library = ctypes.CDLL(None)
    library.mallopt(-4, 0)  # M_MMAP_MAX: large tensors come from the heap too
    library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: which is not given back


def peak(name: str, structure: str | None) -> int:
    """The most bytes that a fresh process holds during one pass, above what it held before."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read by the C library when the new process starts
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return int(pool.apply(_peak, (name, structure)))


def _peak(name: str, structure: str | None) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    net, x = make(name, structure), torch.randn(NETWORKS[name], 3, 32, 32)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        run: Callable[..., Any] = net if structure is None else stack.enter_context(moment_pass(net))
        run(x[:1])
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
        before = _held("VmRSS")
        run(x)
    return _held("VmHWM") - before


def _held(what: str) -> int:
    """Bytes of this process by the kernel's name for them: now, or at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def measure(name: str) -> dict[str, Any]:
    """Seconds and memory of one network."""
    x, plain = torch.randn(NETWORKS[name], 3, 32, 32), make(name, None)
    bnns = {structure: make(name, structure) for structure in STRUCTURES}
    with torch.no_grad():
        cases: dict[str, Callable[[], Any]] = {"deterministic": lambda: plain(x)}
        for structure, bnn in reversed(bnns.items()):
            cases[structure] = lambda bnn=bnn: mcrepar.predict(bnn, x, "moments", likelihood="categorical")
            cases[FOUR.format(structure)] = lambda bnn=bnn: mcrepar.predict(bnn, x, 4, likelihood="categorical")
        each = take_turns(cases)
    seconds = {case: statistics.median(rounds) for case, rounds in each.items()}
    memory = {case: peak(name, None if case == "deterministic" else case) for case in ("deterministic", *STRUCTURES)}
    found: dict[str, Any] = {"network": name, "batch": len(x), "seconds": seconds}
    for structure in STRUCTURES:
        ratios = [mine / plain for mine, plain in zip(each[structure], each["deterministic"], strict=True)]
        draws = zip(each[FOUR.format(structure)], each[structure], strict=True)
        found[structure] = {
            "over deterministic": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios, n=4)[::2],
            "fastest over fastest": min(each[structure]) / min(each["deterministic"]),
            "goal": GOALS[structure],
            "100 draws over it": statistics.median(DRAWS / 4 * four / mine for four, mine in draws),
            "memory over deterministic": memory[structure] / max(memory["deterministic"], 1),
        }
    return {**found, "peak bytes": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep_memory()
    content = {"machine": machine(), "networks": [measure(name) for name in NETWORKS]}
    print(json.dumps(content, indent=1))
    (options.out / "predict.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
