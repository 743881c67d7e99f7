"""Tries to break what docs/reliability.md promises, and writes there how often it was tried and how often it broke.

python benchmarks/reliability.py [--quick] [--only NAME ...] writes benchmarks/results/reliability.json and the table;
parts that are not run keep the numbers of their last run, and --quick writes nothing without --out. A file of parts is
a row of FILES.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from readme import rewrite
from reliability_trial import Part
from timing import machine

RESULTS = Path(__file__).parent / "results"
FILES = ("reliability_runs", "reliability_files", "reliability_app")  # modules with PARTS
TRIES = {
    "kills": 60, "damaged checkpoints": 30, "damaged config.yaml": 100, "damaged run.json": 30, "full disks": 30,
    "links": 30,
}  # fmt: skip
USUAL, QUICK = 300, 2  # tries of any other part, and of all parts with --quick


def parts() -> dict[str, Part]:
    """All parts, in the order of the table."""
    return {name: part for file in FILES for name, part in importlib.import_module(file).PARTS.items()}


def run(name: str, part: Part, seed: int, quick: bool) -> dict[str, Any]:
    """The trial of one part, whose tries depend on the seed and its name alone."""
    start = time.perf_counter()
    trial = part(random.Random(f"{seed}/{name}"), QUICK if quick else TRIES.get(name, USUAL))
    seconds = round(time.perf_counter() - start, 1)
    print(f"{name}: {trial.tries} tries, {len(trial.failures)} failures, {seconds} s", flush=True)
    for failure in trial.failures[:5]:
        print(f"  {failure}", flush=True)
    return {**asdict(trial), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few tries of each part")
    parser.add_argument("--only", nargs="+", choices=list(parts()), help="these parts alone")
    parser.add_argument("--seed", type=int, default=0, help="of all tries")
    parser.add_argument("--out", type=Path, default=None, help="another folder for reliability.json")
    given = parser.parse_args()
    torch.set_num_threads(1)  # before anything computes: forked processes have no threads of torch
    folder = given.out or RESULTS
    path, all_parts = folder / "reliability.json", parts()
    before = json.loads(path.read_text())["parts"] if path.exists() and given.only else {}
    done = {name: run(name, all_parts[name], given.seed, given.quick) for name in given.only or all_parts}
    if given.quick and given.out is None:  # a few tries do not replace measured numbers
        return
    found = {name: done.get(name) or before[name] for name in all_parts if name in done or name in before}
    whole = {"quick": given.quick, "seed": given.seed, "machine": machine(), "parts": found}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    if folder == RESULTS:
        rewrite("reliability")


if __name__ == "__main__":
    main()
