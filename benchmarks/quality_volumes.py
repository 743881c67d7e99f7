"""Networks for volumes beside their twins, from runs that `mcrepar train --twin` and `mcrepar evaluate` have left.

    python benchmarks/quality_volumes.py RUN [RUN ...] [--results FOLDER]

Every run is one seed, and becomes one JSON file in benchmarks/results/quality: its options, the scores of its test part
and those of its twin.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from quality import RESULTS

SCORES = ("accuracy", "auc", "nll", "ece", "accuracy_at_50_coverage", "mutual_information")
OPTIONS = (
    "data_options",
    "structure",
    "posterior",
    "prior",
    "prior_options",
    "initial_std",
    "epochs",
    "beta",
    "kl_schedule",
)


def read(folder: Path) -> dict[str, Any]:
    """One run."""
    found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    options = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    method = "rank1" if options["structure"] == "rank1" else f"{options['posterior']} {options['prior']}"
    scores = {who: {name: found[part][name] for name in SCORES} for who, part in (("ours", "in"), ("twin", "twin"))}
    kept = {name: options[name] for name in OPTIONS}
    data = Path(options["data_options"].get("file", found["data"]["name"])).stem
    return {"task": f"volumes-{data}", "method": method, "seed": options["seed"], "options": kept, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    for run in map(read, given.runs):
        name = f"{run['task']}-{run['method'].replace(' ', '_')}-{run['seed']}.json"
        (given.results / name).write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
