"""Writes the numbers of benchmarks/results/kl.json into README.md, between two comments of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START, END = "<!-- numbers: written by benchmarks/readme.py -->", "<!-- end of numbers -->"

BUSY = 0.25  # cores kept busy by other work above which numbers are only provisional


def block(found: dict[str, Any]) -> str:
    """The table of what was reached against its targets, in Markdown."""
    machine = found["machine"]
    rows = [
        f"| {row['what']} | {row['against']} | **{row['ratio']:.2f}x** | {_goal(row)} |" for row in found["targets"]
    ]
    head = (
        f"Measured on {found['weights']:,} float32 weights in the {found['tensors']} tensors of ResNet-18, "
        f"radial x normal, value and backward; {machine['cpu']}, {machine['threads']} threads, "
        f"torch {machine['torch'].partition('+')[0]}. Ratios within one run (`make bench`):"
    )
    if machine["load at start"] > BUSY:
        head = f"**Provisional: other work kept {machine['load at start']} cores busy.** {head}"
    return "\n".join([head, "", "| cost of | against | reached | target |", "|---|---|---|---|", *rows])


def _goal(row: dict[str, Any]) -> str:
    goal = f"{row['target']:.1f}x" + (f", stretch {row['stretch']}x" if row["stretch"] else "")
    return goal if row["met"] else f"{goal}: missed"


def rewrite(found: dict[str, Any] | None = None, readme: Path = HERE.parent / "README.md") -> None:
    """Replace what stands between the two comments."""
    found = found or json.loads((HERE / "results" / "kl.json").read_text())
    text = readme.read_text()
    before, rest = text.split(START)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{START}\n{block(found)}\n{END}{after}")


if __name__ == "__main__":
    rewrite()
