"""The tables of quality.py, simulation.py, gradient_noise.py and moments_quality.py in Markdown, for readme.py."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from scipy import stats

TWIN, ENSEMBLE, SCALED = "deterministic", "ensemble of 5", "temperature scaling"
OTHERS = {
    ENSEMBLE,
    "dropout",
    "last-layer Laplace",
    SCALED,
    "ivon",
    "bayesian-torch",
    "the paper's objective",
}  # methods that are not ours, beside those whose name begins with the twin's
TITLES = {"fashion-lenet5": "Fashion-MNIST, LeNet-5, 20 epochs; OOD: MNIST",
          "cifar10-resnet8": "CIFAR-10, ResNet-8, 8 epochs; OOD: SVHN crops",
          "cifar10-resnet20": "CIFAR-10, ResNet-20, 24 epochs; OOD: SVHN crops"}  # fmt: skip


def is_ours(method: str) -> bool:
    """Whether it is a setting of ours, and not something to compare with."""
    return method not in OTHERS and not method.startswith(TWIN)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval over seeds; 0 where there is one."""
    mean, count = sum(values) / len(values), len(values)
    if count == 1:
        return mean, 0.0
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1) / count)
    return mean, float(stats.t.ppf(0.975, count - 1)) * error


def _interval(values: Sequence[float], digits: int) -> str:
    """The mean, with a 95 % interval over seeds where there are several; a dash where there is no such number."""
    if any(math.isnan(v) for v in values):
        return "-"
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" if len(values) == 1 else f"{mean:.{digits}f} ± {error:.{digits}f}"


def by_method(found: dict[str, Any], part: str = "test") -> dict[str, dict[str, list[Any]]]:
    """The runs of tasks with classes that have scores of a part: task, method, seeds."""
    by: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for run in found.values():
        if run["task"] in TITLES and part in run:
            by[run["task"]][run["method"]].append(run)
    return by


def ood(run: dict[str, Any]) -> dict[str, float]:
    """AUROC of the out-of-distribution set, by entropy and by mutual information."""
    return next(value for key, value in run.items() if key.startswith("ood "))


def corrupted(run: dict[str, Any], score: str) -> float:
    """The mean of a score over the corruptions of the test images."""
    rows = [value for key, value in run.items() if key.startswith("corrupted ")]
    return float(sum(row[score] for row in rows) / len(rows))


def _single(run: dict[str, Any]) -> bool:
    """Whether it predicts with one network, so that no draws can disagree."""
    return bool(run["test"]["mutual_information"] < 1e-6)


COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "accuracy": lambda run: run["test"]["accuracy"],
    "NLL": lambda run: run["test"]["nll"],
    "ECE": lambda run: run["test"]["ece"],
    "confident half": lambda run: run["test"]["accuracy_most_confident_half"],
    "mutual inf.": lambda run: math.nan if _single(run) else run["test"]["mutual_information"],
    "OOD, entropy": lambda run: ood(run)["entropy"],
    "OOD, mutual inf.": lambda run: math.nan if _single(run) else ood(run)["mutual_information"],
    "corrupted: accuracy": lambda run: corrupted(run, "accuracy"),
    "corrupted: NLL": lambda run: corrupted(run, "nll"),
}
CONTRAST, BEST_OOD = "lower contrast: accuracy", "OOD"  # which costs most; by entropy without draws
FURTHER_COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    CONTRAST: lambda run: run["corrupted contrast"]["accuracy"],
    BEST_OOD: lambda run: ood(run)["entropy" if _single(run) else "mutual_information"],
}
CORRUPTED_METHODS = (
    "deterministic",
    "deterministic, weight decay .002",
    "deterministic, Adam .002",
    "deterministic, Adam .01",
    "deterministic, SGD x 4",
    "fan-in .3, auto, Adam .002",
    "fan-in .3, auto",
    "fan-in .5, auto, Adam .002",
    "fan-in .5, auto",
    "fan-in .5, auto, SGD x 4",
    "fan-in .2, auto, SGD x 4",
    "rank1 normal .3",
    "last-layer Laplace",
)
SHORT_COLUMNS = ("accuracy", "NLL", "ECE", "mutual inf.", "OOD, entropy", "OOD, mutual inf.", "corrupted: accuracy")
TUNED = {
    "fashion-lenet5": "deterministic, weight decay .002",
    "cifar10-resnet20": "deterministic, weight decay .001",
}  # the weight decay with the best validation likelihood
SHORT_METHODS = {
    "deterministic": "deterministic network",
    "tuned": "the same, weight decay tuned",
    "temperature scaling": "the first with temperature scaling",
    "last-layer Laplace": "the first with a last-layer Laplace approximation",
    "dropout": "MC dropout",
    "ivon": "IVON",
    "bayesian-torch": "bayesian-torch",
    "the paper's objective": "the paper's objective",
    "rank1 normal .3": "rank-1 factors",
    "fan-in .3, auto, Adam .002": "the default, Adam at 0.002",
    "fan-in .5, auto, Adam .002": "the same, `scale=0.5`",
    "fan-in .3, auto": "the default, Adam at 0.01",
    "fan-in .2, one draw, SGD": "hierarchical prior, `scale=0.2`",
    "ensemble of 5": "ensemble of five deterministic networks",
}  # without the settings that were compared to choose one
SHORT_TASKS = ("fashion-lenet5", "cifar10-resnet20")


def mean_of(runs: Sequence[dict[str, Any]], column: str) -> float:
    """The mean of a column over seeds; NaN where there is no such number."""
    return sum(COLUMNS[column](run) for run in runs) / len(runs)


def _table(first: str, methods: dict[str, list[Any]], columns: Sequence[str]) -> list[str]:
    """A row for every method: its seeds, and mean and interval of every column."""
    scores = {**COLUMNS, **FURTHER_COLUMNS}
    lines = [f"| {first} | seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for method, runs in methods.items():
        cells = [_interval([scores[column](run) for run in runs], 3) for column in columns]
        lines.append(f"| {method} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def classes_block(found: dict[str, Any]) -> list[str]:
    """Every method on every task with classes: mean and 95 % interval over seeds."""
    by = by_method(found)
    lines = [
        "Test parts; every method has the same network, data, epochs and augmentation, ours have the whole KL "
        "(beta = 1) and predict with 20 draws. An interval is a 95 % interval over seeds. OOD is the AUROC by entropy "
        "and by mutual information, mutual inf. the mean mutual information of the test part in nats, and the last two "
        "columns are means over four corruptions (Gaussian noise, blur, contrast, pixelate) of 2,000 test images "
        "(`benchmarks/quality.py`)."
    ]
    for task, title in TITLES.items():
        if task in by:
            lines += ["", f"{title}:", "", *_table("method", by[task], tuple(COLUMNS))]
    return lines


def short_classes_block(found: dict[str, Any]) -> list[str]:
    """What we recommend and what people would use in its place."""
    by = by_method(found)
    lines = [
        "Test parts, with 95 % intervals over seeds where there are several; network, data and epochs are the same, "
        "ours have the whole KL and 20 draws. Mutual inf. is the mean mutual information of the test part in nats, "
        "OOD the AUROC with which entropy or mutual information detects images of another data set; corrupted is the "
        "mean accuracy over four corruptions of the test images."
    ]
    for task in SHORT_TASKS:
        runs = {**by[task], "tuned": by[task].get(TUNED[task])}
        methods = {name: seeds for key, name in SHORT_METHODS.items() if (seeds := runs.get(key))}
        lines += ["", f"{TITLES[task]}:", "", *_table("method", methods, SHORT_COLUMNS)]
    return lines


def fashion_block(found: dict[str, Any]) -> list[str]:
    """The deterministic network and what we recommend, on the task that most seeds were run on."""
    runs = by_method(found)["fashion-lenet5"]
    shown = ("fan-in .3, auto, Adam .002", "fan-in .5, auto, Adam .002")
    methods = {"deterministic, weight decay tuned": runs[TUNED["fashion-lenet5"]],
               **{SHORT_METHODS[name]: runs[name] for name in shown}}  # fmt: skip
    head = (
        "LeNet-5 on Fashion-MNIST, beta = 1 (95 % intervals; OOD: AUROC on MNIST by mutual information, without draws "
        "by entropy):"
    )
    return [head, "", *_table("network", methods, ("accuracy", "NLL", "ECE", "mutual inf.", BEST_OOD))]


def corrupted_block(found: dict[str, Any]) -> list[str]:
    """What corruptions cost LeNet-5, by method and learning rate."""
    runs = by_method(found)["fashion-lenet5"]
    methods = {f"`{name}`" if is_ours(name) else name: runs[name] for name in CORRUPTED_METHODS if name in runs}
    head = "LeNet-5 on 2,000 test images of Fashion-MNIST in four corruptions, means and 95 % intervals over seeds:"
    return [head, "", *_table("method", methods, ("accuracy", "corrupted: accuracy", "corrupted: NLL", CONTRAST))]


UNEVEN = 0.01  # a p value of the test of uniform ranks below which a number is marked


def simulation_block(found: dict[str, Any]) -> list[str]:
    """The share of true coefficients outside of the central 90 % of their posteriors, a table for every model."""
    by: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in found["rows"]:
        by[row["model"]][f"{row['posterior']}, {row['optimizer']}"][row["prior"]] = row
    priors = list(dict.fromkeys(row["prior"] for row in found["rows"]))
    lines = [
        "True coefficients outside of the central 90 % of their posterior, in per cent (10 is right), over 500 "
        "simulated data sets of 30 examples and 4 coefficients (100 for radial; standard errors are below 1.5, for "
        f"radial below 3; `benchmarks/simulation.py`). A * marks ranks that are not uniform (p < {UNEVEN:g} by a "
        "chi-square test), for which a posterior of the wrong shape suffices. The hierarchical prior has the marginal "
        "distribution of the normal one:"
    ]
    for model, rows in by.items():
        cells = (
            [f"{100 * r['outside 90 %']:.0f}{'*' * (r['p of uniform ranks'] < UNEVEN)}" if r else "-"
             for r in (row.get(prior, {}) for prior in priors)]
            for row in rows.values()
        )  # fmt: skip
        titles = " | ".join(f"{prior} prior" for prior in priors)
        lines += ["", f"{model.capitalize()}:", "", f"| posterior, optimizer | {titles} |"]
        lines += ["|---|" + "---|" * len(priors)]
        lines += [f"| {name} | {' | '.join(row)} |" for name, row in zip(rows, cells, strict=True)]
    return lines


def noise_block(found: dict[str, Any]) -> list[str]:
    """Shares of the gradient's variance."""
    forwards = list(dict.fromkeys(name for run in found["runs"].values() for name in run["forwards"]))
    lines = [
        f"The variance of the gradient of a trained network, batch {found['batch size']}, over that of the minibatch "
        "alone: the noise that a draw of the weights adds, by each forward, and that of the KL estimated from M draws "
        "(`benchmarks/gradient_noise.py`):", "",
        f"| network | parameters | {' | '.join(forwards)} | KL, M = 1 | KL, M = 100 |",
        "|---|---|" + "---|" * (len(forwards) + 2),
    ]  # fmt: skip
    for name, run in found["runs"].items():
        for kind in ("means", "log scales"):
            unit = sum(row[kind]["minibatch"] for row in run["forwards"].values()) / len(run["forwards"])
            rows = [run["forwards"].get(name) for name in forwards]
            cells = ["-" if row is None else f"{row[kind]['weights'] / unit:.2f}" for row in rows]
            cells += [f"{run['kl'][draws][kind] / unit:.1g}" for draws in ("1", "100")]
            lines.append(f"| {name.replace('_', ' ')} | {kind} | {' | '.join(cells)} |")
    return lines


def _missed(key: str, value: float, drawn: float) -> bool:
    """Whether a score by moments is too far from that by draws."""
    if key.startswith("rank"):
        return value < 0.95
    return key != "accuracy" and abs(value - drawn) > (0.005 if key == "ece" else 0.01)


def moments_quality_block(found: dict[str, Any]) -> list[str]:
    """Predictions by moments beside 100 draws, and beside 100 other draws."""
    keys = ("nll", "ece", "accuracy", "OOD AUROC by entropy", "OOD AUROC by mutual_information",
            "rank correlation of entropy", "rank correlation of mutual_information")  # fmt: skip
    lines = [
        "Trained networks on their test parts by 100 draws, by moments, and by 100 other draws "
        "(`benchmarks/moments_quality.py`). The goals for moments: NLL and AUROC within 0.01 of the draws, ECE within "
        "0.005, ranks at least 0.95; a star is a goal that was missed:", "",
        "| network | by | NLL | ECE | accuracy | OOD, entropy | OOD, mutual inf. | ranks of entropy | of mutual inf. |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, run in found["runs"].items():
        for way, row in run.items():
            missed = {key for key in keys if way == "moments" and _missed(key, row[key], run["draws"].get(key, 0.0))}
            cells = [f"{row[key]:.3f}{'*' * (key in missed)}" if key in row else "-" for key in keys]
            lines.append(f"| {name.replace('_', ' ')} | {way} | {' | '.join(cells)} |")
    return lines
