"""Figure 8, left: the accuracy of confidence sets for several numbers of Monte Carlo iterations, replicated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.experiment import Finding, Results, all_held, markdown
from experiments.panels import panels
from experiments.significance import (
    HOW_JUDGED,
    HOW_RISING,
    all_higher,
    interval_text,
    listed,
    mean_of,
    over,
    ratio,
    rises,
    similar,
)
from experiments.studies import (
    EXACT,
    FEW,
    IMAGES,
    MANY,
    TRUE_DRAWS,
    Settings,
    Study,
    ended,
    estimates,
    gains,
    groups,
    line,
    means,
    study_experiment,
)
from experiments.training_runs import TAUS, outside
from mcrepar.plots.style import coloured, legend, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOW = 0.9  # what is below this confidence is called low
NEAR = 0.02  # accuracies that differ by less are called the same


def judge(results: Results) -> list[Finding]:
    """The paper's sentences on M, and the exact KL beside them."""
    (study,) = results.settings.studies
    rows = groups(results, study.name)
    lines = {name: line(found, "accuracy") for name, found in rows.items()}
    more, gaps = gains(rows, MANY, FEW, TAUS), gains(rows, EXACT, MANY, TAUS)
    few, many = (over(rows[name], lambda row: outside(row, LOW)) for name in (FEW, MANY))
    spreads = ratio(few, many)
    return [
        Finding(
            "The accuracy rises with the threshold of confidence, for every M.",
            "; ".join(f"{name}: {s[0].percent()} at 0.5, {s[-1].percent()} at 1" for name, s in lines.items()),
            all_held(rises(found) for found in rows.values()),
        ),
        Finding(
            "With M = 100 the accuracy is higher at any confidence than with M = 1.",
            f"M = 100 minus M = 1 in points, mean over the thresholds {interval_text(mean_of(more))}; "
            f"{listed(TAUS, more)}",
            all_higher(more),
        ),
        Finding(
            "With M = 1 the accuracy on the examples of low confidence varies more.",
            f"accuracy below a confidence of {LOW:g}: {few.percent()} with M = 1, {many.percent()} with M = 100; "
            f"{spreads}",
            spreads.larger(),
        ),
        Finding(
            f"The exact KL, which needs no iteration, gives what M = 100 gives (within {100 * NEAR:g} points).",
            f"exact minus M = 100 in points, mean over the thresholds {interval_text(mean_of(gaps))}; "
            f"{listed(TAUS, gaps)}",
            similar(mean_of(gaps), NEAR),
            ours=True,
        ),
    ]


def draw(results: Results) -> Figure:
    """Accuracy and size against the threshold: the mean, and every replication."""
    (study,) = results.settings.studies
    heads = [
        ("Accuracy of the confidence set", "threshold of confidence", ""),
        ("Its size", "threshold of confidence", ""),
    ]
    figure, both = panels(heads, (9.6, 4.0))
    found = groups(results, study.name)
    for label, colour in coloured(list(found)):
        for axes, quantity in zip(both, ("accuracy", "share"), strict=True):
            for row in found[label]:
                axes.plot(TAUS, means(line([row], quantity)), "-", color=colour, alpha=0.3, linewidth=0.9)
            axes.plot(TAUS, means(line(found[label], quantity)), "o-", color=colour, markersize=4, label=label)
    for axes in both:
        percent(axes.yaxis)
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)
    return figure


def tell(results: Results) -> str:
    """The numbers by M and threshold."""
    (study,) = results.settings.studies
    header = ["", *(f"{tau:g}" for tau in TAUS)]
    accuracy, sizes = (
        [[name, *(s.percent() for s in line(rows, quantity))] for name, rows in groups(results, study.name).items()]
        for quantity in ("accuracy", "share")
    )
    how = f"{study.training.model} on {study.training.data}, {ended(results, study)}"
    return (
        f"{how}; mean and standard deviation over replications, in percent. Accuracy of the confidence set:\n\n"
        f"{markdown(header, accuracy)}\n\nIts share of the test data:\n\n{markdown(header, sizes)}"
    )


def _settings(scale: str, name: str, replications: int) -> Settings:
    return Settings((Study(name, IMAGES[scale], estimates(1, 17, 100, None), replications),))


EXPERIMENT = study_experiment(
    title="The accuracy of confidence sets against the number of iterations",
    where="Figure 8, left, and section 5.2 (c)",
    claim="Replicated trainings of ResNet-50 on CIFAR-10 with M = 1, 17 (the largest that fits a GPU the usual way) "
    "and 100: the accuracy rises with the threshold of confidence; with M = 100 it is higher at any confidence; with M "
    "= 1 it varies more on the examples of low confidence.",
    method="Radial weights, true draws (one per batch), Normal prior; M is that of the KL, by `stats`, whose "
    "distribution is that of the paper's estimate; `exact` is its limit. At the cpu scale: a CIFAR ResNet of 8 layers "
    "(ResNet-20 with one block a stage) instead of ResNet-50, 4 epochs instead of 100, batches of 128, a tempered and "
    "annealed KL (beta 0.01) with a learned prior scale for each tensor, three replications, 20 draws at the test. At "
    "the tiny scale: scikit-learn's digits. The confidence of an answer is the share of draws that vote for it. "
    f"{HOW_JUDGED} {HOW_RISING} What is known (docs/math.md, D4): the variance of the KL's estimate falls as 1/M, and "
    f"for Normal weights that of its gradient. {TRUE_DRAWS}",
    version=2,
    settings={"tiny": _settings("tiny", "digits", 2), "cpu": _settings("cpu", "resnet8", 3),
              "paper": _settings("paper", "preact_resnet50", 5)},
    judge=judge,
    draw=draw,
    tell=tell,
    undecided={"cpu": "A ResNet of 8 layers after 4 epochs with a tempered KL can neither confirm nor refute sentences "
                      "about ResNet-50 after 100."},
)  # fmt: skip
