"""What a prediction by moments costs, against one deterministic pass and against 100 draws.

python benchmarks/predict.py [--out FOLDER]

ResNet-20 (batch 64) and PreActResNet-18 (batch 16) on images of 32 x 32, one thread. Seconds are CPU time of this
process, the fastest of several rounds in which all cases take turns: other work on the machine disturbs them less than
wall-clock time. Memory is the peak of the process above what it held before the pass.
"""

from __future__ import annotations

import argparse
import json
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

NETWORKS = {"resnet20": 64, "preact_resnet18": 16}
STRUCTURES = {"mean-field": {"posterior": "normal"}, "rank-1": {"structure": "rank1"}}
ROUNDS, DRAWS = 4, 100
GOALS = {"mean-field": 6.0, "rank-1": 4.0}


def make(name: str, structure: str | None) -> nn.Module:
    torch.manual_seed(0)
    net = model(name).eval()
    return net if structure is None else mcrepar.bayesian(net, **STRUCTURES[structure]).eval()


def fastest(cases: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """CPU seconds of every case, the least of all rounds."""
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, run in cases.items():
            start = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - start)
    return least


def peak(run: Callable[[], Any]) -> int:
    """The most bytes that the process holds while a case runs, above what it held before (Linux)."""
    run()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of before
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(name: str) -> dict[str, Any]:
    """Seconds and memory of one network."""
    x, plain = torch.randn(NETWORKS[name], 3, 32, 32), make(name, None)
    bnns = {structure: make(name, structure) for structure in STRUCTURES}
    with torch.no_grad():
        cases: dict[str, Callable[[], Any]] = {"deterministic": lambda: plain(x)}
        for structure, bnn in reversed(bnns.items()):
            cases[structure] = lambda bnn=bnn: mcrepar.predict(bnn, x, "moments", likelihood="categorical")
        memory = {case: peak(run) for case, run in cases.items()}
        seconds = fastest(cases)
        start = time.process_time()
        mcrepar.predict(bnns["mean-field"], x, 4, likelihood="categorical")
        draws = (time.process_time() - start) * DRAWS / 4
    found: dict[str, Any] = {"network": name, "batch": len(x), "seconds": seconds, "100 draws (25 times four)": draws}
    for structure in STRUCTURES:
        found[structure] = {
            "over deterministic": seconds[structure] / seconds["deterministic"],
            "goal": GOALS[structure],
            "100 draws over it": draws / seconds[structure],
            "memory over deterministic": memory[structure] / max(memory["deterministic"], 1),
        }
    return {**found, "peak bytes": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    content = {"machine": machine(), "networks": [measure(name) for name in NETWORKS]}
    print(json.dumps(content, indent=1))
    (options.out / "predict.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
