"""Networks for volumes beside their twins, from runs that `mcrepar train --twin` and `mcrepar evaluate` have left.

    python benchmarks/quality_volumes.py RUN [RUN ...] [--out FOLDER]     other runs in the file stay

Every run is one seed: its data, what is random, the scores of its test part and those of its twin.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

SCORES = ("accuracy", "auc", "nll", "ece", "accuracy_at_50_coverage", "mutual_information")


def read(folder: Path) -> dict[str, Any]:
    """One run."""
    found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    options = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    kept = ("structure", "posterior", "prior", "prior_options", "initial_std", "epochs", "beta", "kl_schedule", "seed")
    scores = {who: {name: found[part][name] for name in SCORES} for who, part in (("ours", "in"), ("twin", "twin"))}
    return {"data": found["data"]["name"], **{name: options[name] for name in kept}, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    file = given.out / "volumes.json"
    runs = json.loads(file.read_text())["runs"] if file.exists() else []
    known = {(run["data"], run["structure"], run["prior"], run["seed"]): run for run in runs}
    for run in map(read, given.runs):
        known[run["data"], run["structure"], run["prior"], run["seed"]] = run
    file.write_text(json.dumps({"runs": list(known.values())}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
