"""Writes measured numbers (benchmarks/results/*.json) into README.md and pages of docs/, between comments of them.

It also brings the table of the posteriors' runs, benchmarks/results/quality_runs.csv, up to date.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from moments_tables import moments_block, predict_block, training_block
from quality_goals import goals_block
from quality_rule import rule_block
from quality_runs import write
from quality_tables import (
    classes_block,
    corrupted_block,
    fashion_block,
    moments_quality_block,
    noise_block,
    short_classes_block,
    simulation_block,
)
from quality_uci_tables import uci_block, uci_short_block
from timing import QUIET

HERE = Path(__file__).parent
ENOUGH = 12  # rounds of a benchmark below which a table names their number


def choice_block(found: dict[str, Any]) -> list[str]:
    """What a step costs with the KL in closed form, by us and by what people would use instead."""
    checks = json.loads((HERE / "results" / "peers.json").read_text())["checks"]
    networks = {name.partition(",")[0]: rows for name, rows in found["networks"].items() if name.startswith(SHOWN)}
    rows = []
    for library, checked in checks.items():
        step = "normal, exact" if library == "mcrepar" else library
        if all(step in ratios for ratios in networks.values()):
            passed = [p["passed"] for p in checked["points"].values() if p["passed"] is not None]
            cells = " | ".join(f"{ratios[step]['ratio']:.2f}x" for ratios in networks.values())
            rows.append(f"| {library} | {cells} | {sum(passed)} of {len(passed)} |")
    head = f"A Bayesian training step over the deterministic one, exact KL, one sample ({_where(found)}):"
    few = {name: ratios["normal, exact"]["rounds"] for name, ratios in networks.items()}
    names = [f"{name} ({rounds} rounds)" if rounds < ENOUGH else name for name, rounds in few.items()]
    return [head, "", f"| library | {' | '.join(names)} | points of correctness |",
            "|---|" + "---|" * (len(networks) + 1), *rows]  # fmt: skip


SHOWN = ("ResNet-18", "3D encoder", "MLP")  # in the README


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
    lines = [head, "", *table, "", f"Predictions over as many deterministic forwards: {predicts}."]
    return lines + (["", *_small_network(found["small network"])] if "small network" in found else [])


def _small_network(found: dict[str, Any]) -> list[str]:
    """What a network of 50 units costs, where time is spent between operations."""
    head = (
        "An MLP of 50 units (13-50-1, batch 100, Adam, one thread), where time is spent between operations and not in "
        "them: a step over the deterministic one, and `predict` over as many forwards:"
    )
    rows = [f"| step, {name} | **{ratio:.1f}x** |" for name, ratio in found["step over deterministic"].items()]
    rows.append(f"| `predict(bnn, x, draws=100)` | **{found['predict over forwards']:.2f}x** |")
    took = ", ".join(f"`{name}` {found['microseconds'][name]:.0f}" for name in ("bnn(x)", "kl(bnn)"))
    forward, step = (found["microseconds"][name] for name in ("forward", "deterministic"))
    last = f"In microseconds: {took}; a deterministic forward {forward:.0f}, a deterministic step {step:.0f}."
    if (busy := found["machine"]["load at start"]) > QUIET:
        last += f" Other work kept {busy:.1f} cores busy meanwhile, so that only the ratios tell something."
    return [head, "", "| what | takes |", "|---|---|", *rows, "", last]


def networks_block(found: dict[str, Any]) -> list[str]:
    """A step of every network by every way, over the deterministic one."""
    networks = found["networks"]
    names = [name for name in dict.fromkeys(n for rows in networks.values() for n in rows) if name != "deterministic"]
    cell = {True: "**{:.2f}x**", False: "{:.2f}x"}
    ours = [name for name in names if "," in name or name == "rank-1"]
    rows = [
        f"| {name} | "
        + " | ".join(cell[name in ours].format(r[name]["ratio"]) if name in r else "-" for r in networks.values())
        + " |"
        for name in names
    ]
    spread = {n: max(max(r["halves"]) / min(r["halves"]) - 1 for r in rows.values()) for n, rows in networks.items()}
    least = min(r["rounds"] for rows in networks.values() for r in rows.values() if "rounds" in r)
    head = (
        f"A training step over the deterministic one ({_where(found)}; forward, KL in closed form or by `stats`, "
        f"backward, fused Adam; ours in bold). The last row says how far the two halves of the rounds "
        f"({least} or more) differ at most:"
    )
    last = f"| halves differ by | {' | '.join(f'{100 * x:.0f} %' for x in spread.values())} |"
    lines = [head, "", f"| step | {' | '.join(networks)} |", "|---|" + "---|" * len(networks), *rows, last]
    peak = found["peak bytes"]
    others = [
        f"{100 * peak['exact'] / peak[name]:.0f} % of {name.partition(',')[0]}'s" for name in peak if "closed" in name
    ]
    return [
        *lines,
        "",
        f"Peak memory of a ResNet-18 step: {peak['deterministic'] / 1e9:.2f} GB deterministic, "
        f"{peak['rank-1'] / 1e9:.2f} GB with rank-1 factors, {peak['exact'] / 1e9:.2f} GB with all weights random "
        f"(normal, exact): {', '.join(others)}.",
    ]


def peers_block(found: dict[str, Any]) -> list[str]:
    """A step with M = 1000 by our methods and by other libraries, and which points of correctness they pass."""
    head = (
        f"One training step of PreActResNet-18 with M = 1000 (batch {found['settings']['batch']}, "
        f"{found['pair'].partition(':')[0]}; {_where(found)}; `make bench`):"
    )
    steps = {name: step for name, step in found["steps"].items() if step["points"]}
    rows = [f"| {name} | {step['M is spent on']} | {_thousand(step)} |" for name, step in steps.items()]
    table = ["| step by | M is spent on | seconds | GB at the peak |", "|---|---|---|---|", *rows]
    points = {name: checked["points"].values() for name, checked in found["checks"].items()}
    passed = "; ".join(
        f"{name} {found['checks'][name]['version']} {sum(point['passed'] is True for point in those)} of "
        f"{sum(point['passed'] is not None for point in those)}"
        for name, those in points.items()
    )
    goals = "; ".join(
        row["what"].replace(" is ", f" is **{_reached(row)} times** ")
        + f" ({_bound(row)}{'' if row['met'] else ': missed'})"
        for row in found["targets"]
        if "at least" in row
    )
    kept = ", ".join(_kept(found, row) for row in found["targets"] if "at most" in row)
    return [
        head, "", *table, "", f"{goals[:1].upper()}{goals[1:]}.", "",
        f"Bytes saved for backward with M = 1000, over those with M = 1: {kept}.", "",
        f"Points of correctness passed: {passed}.",
    ]  # fmt: skip


def steps_block(found: dict[str, Any]) -> list[str]:
    """How far every step went, and what it cost at its ends."""
    rows = []
    for name, step in found["steps"].items():
        points = [point for point in step["points"] if not point["extrapolated"]]
        if points:
            most = f"M = {points[-1]['M']:,}: {_cost(points[-1])}" if step["has M"] else "it has no M"
            rows.append(f"| {name} | {_cost(points[0])} | {most} | {_end(step['end'])} |")
    head = "| step by | M = 1: time, peak, saved for backward | the last that was measured | why it ended |"
    return [head, "|---|---|---|---|", *rows]


def _cost(point: dict[str, Any]) -> str:
    peak, kept = (_short(point[key] * 1e-9) for key in ("peak_bytes", "saved_bytes"))
    return f"{_short(point['seconds'])} s, {peak} GB, {kept} GB"


def _end(end: dict[str, Any] | None) -> str:
    if end is None:
        return "it did not"
    if end["reason"] == "time":
        return f"M = {end['M']:,} would take {_short(end['seconds'])} s" if "seconds" in end else end["error"]
    return f"M = {end['M']:,} does not fit" if end["reason"] == "memory" else f"M = {end['M']:,}: {end['error']}"


def _kept(found: dict[str, Any], row: dict[str, Any]) -> str:
    """A target of memory: the method, the ratio, and how far it was measured where that is not all the way."""
    name = row["what"].split()[3].strip(",")
    measured = max((p["M"] for p in found["steps"][name]["points"] if not p["extrapolated"]), default=0)
    return f"{name} {_reached(row)}x" + (f" (measured up to M = {measured:,})" if row["extrapolated"] else "")


def _thousand(step: dict[str, Any]) -> str:
    """Seconds and peak at M = 1000, or the only ones; ~ where they are extrapolated, a dash where the curve ended."""
    point = next((p for p in step["points"] if p["M"] == 1000 or not step["has M"]), None)
    if point is None:
        return "- | -"
    about = "~" if point["extrapolated"] else ""
    return f"{about}{_short(point['seconds'])} | {about}{_short(point['peak_bytes'] * 1e-9)}"


def _reached(row: dict[str, Any]) -> str:
    return "?" if row["ratio"] is None else _short(row["ratio"])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bound(row: dict[str, Any]) -> str:
    guessed = f", {' and '.join(row['extrapolated'])} extrapolated" if row["extrapolated"] else ""
    return f"target {row['at least']:g}{guessed}"


def checks_block(found: dict[str, Any]) -> list[str]:
    """Who passes which point of correctness."""
    marks = {True: "yes", False: "**no**", None: "not offered"}
    checks = found["checks"]
    names = [f"{name} {checked['version']}" for name, checked in checks.items()]
    rows = [["point", *names], ["---"] * (len(names) + 1)]
    for point in checks["mcrepar"]["points"]:
        results = [checked["points"][point] for checked in checks.values()]
        cells = [marks[r["passed"]] + (f": {r['measured']}" if r["measured"] else "") for r in results]
        rows.append([point, *cells])
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def reliability_block(found: dict[str, Any]) -> list[str]:
    """What is promised, how it is tried to break, how often, and how often it broke."""
    rows = [
        f"| {part['promise']} | {part['how']} | {part['tries']:,} | {len(part['failures'])} |"
        for part in found["parts"].values()
    ]
    return ["| promise | how it is tested | tries | failures |", "|---|---|---|---|", *rows]


class Block(NamedTuple):
    """What is written where, from which results."""

    page: str
    results: str
    lines: Callable[[dict[str, Any]], list[str]]


BLOCKS = {
    "choice": Block("README.md", "step_networks.json", choice_block),
    "uci": Block("README.md", "quality", uci_short_block),
    "fashion": Block("README.md", "quality", fashion_block),
    "uci_all": Block("docs/posterior_quality.md", "quality", uci_block),
    "uci_rmse": Block("docs/posterior_quality.md", "quality", partial(uci_block, score="rmse")),
    "uci_coverage": Block("docs/posterior_quality.md", "quality", partial(uci_block, score="coverage_90")),
    "rule": Block("docs/posterior_quality.md", "quality", rule_block),
    "kl": Block("docs/benchmarks.md", "kl.json", kl_block),
    "step": Block("docs/benchmarks.md", "step.json", step_block),
    "networks": Block("docs/benchmarks.md", "step_networks.json", networks_block),
    "peers": Block("docs/benchmarks.md", "peers.json", peers_block),
    "steps": Block("docs/peers.md", "peers.json", steps_block),
    "checks": Block("docs/peers.md", "peers.json", checks_block),
    "moments": Block("docs/benchmarks.md", "moments.json", moments_block),
    "predict": Block("docs/benchmarks.md", "predict.json", predict_block),
    "moments_training": Block("docs/benchmarks.md", "moments_training.json", training_block),
    "moments_quality": Block("docs/benchmarks.md", "moments_quality.json", moments_quality_block),
    "classes_short": Block("docs/posteriors.md", "quality", short_classes_block),
    "classes": Block("docs/posterior_quality.md", "quality", classes_block),
    "corrupted": Block("docs/posterior_quality.md", "quality", corrupted_block),
    "goals": Block("docs/posterior_quality.md", "quality", goals_block),
    "noise": Block("docs/benchmarks.md", "gradient_noise.json", noise_block),
    "simulation": Block("docs/benchmarks.md", "simulation.json", simulation_block),
    "reliability": Block("docs/reliability.md", "reliability.json", reliability_block),
}

NOT_TIMED = {
    "reliability",
    "uci",
    "uci_all",
    "uci_rmse",
    "uci_coverage",
    "rule",
    "fashion",
    "moments",
    "moments_quality",
    "classes",
    "classes_short",
    "corrupted",
    "goals",
    "noise",
    "simulation",
}  # numbers that other work on the machine does not change


def results(name: str) -> dict[str, Any]:
    """What a block is written from: one file, or all files of a folder by their names."""
    path = HERE / "results" / BLOCKS[name].results
    if path.is_dir():
        return {file.stem: json.loads(file.read_text()) for file in sorted(path.glob("*.json"))}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def block(name: str, found: dict[str, Any]) -> str:
    """The numbers of one benchmark in Markdown, between its comments."""
    lines = BLOCKS[name].lines(found)
    if name not in NOT_TIMED and (load := _load(found)) > QUIET:
        lines = [f"**Provisional: other work kept {load} cores busy.**", "", *lines]
    return "\n".join([f"<!-- {name}: written by benchmarks/readme.py -->", *lines, f"<!-- end of {name} -->"])


def _load(found: dict[str, Any]) -> float:
    """The most cores that other work kept busy, at the start or before any of the points."""
    points = [point for step in found.get("steps", {}).values() for point in step["points"]]
    return max([found["machine"]["load at start"], *(point.get("load", 0.0) for point in points)])


def _where(found: dict[str, Any]) -> str:
    machine = found["machine"]
    return f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch'].partition('+')[0]}"


def _goal(row: dict[str, Any]) -> str:
    goal = f"{row['target']:.1f}x" + (f", stretch {row['stretch']}x" if row["stretch"] else "")
    return goal if row["met"] else f"{goal}: missed"


def rewrite(name: str, root: Path = HERE.parent) -> None:
    """Replace what stands between the two comments of a block."""
    page = root / BLOCKS[name].page
    new = block(name, results(name))
    first, *_, last = new.splitlines()
    before, rest = page.read_text().split(first)
    page.write_text(before + new + rest.split(last)[1])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name in BLOCKS:
        rewrite(name)
    write()
