"""Results in words: the verdict, the numbers as people read them, the rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcrepar.metrics import METRICS, wilson

NONE = "-"  # where there is no number
CONFIDENT = 0.9  # the threshold of the verdict: nine of ten draws agree
Results = Mapping[str, Any]


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent; never 100 % or 0 % by rounding.

    Args:
        share: from 0 to 1; None where there is none.
        digits: behind the point.

    >>> percent(0.7123), percent(0.99999), percent(1.0), percent(None)
    ('71.2 %', '> 99.9 %', '100 %', '-')
    """
    if share is None:
        return NONE
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    step = 10.0**-digits
    if 100 * share > 100 - step / 2:
        return f"> {100 - step:.{digits}f} %"
    return f"< {step:.{digits}f} %" if 100 * share < step / 2 else f"{100 * share:.{digits}f} %"


def shown(name: str, value: float | None) -> str:
    """A metric as people read it.

    Args:
        name: a key of METRICS.
        value: of it; None where there is none.

    >>> shown("accuracy", 0.983), shown("nll", 0.05432), shown("aurc", 0.00042)
    ('98.3 %', '0.054', '0.00042')
    """
    if value is None:
        return NONE
    if METRICS[name].percent:
        return percent(value)
    return f"{value:,.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def title(results: Results) -> str:
    """What was evaluated.

    Args:
        results: metrics.json.
    """
    return f"{results['model']['name']} on {results['data']['name']}"


def drawn(results: Results) -> str:
    """How it was averaged over the weights: 100 draws, or moments.

    Args:
        results: metrics.json.
    """
    if results.get("method") == "moments":
        return "moments"
    return f"{results['draws']} draw{'' if results['draws'] == 1 else 's'}"


def verdict(results: Results) -> tuple[str, list[str]]:
    """One line that says how good it is, and a few on its uncertainty.

    Args:
        results: metrics.json.
    """
    kinds = {"regression": _of_numbers, "segmentation": _of_voxels}
    return kinds.get(results["task"], _of_classes)(results)


def _of_classes(results: Results) -> tuple[str, list[str]]:
    scores, data = results["in"], results["data"]
    head = f"Right in {percent(scores['accuracy'])} of {data['count']:,} {_things(data)}"
    lines = []
    sets = {s["tau"]: s for s in results["confidence_sets"]}
    if CONFIDENT in sets and results["draws"] > 1:
        lines.append(_of_set(sets[CONFIDENT], scores["accuracy"]))
    gap = 100 * scores["ece"]
    lines.append(f"Its confidence differs from its accuracy by {gap:.1f} points on average (ECE {scores['ece']:.3f}).")
    return head, [*lines, *_of_ood(results, "uncertain")]


def _of_set(s: Mapping[str, Any], overall: float) -> str:
    if not s["count"]:
        return f"For no example do {CONFIDENT:.0%} of the draws agree.".replace("%", " %")
    if s["share"] == 1:
        return f"At least {CONFIDENT:.0%} of the draws agree on all of them.".replace("%", " %")
    where = f"the {percent(s['share'])} where at least {100 * CONFIDENT:.0f} % of draws agree"
    return f"Right in {percent(s['accuracy'])} of {where}, in {percent(_rest(s, overall))} of the others."


def _rest(s: Mapping[str, Any], overall: float) -> float:
    """The accuracy outside a confidence set."""
    outside: float = (overall - s["share"] * s["accuracy"]) / (1 - s["share"])
    return min(1.0, max(0.0, outside))


def _of_numbers(results: Results) -> tuple[str, list[str]]:
    scores, data = results["in"], results["data"]
    head = f"Typical error {shown('rmse', scores['rmse'])} on {data['count']:,} {_things(data)}"
    inside = f"The 90 % intervals hold {percent(scores['coverage_90'])} of the true values"
    width = f"and are {shown('width_90', scores['width_90'])} wide on average."
    return head, [f"{inside} {width}", *_of_ood(results, "uncertain")]


def _of_voxels(results: Results) -> tuple[str, list[str]]:
    scores, data = results["in"], results["data"]
    each = ", ".join(f"{s['name']} {shown('dice', s['dice'])}" for s in results["structures"])
    head = f"Dice {shown('dice', scores.get('dice'))} on {data['count']:,} {_things(data)}"
    lines = [f"Of the structures: {each}."] if len(results["structures"]) > 1 else []
    if "error_auroc" in scores:
        near = scores.get("error_auroc_foreground")
        among = "" if near is None else f" ({percent(near)} among voxels of structures)"
        marked = f"{percent(scores['error_auroc'])} of all comparisons{among}"
        lines.append(f"A wrong voxel has a larger entropy than a right one in {marked}.")
    wrong, left = 1 - scores["voxel_accuracy"], scores["error_at_95_coverage"]
    lines.append(f"Wrong in {percent(wrong)} of all voxels, and in {percent(left)} of the most certain 95 %.")
    return head, lines


def structure_rows(results: Results) -> list[dict[str, str]]:
    """The structures of a segmentation as a table.

    Args:
        results: metrics.json.
    """
    return [
        {
            "name": s["name"],
            "images": f"{s['images']:,}",
            "dice": shown("dice", s["dice"]),
            "ece": shown("ece", s["ece"]),
            "kept": shown("dice", s["dice_at_95_coverage"]),
        }
        for s in results.get("structures", ())
    ]


def _of_ood(results: Results, word: str) -> list[str]:
    return [
        f"{name} data look more {word} than in-distribution data in {percent(about['auroc'])} of all comparisons."
        for name, about in results["ood"].items()
    ]


def _things(data: Mapping[str, Any]) -> str:
    kinds = {0: "cases", 1: "signals", 2: "images", 3: "volumes"}
    return f"{data['split']} {kinds.get(len(data['size']), 'cases')}"


def tiles(results: Results) -> list[dict[str, str]]:
    """The few numbers that everyone asks for.

    Args:
        results: metrics.json.
    """
    scores, count = results["in"], results["data"]["count"]
    if results["task"] == "regression":
        names = ("rmse", "log_likelihood", "coverage_90", "width_90")
        return [_tile(name, scores[name]) for name in names if name in scores]
    if results["task"] == "segmentation":
        names = ("dice", "voxel_accuracy", "structure_ece", "error_auroc")
        return [_tile(name, scores[name]) for name in names if name in scores]
    low, high = wilson(round(scores["accuracy"] * count), count)
    note = f"95 % interval {percent(low)} to {percent(high)}; always the commonest class: "
    note += percent(results["commonest_class"])
    found = [{**_tile("accuracy", scores["accuracy"]), "note": note}]
    found += [_tile(name, scores[name]) for name in ("auc",) if name in scores]
    found += [_tile(name, scores[name]) for name in ("nll", "ece")]
    confident = next((s for s in results["confidence_sets"] if s["tau"] == CONFIDENT), None)
    if confident is not None:
        right = percent(confident["accuracy"])
        note = f"of the examples have {100 * CONFIDENT:.0f} % of the draws agree; {right} of them right"
        found.append({"title": "Confident in", "value": percent(confident["share"]), "note": note})
    return found


def _tile(name: str, value: float) -> dict[str, str]:
    row = METRICS[name]
    return {"title": row.title, "value": shown(name, value), "note": row.meaning}


def metric_rows(results: Results) -> list[dict[str, str]]:
    """Every metric with its meaning, for the draws, for the mean weights and for the deterministic twin.

    Args:
        results: metrics.json.
    """
    scores, mean, twin = results["in"], results["mean_weights"], results.get("twin") or {}
    signs = {"higher": "↑", "lower": "↓", "": ""}
    return [
        {
            "title": METRICS[name].title,
            "meaning": METRICS[name].meaning,
            "sign": signs[METRICS[name].better],
            "better": METRICS[name].better,
            "value": shown(name, value),
            "mean": shown(name, mean.get(name)) if not name.endswith("mutual_information") else NONE,
            "twin": shown(name, twin.get(name)) if not name.endswith("mutual_information") else NONE,
        }
        for name, value in scores.items()
    ]


def threshold_rows(results: Results) -> list[dict[str, str]]:
    """The confidence sets as a table.

    Args:
        results: metrics.json.
    """
    return [
        {
            "tau": f"{100 * s['tau']:g} %",
            "share": percent(s["share"]),
            "count": f"{s['count']:,}",
            "accuracy": percent(s["accuracy"]),
            "interval": NONE if s["low"] is None else f"{percent(s['low'])} to {percent(s['high'])}",
        }
        for s in results.get("confidence_sets", ())
    ]


def ood_rows(results: Results) -> list[dict[str, str]]:
    """How well out-of-distribution data are detected, a row for each set and score.

    Args:
        results: metrics.json.
    """
    rows = []
    for name, about in results["ood"].items():
        scores = {about["score"]: about, **about["by_score"]}
        for k, (score, values) in enumerate(scores.items()):
            cells = {metric: shown(metric, values[metric]) for metric in ("auroc", "aupr", "fpr95")}
            first = {"name": name, "count": f"{about['count']:,}"} if k == 0 else {"name": "", "count": ""}
            rows.append({**first, "score": score.replace("_", " "), **cells})
    return rows


def notes(results: Results) -> list[str]:
    """What to beware of.

    Args:
        results: metrics.json.
    """
    said = [*results.get("notes", ()), *results.get("posterior", {}).get("advice", ())]
    found = [note[:1].upper() + note[1:] for note in said]
    for name, about in results["ood"].items():
        found += [f"{name}: {note}" for note in about["notes"]]
        found += [f"{name}: SIMULATED data"] * bool(about["simulated"])
        if "in" in about:
            scores = about["in"]
            cells = ", ".join(f"{METRICS[m].title} {shown(m, scores[m])}" for m in ("accuracy", "nll", "ece"))
            found.append(f"{name} has the same classes: {cells}")
    return [note if note.endswith(".") else f"{note}." for note in found]
