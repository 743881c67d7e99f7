"""The table of every run behind the posteriors, benchmarks/results/quality_runs.csv; readme.py brings it up to date.

A run with a JSON file in results/quality has a row that is written from it; the files in its folder `withdrawn` hold
their status and the reason. All other rows, of runs that left no file here, are written by hand: they name their source
and are kept as they stand. An empty cell is a number that nobody kept.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TABLE = RESULTS / "quality_runs.csv"
COLUMNS = ("task", "method", "seed", "status", "budget", "validation_nll", "reason", "source")
STATUSES = ("finished", "stopped", "diverged", "replaced", "withdrawn")


def row(run: dict[str, Any], source: str) -> dict[str, str]:
    """The row of a run that left a file: NLL of the validation part in nats an example, where it had one."""
    if "splits" in run:
        seed, budget = f"splits 0 to {len(run['splits']['test']) - 1}", f"{run['steps']} steps"
        nll = -run["mean"]["validation"]["log_likelihood"] if "validation" in run["mean"] else None
    else:
        seed, budget = str(run["seed"]), f"{run.get('epochs') or run['options']['epochs']} epochs"
        nll = run["validation"]["nll"] if "validation" in run else None
    known = {"validation_nll": "" if nll is None else f"{nll:.4f}", "reason": run.get("reason", ""), "source": source}
    status = run.get("status", "finished")
    return {"task": run["task"], "method": run["method"], "seed": seed, "status": status, "budget": budget, **known}


def table(path: Path = TABLE) -> str:
    """The text of the table: rows of files, then those that stand there without one."""
    files = sorted((RESULTS / "quality").rglob("*.json"))
    rows = [row(json.loads(file.read_text()), file.relative_to(RESULTS).as_posix()) for file in files]
    with path.open(newline="") as file:
        rows += [old for old in csv.DictReader(file) if not old["source"].startswith("quality/")]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(path: Path = TABLE) -> None:
    """Bring the file up to date."""
    path.write_text(table(path))
