"""Figure 7: confidence sets of several networks, against their deterministic versions and other posteriors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from experiments.compared import Network, Settings, Variant, check, line, measure, parts, runs
from experiments.experiment import Experiment, Results, Row, markdown
from experiments.fig7_claims import LABELS, OF_WHOM, SINGLE, judge
from experiments.panels import panels
from experiments.published_noise import NAME as PUBLISHED
from experiments.replicated import IMAGES
from experiments.rising import HOW_RISING
from experiments.spreads import over
from experiments.trained import DETERMINISTIC, TAUS, TEMPERED, Training, accuracy, in_set, untempered
from mcrepar.plots.style import coloured, legend, light, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(results: Results) -> Figure:
    """Accuracy and size of the confidence sets, means and thin replications, and the accuracy of every variant."""
    nets = [net.name for net in results.settings.networks]
    shown = [name for name in LABELS if runs(results, name)]
    colours = {name: light("muted") for name in shown} | dict(coloured([name for name in OF_WHOM if name in shown]))
    marks = dict(zip(nets, zip(cycle("osD^vPX<>"), cycle(("-", "--", ":", "-."))), strict=False))
    heads = [("Accuracy of the confidence set", "threshold of confidence", ""),
             ("Its share of the test data", "threshold of confidence", ""),
             ("Accuracy on all test data", "mean and deviation over replications", "")]  # fmt: skip
    figure, (left, middle, right) = panels(heads, (14, 4.4))
    for place, name in enumerate(shown):
        for each in runs(results, name):
            marker, style = marks[each.network]
            look = {"color": colours[name], "marker": marker, "markersize": 4}
            for axes, field in ((left, "accuracy"), (middle, "share")) if name in OF_WHOM else ():
                for row in each.rows if len(each.rows) > 1 else ():
                    axes.plot(TAUS, line([row], field), color=colours[name], alpha=0.3, linewidth=0.9)
                axes.plot(TAUS, line(each.rows, field), linestyle=style, **look)
            s = over(each.rows, accuracy)
            if s.mean is not None:
                y = place + 0.6 * ((nets.index(each.network) + 0.5) / len(nets) - 0.5)
                right.errorbar(s.mean, y, xerr=s.deviation, capsize=3, linestyle="none", **look)
    for name in (name for name in OF_WHOM if name in shown):
        left.plot([], [], color=colours[name], label=LABELS[name])
    for name, (marker, style) in marks.items():
        middle.plot([], [], marker=marker, linestyle=style, markersize=4, color=light("muted"), label=name)
    right.set_yticks(range(len(shown)), [LABELS[name] for name in shown])
    right.set_ylim(len(shown) - 0.5, -0.5)  # the first at the top
    for axis in (left.yaxis, middle.yaxis, right.xaxis):
        percent(axis)
    for axes in (left, middle):
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure


def _score(name: str) -> Callable[[Row], float | None]:
    return lambda row: row["scores"][name]


# Heading, quantity of a run, and the digits of its mean and deviation; None is percent.
COLUMNS: tuple[tuple[str, Callable[[Row], float | None], str | None], ...] = (
    ("accuracy, %", accuracy, None),
    ("nll", _score("nll"), ".3f"),
    ("ECE", _score("ece"), ".3f"),
    ("mutual information, nats", _score("mutual_information"), ".1e"),
    ("data of confidence >= 0.75, %", in_set(0.75, "share"), None),
    ("data of confidence 1, %", in_set(1.0, "share"), None),
    ("accuracy there, %", in_set(1.0, "accuracy"), None),
    ("KL at the end, nats", lambda row: row["curves"]["kl"][-1], ",.0f"),
)


def tell(results: Results) -> str:
    """The scores of every network and variant over replications."""
    rows = []
    for name in LABELS:
        for each in runs(results, name):
            spreads = [(over(each.rows, quantity), digits) for _, quantity, digits in COLUMNS]
            cells = [s.percent() if digits is None else s.text(digits) for s, digits in spreads]
            count = f"{len(each.rows)}" + (f" ({each.diverged} diverged)" if each.diverged else "")
            rows.append([each.network, LABELS[name], count, *(cells if each.rows else ["-"] * len(cells))])
    header = ["network", "training", "runs", *(heading for heading, _, _ in COLUMNS)]
    how = "Mean ± deviation over the runs that ended; a deterministic network has one vote, so that it is always sure"
    return f"{how}:\n\n{markdown(header, rows)}"


# ---- the trainings

_ONCE = ("published",)  # a forward of the published code takes four times as long


def _variants(shared: Mapping[str, str]) -> tuple[Variant, ...]:
    """All variants; `shared` has the keys of those that other experiments train too, by which runs are found."""
    estimate = {"kl_method": "stats", "n_mc_iter": 100}
    whole = {"kl_schedule": "graves"}  # the paper's objective: the whole KL from the first step, prior N(0, 1)
    options: dict[str, Mapping[str, Any]] = {
        "deterministic": DETERMINISTIC,
        "radial": {"posterior": "radial", **TEMPERED, **estimate},
        "normal": {"posterior": "normal", **TEMPERED, **estimate},
        "radial-whole": {"posterior": "radial", **whole, **estimate},
        "normal-whole": {"posterior": "normal", **whole, **estimate},
        "published": {"posterior": "radial", "forward": PUBLISHED, **whole, **estimate},
    }
    return tuple(
        Variant(name, shared.get(name, name), given, name != "deterministic", 1 if name in _ONCE else None)
        for name, given in options.items()
    )


def _training(scale: str, model: str, **changed: Any) -> Training:
    """That of fig8-left, but for what the variants choose."""
    images = untempered(IMAGES[scale])
    return replace(images, model=model, options={**images.options, **changed})


_ALL = tuple(LABELS)
_SHARED = {"radial": "m100", "radial-whole": "whole-m100"}
_FIVE = ("deterministic", "radial", "radial-whole", "normal-whole", "published")
_TWO = ("deterministic", "radial")
_LARGE = ("preact_resnet18", "preact_resnet34", "preact_resnet50", "preact_resnet101", "preact_resnet152",
          "densenet121", "densenet161", "densenet169", "densenet201")  # fmt: skip
EXPERIMENT = Experiment(
    title="Confidence sets on CIFAR-10",
    where="Figure 7 and section 5.2 (a), (b)",
    claim="Bayesian ResNets and DenseNets, Radial with M = 100, on CIFAR-10: the accuracy rises with the confidence "
    "and is above 90 % where the confidence is 1; they are at least 75 % confident on 85 to 95 % of the data, and "
    "ResNets 100 % confident on almost 90 %; the drop against deterministic versions is not significant; Gaussian "
    "posteriors could not be trained without fixes.",
    method="Each network is trained as itself (deterministic: no KL, deviations of a millionth) and with random "
    "weights: with the whole KL from the first step (prior N(0, 1), beta 1: the paper's objective), and tempered "
    "(annealed KL, beta 0.01, a prior scale learned for each tensor), which the paper says it did without: those "
    "sentences are ours. M = 100 by `stats`. Draws are true ones of the weights, one per batch, each with norm "
    "statistics of its own at the test. `published noise` is the forward of the paper's published code: it divides the "
    "noise of a layer's output by the norm over the whole activation tensor, batch included, so that it nearly "
    "vanishes at equal deviations; its accuracies are not those of a Radial posterior. The confidence of an answer "
    "is the share of draws that vote for it. At the cpu scale: a CIFAR ResNet of 8 layers (ResNet-20 with one block a "
    "stage), all trainings but `Gaussian, tempered`, three replications of each (one of `published noise`, whose "
    "forward takes four times as long), 4 epochs instead of 100, batches of 128 instead of 32 "
    "(`Radial, tempered` are the very runs of fig8-left with M = 100, `Radial, whole KL` those of convergence); and "
    "one run each, deterministic and `Radial, tempered` only, 2 epochs, of ResNet-20 and a DenseNet-BC of 16 layers "
    "(growth 12). The test asks 20 draws, and one of a deterministic network, whose draws are equal. Sentences "
    "are judged on means over replications. A limit is held or missed where the whole 95 % Student interval (three "
    f"runs or more) is on one side of it; with fewer runs, where the number is {100 * SINGLE:.0f} points from it, "
    "which is more than the sampling of 10,000 test images (0.3 to 0.5 points) and the luck of one run explain; "
    f"otherwise it is inconclusive. {HOW_RISING} The seconds below do not count trainings that were there before: "
    "theirs are in the logs of the runs. At the tiny scale scikit-learn's digits, on which nothing is judged.",
    version=2,
    settings={
        "tiny": Settings(
            _variants(_SHARED),
            (Network("small_conv", _training("tiny", "small_conv", model_options={}), _ALL, 2),),
        ),
        "cpu": Settings(
            _variants(_SHARED),
            (
                Network("resnet8", _training("cpu", "resnet20"), _FIVE, 3),
                Network("resnet20", _training("cpu", "resnet20", model_options={}, epochs=2), _TWO),
                Network("densenet_bc16_12",
                        _training("cpu", "densenet_bc100_12", model_options={"depths": [2, 2, 2]}, epochs=2), _TWO),
            ),
        ),
        "paper": Settings(
            _variants({"radial-whole": "m100"}), tuple(Network(name, _training("paper", name), _ALL) for name in _LARGE)
        ),
    },
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
    check=check,
    undecided={"cpu": "A ResNet of 8 layers after 4 epochs, and two larger ones after 2, can neither confirm nor "
                      "refute sentences about nine deep networks after 100."},
)  # fmt: skip
