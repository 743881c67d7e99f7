"""Writes measured numbers (benchmarks/results/*.json) into README.md, between pairs of comments of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUSY = 0.25  # cores kept busy by other work above which numbers are only provisional


def kl_block(found: dict[str, Any]) -> list[str]:
    """What the estimators reached against their targets."""
    rows = [
        f"| {row['what']} | {row['against']} | **{row['ratio']:.2f}x** | {_goal(row)} |" for row in found["targets"]
    ]
    head = (
        f"Measured on {found['weights']:,} float32 weights in the {found['tensors']} tensors of ResNet-18, "
        f"radial x normal, value and backward; {_where(found)}. Ratios within one run (`make bench`):"
    )
    return [head, "", "| cost of | against | reached | target |", "|---|---|---|---|", *rows]


def step_block(found: dict[str, Any]) -> list[str]:
    """What being Bayesian adds to a training step, and predict to forwards."""
    rows = [
        f"| {name} | {layout} | **{row['draws']:.1f}** | {row['target']}{'' if row['met'] else ': missed'} "
        f"| {row['ratio']:.2f}x |"
        for layout, cases in found["added"].items()
        for name, row in cases.items()
    ]
    predicts = "; ".join(
        f"{images}: " + ", ".join(f"`{name}` {ratio:.2f}x" for name, ratio in cases.items())
        for images, cases in found["predict over forwards"].items()
    )
    head = (
        f"One training step of PreActResNet-18 (batch {found['batch']}, radial x normal, fused Adam; {_where(found)}): "
        "what being Bayesian adds, in multiples of drawing every weight once, and the step over the deterministic one:"
    )
    table = ["| KL | memory layout | adds | target | step |", "|---|---|---|---|---|", *rows]
    return [head, "", *table, "", f"Predictions over as many deterministic forwards: {predicts}."]


BLOCKS: dict[str, Callable[[dict[str, Any]], list[str]]] = {"kl": kl_block, "step": step_block}


def block(name: str, found: dict[str, Any]) -> str:
    """The numbers of one benchmark in Markdown, between its comments."""
    lines, load = BLOCKS[name](found), found["machine"]["load at start"]
    if load > BUSY:
        lines[0] = f"**Provisional: other work kept {load} cores busy.** {lines[0]}"
    return "\n".join([f"<!-- {name}: written by benchmarks/readme.py -->", *lines, f"<!-- end of {name} -->"])


def _where(found: dict[str, Any]) -> str:
    machine = found["machine"]
    return f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch'].partition('+')[0]}"


def _goal(row: dict[str, Any]) -> str:
    goal = f"{row['target']:.1f}x" + (f", stretch {row['stretch']}x" if row["stretch"] else "")
    return goal if row["met"] else f"{goal}: missed"


def rewrite(name: str, readme: Path = HERE.parent / "README.md", results: Path = HERE / "results") -> None:
    """Replace what stands between the two comments of a benchmark."""
    new = block(name, json.loads((results / f"{name}.json").read_text()))
    first, *_, last = new.splitlines()
    before, rest = readme.read_text().split(first)
    readme.write_text(before + new + rest.split(last)[1])


if __name__ == "__main__":
    for name in BLOCKS:
        rewrite(name)
