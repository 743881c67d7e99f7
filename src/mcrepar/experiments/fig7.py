"""Figure 7: confidence sets of several networks, against their deterministic versions and other posteriors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcrepar.experiments.experiment import Bench, Experiment, Finding, Part, Results, Row, markdown
from mcrepar.experiments.panels import panels
from mcrepar.experiments.published_noise import NAME as PUBLISHED
from mcrepar.experiments.trained import DETERMINISTIC, TAUS, TEMPERED, Training, confidence_set, need_data, trained
from mcrepar.plots.style import coloured, legend, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The paper's own objective: prior N(0, 1), the whole KL from the first step.
WHOLE: Mapping[str, Any] = {"kl_schedule": "graves"}
ESTIMATE: Mapping[str, Any] = {"kl_method": "stats", "n_mc_iter": 100}


@dataclass(frozen=True)
class Variant:
    """A row of the comparison: what it is called, and how it is trained."""

    label: str
    options: Mapping[str, Any]


VARIANTS = {
    "deterministic": Variant("deterministic", DETERMINISTIC),
    "radial": Variant("Radial, tempered", {"posterior": "radial", **TEMPERED, **ESTIMATE}),
    "normal": Variant("Gaussian, tempered", {"posterior": "normal", **TEMPERED, **ESTIMATE}),
    "radial-whole": Variant("Radial, whole KL", {"posterior": "radial", **WHOLE, **ESTIMATE}),
    "normal-whole": Variant("Gaussian, whole KL", {"posterior": "normal", **WHOLE, **ESTIMATE}),
    "published": Variant("published noise, whole KL",
                         {"posterior": "radial", "forward": PUBLISHED, **WHOLE, **ESTIMATE}),
}  # fmt: skip
DROP = 0.02  # the largest loss of accuracy that is called not significant
TRAINED = 0.5  # the accuracy on ten classes from which a network is called trained


@dataclass(frozen=True)
class Network:
    """A network of the comparison.

    Args:
        name: in keys and tables.
        model: a name of MODELS.
        variants: names of VARIANTS.
        options: of the network.
    """

    name: str
    model: str
    variants: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        data: a name of DATASETS.
        networks: that are compared.
        asked: draws of the weights that vote on the test data.
        options: of all trainings: how long and how fast.
    """

    data: str
    networks: tuple[Network, ...]
    asked: int
    options: Mapping[str, Any]


def parts(settings: Settings) -> list[Part]:
    """One training for each network and variant."""
    return [
        Part(f"{net.name}-{name}", {"kind": "run", "network": net.name, "variant": name})
        for net in settings.networks
        for name in net.variants
    ]


def measure(part: Part, bench: Bench) -> Row:
    """One training, and what it answers."""
    settings: Settings = bench.settings
    (net,) = (n for n in settings.networks if n.name == part.given["network"])
    options = {**settings.options, "model_options": dict(net.options), **VARIANTS[part.given["variant"]].options}
    return trained(Training(settings.data, net.model, settings.asked, options), bench)


def check(settings: Settings, root: Path | None) -> None:
    """Refuse where data are missing."""
    need_data([Training(settings.data, net.model, settings.asked) for net in settings.networks], root)


def runs(results: Results, variant: str) -> dict[str, Row]:
    """The trainings of a variant that ended, by network."""
    return {row["network"]: row for row in results.of("run") if row["variant"] == variant and not row["failed"]}


def judge(results: Results) -> list[Finding]:
    """The caption's and the section's sentences about Radial networks, then Gaussian ones, then the published noise."""
    told = results.settings.data == "cifar10"  # the sentences are about CIFAR-10
    found = [*_confidence(runs(results, "radial"), told), _drop(results, "radial", told, ours=False)]
    if runs(results, "radial-whole"):
        found.append(_drop(results, "radial-whole", told, ours=False))
    found.append(_gaussian(results, told))
    return [*found, *_published(results)]


def _listed(rows: Mapping[str, Row], quantity: Callable[[Row], float]) -> str:
    return ", ".join(f"{name} {100 * quantity(row):.1f} %" for name, row in rows.items()) or "no run ended"


def _confidence(rows: Mapping[str, Row], told: bool) -> list[Finding]:
    def accuracy(row: Row) -> float:
        return float(confidence_set(row, 1.0)["accuracy"] or 0.0)

    def sure(row: Row) -> float:
        return float(confidence_set(row, 0.75)["share"])

    return [
        Finding(
            "The accuracy rises with the confidence (Radial, tempered).",
            _listed(rows, lambda row: row["scores"]["accuracy"]) + " in all; " + _listed(rows, accuracy) + " at 1",
            bool(rows) and all(_rises(row) for row in rows.values()),
        ),
        Finding(
            "All networks are right on more than 90 % of the data of confidence 1 (Radial, tempered).",
            _listed(rows, accuracy),
            bool(rows) and all(accuracy(row) > 0.9 for row in rows.values()) if told else None,
        ),
        Finding(
            "All networks are at least 75 % confident on at least 85 % of the data (Radial, tempered).",
            _listed(rows, sure),
            bool(rows) and all(sure(row) >= 0.85 for row in rows.values()) if told else None,
        ),
    ]


def _rises(row: Row) -> bool:
    known = [s["accuracy"] for s in row["sets"] if s["accuracy"] is not None]
    return all(b >= a - 0.005 for a, b in pairwise(known))


def drops(results: Results, variant: str) -> dict[str, float]:
    """How much accuracy a variant loses against the deterministic network."""
    plain, other = runs(results, "deterministic"), runs(results, variant)
    return {name: plain[name]["scores"]["accuracy"] - row["scores"]["accuracy"]
            for name, row in other.items() if name in plain}  # fmt: skip


def _drop(results: Results, variant: str, told: bool, ours: bool) -> Finding:
    lost = drops(results, variant)
    listed = ", ".join(f"{name} {100 * value:+.1f}" for name, value in lost.items())
    return Finding(
        f"The drop against the deterministic network is small: at most {100 * DROP:.0f} points "
        f"({VARIANTS[variant].label}).",
        f"drop in points: {listed or 'no run ended'}",
        bool(lost) and max(lost.values()) <= DROP if told else None,
        ours,
    )


def _gaussian(results: Results, told: bool) -> Finding:
    """Without tricks: neither pretraining nor annealing nor a smaller weight of the KL."""
    texts, trains = [], {}
    for variant in ("radial-whole", "normal-whole"):
        rows = [row for row in results.of("run") if row["variant"] == variant]
        known = [row["scores"]["accuracy"] for row in rows if not row["failed"]]
        trains[variant] = bool(known) and min(known) >= TRAINED and len(known) == len(rows)
        listed = ", ".join(
            f"{row['network']} " + ("diverged" if row["failed"] else f"{100 * row['scores']['accuracy']:.1f} %")
            for row in rows
        )
        texts.append(f"{VARIANTS[variant].label}: {listed or 'not run'}")
    return Finding(
        "Without fixes a Radial posterior can be trained, a Gaussian one cannot (trained: from 50 % accuracy).",
        "; ".join(texts) + f"; with fixes (tempered), Gaussian: "
        f"{_listed(runs(results, 'normal'), lambda row: row['scores']['accuracy'])}",
        trains["radial-whole"] and not trains["normal-whole"] if told else None,
    )


def _published(results: Results) -> list[Finding]:
    """How random the published network is, beside a true Radial one of the same objective."""
    shown = runs(results, "published")
    if not shown:
        return []
    true = runs(results, "radial-whole")
    listed = "; ".join(
        f"{name}: accuracy {100 * row['scores']['accuracy']:.1f} %, mutual information "
        f"{row['scores']['mutual_information']:.1e} nats"
        + (f" (true draws: {100 * true[name]['scores']['accuracy']:.1f} %, "
           f"{true[name]['scores']['mutual_information']:.1e})" if name in true else "")
        for name, row in shown.items()
    )  # fmt: skip
    both = [(shown[name], true[name]) for name in shown if name in true]
    apart = [p["scores"]["mutual_information"] < t["scores"]["mutual_information"] for p, t in both]
    sentence = "The published noise, divided by the norm of a whole batch of activations, is nearly none: its network "
    sentence += "says less of what it does not know than one with true Radial draws."
    return [
        _drop(results, "published", True, ours=True),
        Finding(sentence, listed, all(apart) if apart else None, True),
    ]


def draw(results: Results) -> Figure:
    """Accuracy and size of the confidence sets, and the accuracy of every variant."""
    nets = [net.name for net in results.settings.networks]
    heads = [("Accuracy of the confidence set", "threshold of confidence", ""),
             ("Its size", "threshold of confidence", ""), ("Accuracy on all test data", "", "")]  # fmt: skip
    figure, (left, middle, right) = panels(heads, (14, 4.4))
    for (name, colour), style in zip(coloured(nets), ("-", "--", ":", "-.") * len(nets), strict=False):
        for variant, marker, alpha in (("radial", "o", 1.0), ("published", "x", 0.5)):
            row = runs(results, variant).get(name)
            for axes, column in ((left, "accuracy"), (middle, "share")):
                if row is not None:
                    values = [s[column] for s in row["sets"]]
                    label = f"{name}, {VARIANTS[variant].label}"
                    axes.plot(TAUS, values, marker + style, color=colour, markersize=4, label=label,
                              alpha=alpha)  # fmt: skip
    shown = [name for name in VARIANTS if any(name in net.variants for net in results.settings.networks)]
    for k, (net, colour) in enumerate(coloured(nets)):
        for place, variant in enumerate(shown):
            row = runs(results, variant).get(net)
            if row is not None:
                right.barh(place + 0.8 * (k / len(nets) - 0.5), row["scores"]["accuracy"], 0.8 / len(nets),
                           color=colour, align="edge")  # fmt: skip
    right.set_yticks(range(len(shown)), [VARIANTS[name].label for name in shown])
    for axis in (left.yaxis, middle.yaxis, right.xaxis):
        percent(axis)
    for axes in (left, middle):
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=1)
    return figure


def tell(results: Results) -> str:
    """The scores of every run."""
    rows = []
    for row in results.of("run"):
        label = VARIANTS[row["variant"]].label
        if row["failed"]:
            rows.append([row["network"], label, "diverged", *[""] * 7])
            continue
        s, one = row["scores"], confidence_set(row, 1.0)
        rows.append([row["network"], label, f"{100 * s['accuracy']:.2f}", f"{s['nll']:.3f}", f"{s['ece']:.3f}",
                     f"{s['mutual_information']:.1e}", f"{100 * confidence_set(row, 0.75)['share']:.1f}",
                     f"{100 * one['share']:.1f}", "-" if one["accuracy"] is None else f"{100 * one['accuracy']:.2f}",
                     f"{row['curves']['kl'][-1]:,.0f}"])  # fmt: skip
    header = ["network", "training", "accuracy, %", "nll", "ECE", "mutual information", "data of confidence >= 0.75, %",
              "data of confidence 1, %", "accuracy there, %", "KL at the end, nats"]  # fmt: skip
    return f"{results.settings.asked} draws at the test of {results.settings.data}:\n\n{markdown(header, rows)}"


_ALL = tuple(VARIANTS)
_FOUR = ("deterministic", "radial", "normal", "published")
_FAST = {"epochs": 3, "batch_size": 128, "lr": 0.01, "lr_schedule": "onecycle", "scale_lr": 2.0, "calibration": 1024}
_PAPER = {"epochs": 100, "batch_size": 32, "calibration": 1024}
_LARGE = ("preact_resnet18", "preact_resnet34", "preact_resnet50", "preact_resnet101", "preact_resnet152",
          "densenet121", "densenet161", "densenet169", "densenet201")  # fmt: skip
EXPERIMENT = Experiment(
    title="Confidence sets on CIFAR-10",
    where="Figure 7 and section 5.2 (a), (b)",
    claim="Bayesian ResNets and DenseNets, Radial with M = 100, on CIFAR-10: the accuracy rises with the confidence "
    "and is above 90 % where the confidence is 1; they are at least 75 % confident on 85 to 95 % of the data; the drop "
    "against deterministic versions is not significant; Gaussian posteriors could not be trained without fixes.",
    method="Each network is trained as itself (deterministic: no KL, deviations of a millionth) and with random "
    "weights: tempered (annealed KL, beta 0.01, a prior scale learned for each tensor) and with the whole KL from the "
    "first step (prior N(0, 1), beta 1: the paper's objective). Draws are true ones of the weights, one per batch, "
    "each with norm statistics of its own at the test. `published noise` is the forward of the paper's published code: "
    "it divides the noise of a layer's output by the norm over the whole activation tensor, batch included, so that it "
    "nearly vanishes; its accuracies are not those of a Radial posterior. At the cpu scale: ResNet-20, a "
    "PreActResNet-18 of a quarter of the width, and a DenseNet-BC of 22 layers (growth 12); 3 epochs instead of 100, "
    "batches of 128, one run of each, 20 draws at the test. At the tiny scale scikit-learn's digits, on "
    "which the sentences are not judged.",
    version=1,
    settings={
        "tiny": Settings("digits", (Network("small_conv", "small_conv", _ALL),), 5,
                         {"epochs": 2, "batch_size": 128, "lr": 0.01, "lr_schedule": "onecycle", "scale_lr": 2.0}),
        "cpu": Settings("cifar10", (
            Network("resnet20", "resnet20", _ALL),
            Network("preact_resnet18-16", "preact_resnet18", _FOUR, {"width": 16}),
            Network("densenet_bc22_12", "densenet_bc100_12", _FOUR, {"depths": [3, 3, 3]}),
        ), 20, _FAST),
        "paper": Settings("cifar10", tuple(Network(name, name, _ALL) for name in _LARGE), 100, _PAPER),
    },
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
    check=check,
)  # fmt: skip
