"""Training curves, and how much they differ between seeds, for several numbers of Monte Carlo iterations."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from experiments.experiment import Finding, Results, Row, markdown
from experiments.panels import panels
from experiments.significance import HOW_JUDGED, Spread, difference, higher, interval_text, over, ratio, spread
from experiments.studies import (
    EXACT,
    FEW,
    IMAGES,
    MANY,
    TRUE_DRAWS,
    Settings,
    Study,
    estimates,
    groups,
    study_experiment,
)
from experiments.training_runs import accuracy, untempered
from mcrepar.plots.style import coloured, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curve(rows: list[Row], column: str) -> list[Spread]:
    """A column of the log over replications, epoch by epoch."""
    return [spread(list(values)) for values in zip(*(row["curves"][column] for row in rows), strict=True)]


def beta_of(study: Study) -> float:
    """The weight of the KL at the end."""
    return float(study.training.options.get("beta", 1.0))


def judge(results: Results) -> list[Finding]:
    """Faster and better with larger M? and less spread out?"""
    found = []
    for study in results.settings.studies:
        rows, where = groups(results, study.name), f"{study.training.model}, beta {beta_of(study):g}"
        few, many = (over(rows[name], accuracy) for name in (FEW, MANY))
        slow, fast = (over(rows[name], lambda row: statistics.fmean(row["curves"]["nll"])) for name in (FEW, MANY))
        spreads = ratio(*(over(rows[name], lambda row: row["curves"]["nll"][-1]) for name in (FEW, MANY)))
        gain, faster = difference(many, few), difference(slow, fast)
        found += [
            Finding(
                f"More iterations end with a higher accuracy ({where}).",
                f"test accuracy {few.percent()} with M = 1, {many.percent()} with M = 100, difference in points "
                f"{interval_text(gain)}",
                higher(gain),
            ),
            Finding(
                f"More iterations converge faster ({where}).",
                f"mean training nll over all epochs {_text(slow)} with M = 1, {_text(fast)} with M = 100, "
                f"difference {interval_text(faster, 1)}",
                higher(faster),
            ),
            Finding(
                f"With M = 1 the end of training varies more between seeds ({where}).",
                f"last training nll: {spreads}",
                spreads.larger(),
            ),
        ]
    return found


def _text(s: Spread) -> str:
    return s.text(",.4f" if abs(s.mean or 0.0) < 100 else ",.0f")


def draw(results: Results) -> Figure:
    """The mean curve of each M in a band of one standard deviation."""
    from matplotlib.ticker import MaxNLocator

    studies = results.settings.studies
    heads = [(f"beta {beta_of(s):g}: {what}", "epoch", "") for s in studies for what in ("training nll", "KL in nats")]
    figure, grid = panels(heads, (4.2 * len(heads), 4.0))
    colours = coloured(list(groups(results, studies[0].name)))  # of all M, the same in every panel
    for k, study in enumerate(studies):
        found = groups(results, study.name)
        for label, colour in (pair for pair in colours if pair[0] in found):
            for axes, column in zip(grid[2 * k : 2 * k + 2], ("nll", "kl"), strict=True):
                line = curve(found[label], column)
                mean = [s.mean or 0.0 for s in line]
                width = [s.std or 0.0 for s in line]
                epochs = range(1, len(line) + 1)
                axes.plot(epochs, mean, "o-" if label == EXACT else "-", color=colour, markersize=3, label=label)
                low, high = ([m + sign * w for m, w in zip(mean, width, strict=True)] for sign in (-1, 1))
                axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    for k, axes in enumerate(grid):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter("{x:,.0f}" if k % 2 else "{x:.2f}")
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)
    return figure


def tell(results: Results) -> str:
    """The last epoch and the test."""
    rows = []
    for study in results.settings.studies:
        for label, found in groups(results, study.name).items():
            if found:
                last = [_text(curve(found, column)[-1]) for column in ("nll", "kl")]
                rows.append([study.name, f"{beta_of(study):g}", label, len(found), *last,
                             over(found, accuracy).percent()])  # fmt: skip
    header = ["training", "beta", "M", "runs that ended", "nll, last epoch", "KL, last epoch", "test accuracy, %"]
    return markdown(header, rows)


def _settings(scale: str, name: str, replications: int) -> Settings:
    return Settings(
        (
            Study(name, IMAGES[scale], estimates(1, 17, 100, None), replications),
            Study(f"{name}-whole", untempered(IMAGES[scale]), estimates(1, 100), replications),
        )
    )


EXPERIMENT = study_experiment(
    title="Training curves against the number of iterations",
    where="section 1",
    claim="More Monte Carlo iterations make the variance of the estimated KL smaller, and so improve the convergence "
    "of training and the final accuracy.",
    method="The trainings of fig8-left (the same runs: they are computed once), with their curves, and beside them "
    "those of the paper's objective, the whole KL (beta 1) and prior N(0, 1), where its noise weighs most. Radial "
    "weights, true draws, M by `stats`; bands are one standard deviation over seeds. At the cpu scale: CIFAR-10, a "
    "ResNet of 8 layers (ResNet-20 with one block a stage), 4 epochs, batches of 128, three replications; with beta "
    "0.01 an annealed KL and a learned prior scale for each tensor; the runs of the whole KL with M = 100 are those of "
    f"fig7. At the tiny scale: scikit-learn's digits. {HOW_JUDGED} {TRUE_DRAWS}",
    version=2,
    settings={
        "tiny": _settings("tiny", "digits", 2),
        "cpu": _settings("cpu", "resnet8", 3),
        "paper": Settings((Study("preact_resnet50", IMAGES["paper"], estimates(1, 17, 100, None), 5),)),
    },
    judge=judge,
    draw=draw,
    tell=tell,
)
