"""The rule by which settings of ours are chosen, and what it chose, in Markdown, for readme.py."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quality_tables import TWIN, by_method, is_ours, mean_of

RESULTS = Path(__file__).parent / "results"
ESTIMATORS, SCALE_RATES = RESULTS / "estimators.json", RESULTS / "scale_rates.json"
RULE = (
    "The rule that was written down before the runs: *the validation log predictive density, averaged over data sets, "
    "decides; ties are decided by the OOD AUROC, then by the cost of a step* "
    "([measured](benchmarks.md#a-training-step-of-five-networks))."
)
DATA = {
    "fashion-lenet5": "Fashion-MNIST, LeNet-5",
    "cifar10-resnet8": "CIFAR-10, ResNet-8",
    "cifar10-resnet20": "CIFAR-10, ResNet-20",
}
DEFAULT = "fan-in .3, auto"
RATES = tuple(f"{DEFAULT}, Adam {rate}" for rate in (".005", ".002"))  # the default by smaller learning rates
UCI = {DEFAULT: "hierarchical .3", "rank1 normal .3": "rank1 .3"}  # the same settings in quality_uci.py
PRIORS = {"0.3, 3": DEFAULT, "0.5, 3": "fan-in .5, auto"}  # of estimators.json: the same ones on images
COMPARED: Sequence[tuple[str, Sequence[str]]] = (
    ("posterior", ("fan-in .5", "fan-in .5, radial")),
    ("posterior", ("normal, natural", "laplace, natural")),
    ("posterior", ("rank1 normal .3", "rank1 lognormal .3")),
    ("prior", (DEFAULT, "fan-in .5, auto", "spread .5")),
    ("prior", ("fan-in .5", "fan-in 1", "normal", "normal hierarchical .05", "normal hierarchical .1")),
    ("prior", tuple(f"fan-in {x}, auto, Adam .002" for x in (".3", ".5"))),
    ("prior", tuple(f"fan-in {x}, auto, SGD x 4" for x in (".05", ".2", ".3", ".5", ".5, loc 1.5", ".5, loc 1"))),
    ("prior", tuple(f"fan-in {x}, one draw, SGD" for x in (".1", ".1, loc 2", ".15, loc 2", ".2", ".3"))),
    ("what is random", ("fan-in .5, auto, SGD x 4", "fan-in .5, plain biases, auto, SGD x 4")),
    ("forward", ("fan-in .5", "fan-in .5, auto", "fan-in .5, one draw")),
    ("forward", ("spread .5", "spread .5, one draw")),
    ("structure", (DEFAULT, RATES[1], "rank1 normal .3", "rank1 normal .3, 4 members")),
    ("structure", ("fan-in .5, auto, SGD x 4", "rank1 normal .3, 4 members")),
    ("structure", (*(f"fan-in {x}, one draw, SGD" for x in (".1", ".2", ".3")), "rank1 normal .3")),
    ("optimizer", (DEFAULT, *RATES, "fan-in .3, auto, SGD x 4")),
    ("optimizer", tuple(f"fan-in .5, auto{x}" for x in ("", ", Adam .002", ", SGD", ", SGD x 4", ", natural"))),
    ("optimizer", ("normal hierarchical .1", "normal hierarchical .1, Adam .002")),
    ("optimizer", ("normal", "normal, Adam .002", "normal, natural")),
)  # settings that differ in one choice


def rule_block(found: dict[str, Any]) -> list[str]:
    """The rule, the validation part of every setting, and the rule applied to every choice."""
    by = by_method(found, "validation")
    return [RULE, "", *_settings(by, found), "", *_choices(by, found), "", *_priors(by), "", *_scale_rates()]


def density(runs: Sequence[Any]) -> float:
    """The mean validation log predictive density."""
    return -float(sum(run["validation"]["nll"] for run in runs) / len(runs))


def detection(runs: Sequence[Any]) -> float:
    """The mean OOD AUROC by mutual information of the tested runs; 0, which loses every tie, without them or draws."""
    tested = [run for run in runs if "test" in run]
    mean = mean_of(tested, "OOD, mutual inf.") if tested else math.nan
    return 0.0 if math.isnan(mean) else mean


def uci(found: dict[str, Any], method: str) -> float | None:
    """The mean validation log-likelihood over the UCI data; None where it was not run on them."""
    values = [run["mean"]["validation"]["log_likelihood"] for run in found.values()
              if run["task"].startswith("uci-") and run["method"] == UCI.get(method)]  # fmt: skip
    return sum(values) / len(values) if values else None


def _settings(by: Mapping[str, Mapping[str, list[Any]]], found: dict[str, Any]) -> list[str]:
    """A row for every setting: density, AUROC and seeds on every data set, the best density first."""
    names = dict.fromkeys(name for task in DATA for name in by.get(task, {}) if is_ours(name))
    tasks = [task for task in DATA if by.get(task)]

    def place(name: str) -> list[float]:
        return [-density(by[task][name]) if name in by[task] else 9.0 for task in tasks]

    rows = []
    for name in (TWIN, *sorted(names, key=place)):
        cells = [_cell(by[task].get(name, [])) for task in tasks]
        value = uci(found, name)
        shown = "the deterministic network" if name == TWIN else f"`{name}`"
        shown = f"**{shown}**" if name in (DEFAULT, *RATES) else shown
        rows.append(f"| {shown} | {' | '.join(cells)} | {'-' if value is None else f'{value:.3f}'} |")
    head = (
        "Every setting of ours on the validation parts: log predictive density / OOD AUROC by mutual information "
        "(seeds; no AUROC without draws, or where no test part was looked at), and the mean log-likelihood of the four "
        "UCI sets; the default in bold, by three learning rates:"
    )
    titles = " | ".join(DATA[task] for task in tasks)
    return [head, "", f"| setting | {titles} | UCI |", "|---|" + "---|" * (len(tasks) + 1), *rows]


def _cell(runs: list[Any]) -> str:
    if not runs:
        return "-"
    auroc = detection(runs)
    return f"{density(runs):.3f} / {f'{auroc:.3f}' if auroc else '-'} ({len(runs)})"


def _choices(by: Mapping[str, Mapping[str, list[Any]]], found: dict[str, Any]) -> list[str]:
    """Settings that differ in one choice, the best first, on every data set where several of them were run."""
    rows = []
    for choice, names in COMPARED:
        for task, title in DATA.items():
            ranked = [(round(density(runs), 3), detection(runs), name)
                      for name in names if (runs := by.get(task, {}).get(name))]  # fmt: skip
            rows += _ranking(choice, title, ranked)
        values = [(name, uci(found, name)) for name in names]
        rows += _ranking(choice, "UCI", [(round(value, 3), 0.0, name) for name, value in values if value is not None])
    head = (
        "The rule applied to settings that differ in one choice, the best first (their densities; what is equal to "
        "three digits is a tie, shown by =, and its OOD AUROC decides; rank-1 rows have SGD for the weights, and so "
        "differ from the default in the optimizer too):"
    )
    return [head, "", "| choice | data | settings |", "|---|---|---|", *rows]


def _ranking(choice: str, title: str, ranked: list[tuple[float, float, str]]) -> list[str]:
    if len(ranked) < 2:
        return []
    text, before = "", None
    for value, _, name in sorted(ranked, reverse=True):
        text += ("" if before is None else " = " if value == before else ", ") + f"`{name}` {value:.3f}"
        before = value
    return [f"| {choice} | {title} | {text} |"]


def _priors(by: Mapping[str, Mapping[str, list[Any]]]) -> list[str]:
    """The prior of the default, over the data sets of estimators.py and Fashion-MNIST."""
    validation = json.loads(ESTIMATORS.read_text())["validation"]
    sets = [name for name in next(iter(validation.values())) if name != "mean"]
    rows = []
    for setting, values in validation.items():
        numbers = [values[name] for name in sets]
        cells = [*numbers, sum(numbers) / len(numbers)]
        if runs := by.get("fashion-lenet5", {}).get(PRIORS.get(setting, "")):
            cells += [image := density(runs), (sum(numbers) + image) / (len(numbers) + 1)]
        shown = [f"{cell:.3f}" for cell in cells] + ["-"] * (len(sets) + 3 - len(cells))
        own = f"**{setting}**" if PRIORS.get(setting) == DEFAULT else setting
        rows.append(f"| {own} | {' | '.join(shown)} |")
    head = (
        'The prior of the default (in bold), all with `forward="auto"` and Adam: validation log predictive density '
        "of the regressions (targets standardised) and small classifications of `benchmarks/estimators.py`, and of "
        "Fashion-MNIST:"
    )
    titles = [*sets, "mean", "Fashion-MNIST", "mean with it"]
    return [head, "", f"| scale, loc_scale | {' | '.join(titles)} |", "|---|" + "---|" * len(titles), *rows]


def _scale_rates() -> list[str]:
    """The learning rate of log scales in a loop of one's own."""
    found = json.loads(SCALE_RATES.read_text())
    ratios = list(dict.fromkeys(ratio for loop in found["validation"].values() for ratio in loop))
    rows = []
    for name, loop in found["validation"].items():
        cells = [f"{loop[ratio]['mean']:.3f}" if ratio in loop else "-" for ratio in ratios]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    head = (
        "The learning rate of log scales over that of means, with the default posterior and Adam: validation log "
        f"predictive density after {found['steps']:,} steps, the mean over eight data sets with three splits each "
        "(`benchmarks/scale_rates.py`):"
    )
    titles = " | ".join(f"{ratio} x" for ratio in ratios)
    return [head, "", f"| learning rate of means | {titles} |", "|---|" + "---|" * len(ratios), *rows]
