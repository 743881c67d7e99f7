"""Evaluated runs side by side: runs that differ in their seed alone are one method, with an interval over its seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcrepar.errors import ParameterError
from mcrepar.metrics import METRICS
from mcrepar.user_files import read_json
from mcrepar.workbench.evaluation.words import CONFIDENT, NONE
from mcrepar.workbench.training.config import TrainConfig, names, read_config

LEVEL = 0.95
CLASSES = ("accuracy", "nll", "ece", "aurc")
VOXELS = ("dice", "structure_ece", "error_auroc")
NUMBERS = ("rmse", "log_likelihood", "coverage_90", "width_90")
TWIN = "deterministic twin"
EVALUATED_ON = ("name", "split", "count", "size", "classes")  # of metrics.json: what runs must have in common


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and its Student interval; None where there is one seed only."""

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The 95 % interval of the mean of independent values.

        >>> Interval.of([1.0, 2.0, 3.0])
        Interval(mean=2.0, half=2.484..., count=3)
        """
        mean, count = statistics.fmean(values), len(values)
        if count < 2:
            return cls(mean, None, count)
        from scipy import stats

        quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
        return cls(mean, quantile * statistics.stdev(values) / math.sqrt(count), count)


@dataclass(frozen=True)
class EvaluatedRun:
    """A run that was evaluated: its options, on what, and the numbers of its network and of its twin by name."""

    config: TrainConfig
    data: Mapping[str, Any]
    numbers: Mapping[str, float]
    twin: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Args:
        columns: the numbers that a method has, in order.
        rows: by method, the numbers of its seeds.
        against: by method after the first, its difference from the first: by seed where both have the same seeds.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Interval]]
    against: Mapping[str, Mapping[str, Interval]]

    def text(self, form: str = "text") -> str:
        """As a table for a terminal or in Markdown, or as JSON."""
        if form == "json":
            parts = {"columns": self.columns, "methods": self.rows, "differences": self.against}
            return json.dumps(parts, default=lambda value: value.__dict__, indent=1)
        heads = ["method", "seeds", *map(_title, self.columns)]
        first = next(iter(self.rows))
        named = {**self.rows, **{f"{name} minus {first}": row for name, row in self.against.items()}}
        lines = [
            [name, str(next(iter(row.values())).count), *(_shown(c, row.get(c)) for c in self.columns)]
            for name, row in named.items()
        ]
        if form == "md":
            rows = [heads, ["---"] * len(heads), *lines]
            return "\n".join(f"| {' | '.join(row)} |" for row in rows)
        widths = [max(len(row[k]) for row in (heads, *lines)) for k in range(len(heads))]
        return "\n".join(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in (heads, *lines)
        )


def compare(folders: Sequence[str | Path]) -> Comparison:
    """Compare evaluated runs.

    Args:
        folders: of runs that were evaluated, or folders of `mcrepar train --seeds`, which hold several of them.

    Raises:
        ParameterError: a folder was not evaluated, or the runs were evaluated on different data.
    """
    runs = [_read(place) for folder in folders for place in _expanded(Path(folder))]
    if not runs:
        raise ParameterError("mcrepar compare", "no run was named", "the folders of evaluated runs")
    _check_data(runs)
    groups: dict[str, list[EvaluatedRun]] = {}
    options = _differing([run.config for run in runs])
    for run in runs:
        groups.setdefault(_name(run.config, options), []).append(run)
    values = {name: {run.config.seed: run.numbers for run in group} for name, group in groups.items()}
    for name, group in groups.items():
        if len(values[name]) < len(group):
            why = f"two of the runs called {name!r} have the same seed"
            raise ParameterError("mcrepar compare", why, "runs with different seeds or options")
        if all(run.twin for run in group):
            key = TWIN if len(groups) == 1 else f"{TWIN} of {name}"
            values[key] = {run.config.seed: run.twin for run in group}
    return _compared(values)


def _compared(values: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Comparison:
    columns = tuple(dict.fromkeys(c for seeds in values.values() for numbers in seeds.values() for c in numbers))
    rows = {
        name: {
            c: Interval.of([numbers[c] for numbers in seeds.values()])
            for c in columns
            if all(c in numbers for numbers in seeds.values())
        }
        for name, seeds in values.items()
    }
    (start, first), *others = values.items()
    against = {}
    for name, seeds in others:
        if set(seeds) == set(first):  # paired, which removes what the seeds share
            both = [c for c in rows[start] if c in rows[name]]
            against[name] = {c: Interval.of([seeds[s][c] - first[s][c] for s in seeds]) for c in both}
    return Comparison(columns, rows, against)


def _expanded(folder: Path) -> list[Path]:
    """The runs of several seeds in a folder, or the folder itself."""
    inside = sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name))
    return inside if inside and not (folder / "config.yaml").exists() else [folder]


def _read(folder: Path) -> EvaluatedRun:
    if not (folder / "config.yaml").exists():
        raise ParameterError(f"run {str(folder)!r}", "it holds no run", "the folder of a run that was evaluated")
    config = read_config(folder / "config.yaml")
    try:
        results = read_json(folder / "metrics.json")
        data = {key: value for key, value in results.get("data", {}).items() if key in EVALUATED_ON}
        with suppress(OSError, ValueError, LookupError, TypeError):  # older runs do not tell
            data["training data"] = read_json(folder / "run.json")["data"]["digest"]
        return EvaluatedRun(config, data, _numbers(results), _numbers(results, twin=True))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"it holds no results that can be read ({type(error).__name__}: {error})"
        raise ParameterError(f"run {str(folder)!r}", why, f"mcrepar evaluate {folder}") from None


def _numbers(results: Mapping[str, Any], twin: bool = False) -> dict[str, float]:
    """The numbers of a network on its test data, in its confidence set, and against out-of-distribution data."""
    scores = results.get("twin") if twin else results["in"]
    if not scores:
        return {}
    found = {name: scores[name] for name in (*CLASSES, *VOXELS, *NUMBERS) if scores.get(name) is not None}
    if not twin:
        sets = [s for s in results.get("confidence_sets") or () if s["tau"] == CONFIDENT and s["accuracy"] is not None]
        for s in sets:
            found |= {"confident_share": s["share"], "confident_accuracy": s["accuracy"]}
    for name, about in results["ood"].items():
        detected = about["by_score"].get(f"{about['score']}_of_the_twin") if twin else about
        if detected:
            found[f"auroc_{name}"] = detected["auroc"]
    return found


def _check_data(runs: Sequence[EvaluatedRun]) -> None:
    """Refuse runs that were evaluated on different examples."""
    first = runs[0].data
    for run in runs[1:]:
        for key in first:
            if key in run.data and first[key] != run.data[key]:
                why = f"the runs were evaluated on different data: {key} {first[key]} and {run.data[key]}"
                raise ParameterError("mcrepar compare", why, "runs on one data set, evaluated on the same part of it")


def _differing(configs: Sequence[TrainConfig]) -> list[str]:
    """The options by which runs are told apart: not their seed, nor where they are and how they are shown."""
    first, *others = configs
    found = {name for other in others for name in first.differences(other)}
    if {"data", "data_options"} & found:
        why = "the runs were trained on different data"
        raise ParameterError("mcrepar compare", why, "runs on one data set")
    return [name for name in names() if name in found and name != "seed"]


def _name(config: TrainConfig, options: Sequence[str]) -> str:
    """A method by the options in which it differs.

    >>> _name(TrainConfig(kl_method="stats", n_mc_iter=100), ["kl_method", "n_mc_iter"])
    'kl_method stats, n_mc_iter 100'
    """
    return ", ".join(f"{name} {getattr(config, name)}" for name in options) or f"{config.posterior} {config.model}"


def _title(column: str) -> str:
    if column in METRICS:
        return METRICS[column].title
    return {"confident_share": "share of confident", "confident_accuracy": "accuracy of confident"}.get(
        column, column.replace("auroc_", "AUROC ")
    )


def _shown(column: str, interval: Interval | None) -> str:
    if interval is None:
        return NONE
    share = column.startswith("confident") or (column in METRICS and METRICS[column].percent)
    factor, digits = (100, 1) if share else (1, 3)
    half = "" if interval.half is None else f" ± {factor * interval.half:.{digits}f}"
    return f"{factor * interval.mean:.{digits}f}{half}{' %' if share else ''}"
