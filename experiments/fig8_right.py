"""Figure 8, right: how much the size of the confidence set varies between trainings, for M = 1 and M = 100."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.experiment import Finding, Results, markdown
from experiments.panels import panels
from experiments.significance import HOW_JUDGED, difference, interval_text, ratio, similar
from experiments.studies import (
    BRAIN,
    FEW,
    MANY,
    TRUE_DRAWS,
    WEAK,
    WHOLE_KL,
    Settings,
    Study,
    ended,
    estimates,
    groups,
    line,
    study_experiment,
    whole_kl,
)
from experiments.training_runs import TAUS, confidence_set
from mcrepar.plots.style import coloured, legend, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIGH = 0.9  # the threshold that is judged
NEAR = 0.05  # of the data: sizes that differ by less are called similar
ARMS = {"brain": "", "brain-beta1": ", beta = 1"}  # what a sentence adds


def judge(results: Results) -> list[Finding]:
    """Similar on average, and less spread out with M = 100, for each arm."""
    return [finding for study in results.settings.studies for finding in _judge(results, study)]


def _judge(results: Results, study: Study) -> list[Finding]:
    found = groups(results, study.name)
    sizes = {
        tau: (few, many) for tau, few, many in zip(TAUS, *(line(found[m], "share") for m in (FEW, MANY)), strict=True)
    }
    few, many = sizes[HIGH]
    spreads, gap = ratio(few, many), difference(many, few)
    ratios = {tau: ratio(*both).value for tau, both in sizes.items()}
    listed = ", ".join(f"{tau:g}: {r:.2g}" for tau, r in ratios.items() if r is not None)
    return [
        Finding(
            f"On average the confidence sets are similar in size (within {100 * NEAR:g} points of the data"
            f"{ARMS[study.name]}).",
            f"at a confidence of {HIGH:g}: {few.percent()} with M = 1, {many.percent()} with M = 100, difference in "
            f"points {interval_text(gap)}",
            similar(gap, NEAR),
        ),
        Finding(
            f"With M = 100 the size varies less{ARMS[study.name]}.",
            f"{spreads}; by threshold, {listed or 'not known'}",
            spreads.larger(),
        ),
    ]


def draw(results: Results) -> Figure:
    """Every replication as a dot, per threshold, a panel for each arm."""
    studies = results.settings.studies
    heads = [(f"Size of the confidence set{ARMS[s.name]}", "threshold of confidence", "share of the data")
             for s in studies]  # fmt: skip
    figure, grid = panels(heads, (7.2 * len(studies), 4.0))
    for axes, study in zip(grid, studies, strict=True):
        for k, (label, colour) in enumerate(coloured([FEW, MANY])):
            rows = groups(results, study.name)[label]
            for place, (tau, s) in enumerate(zip(TAUS, line(rows, "share"), strict=True)):
                x = place + 0.3 * (k - 0.5)
                axes.plot([x] * len(rows), [confidence_set(row, tau)["share"] for row in rows], "o", color=colour,
                          markersize=4, alpha=0.7, label=label if place == 0 else None)  # fmt: skip
                if s.mean is not None:
                    axes.errorbar(x + 0.08, s.mean, s.std or 0.0, fmt="_", color=colour, capsize=3)
        axes.set_xticks(range(len(TAUS)), [f"{tau:g}" for tau in TAUS])
        percent(axes.yaxis)
        legend(axes, loc="lower left")
    return figure


def tell(results: Results) -> str:
    """Means and standard deviations."""
    texts = []
    for study in results.settings.studies:
        found = groups(results, study.name).items()
        rows = [[name, *(s.percent() for s in line(runs, "share"))] for name, runs in found]
        how = f"{study.training.model}{ARMS[study.name]}, {ended(results, study)}"
        table = markdown(["", *map(str, TAUS)], rows)
        texts.append(f"Share of the test data by threshold, {how}, in percent:\n\n{table}")
    return "\n\n".join(texts)


def _settings(scale: str, count: int) -> Settings:
    """The runs of table2 on brains; below the paper's scale, where the KL is tempered, the whole KL too."""
    first = Study("brain", BRAIN[scale], estimates(1, 100), count)
    second = Study("brain-beta1", whole_kl(BRAIN[scale]), estimates(1, 100), count)
    return Settings((first,) if scale == "paper" else (first, second))


EXPERIMENT = study_experiment(
    title="The spread of the confidence set's size",
    where="Figure 8, right, and section 5.3 (b)",
    claim="Over replicated trainings of the 3D classifier the confidence sets of M = 1 and M = 100 are similar in size "
    "on average, but with M = 100 the variance of the size is much smaller.",
    method="The runs are those of table2 on the simulated brain volumes (no patient data: SIMULATED labels): the "
    "paper's 3D U-Net encoder, Radial weights, true draws, M by `stats`. At the cpu scale: volumes of 20 x 24 x 20 "
    "instead of 105 x 127 x 105, 12 epochs instead of 100, a tempered and annealed KL (beta 0.001) with the best prior "
    f"scale for each tensor, five replications. {WHOLE_KL} Both sentences are judged at a threshold of {HIGH:g}; all "
    f"thresholds are shown. Sizes are similar where the whole interval of their difference is within {100 * NEAR:g} "
    f"points. {HOW_JUDGED} {TRUE_DRAWS}",
    version=2,
    settings={
        "tiny": _settings("tiny", 2),
        "cpu": _settings("cpu", 5),
        "paper": _settings("paper", 10),
    },
    judge=judge,
    draw=draw,
    tell=tell,
    undecided={"cpu": WEAK},
)
