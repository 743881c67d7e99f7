"""Figure 7: confidence sets of several networks, against their deterministic versions and other posteriors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcrepar.experiments.experiment import Bench, Experiment, Finding, Part, Results, Row, markdown
from mcrepar.experiments.panels import panels
from mcrepar.experiments.published_noise import NAME as PUBLISHED
from mcrepar.experiments.replicated import IMAGES, LEAST, Spread, difference, over
from mcrepar.experiments.trained import DETERMINISTIC, TAUS, TEMPERED, Training, in_set, need_data, trained
from mcrepar.plots.style import coloured, legend, light, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "deterministic": "deterministic",
    "radial": "Radial, tempered",
    "normal": "Gaussian, tempered",
    "radial-whole": "Radial, whole KL",
    "normal-whole": "Gaussian, whole KL",
    "published": "published noise, whole KL",
}
# Of whom the sentences are judged, and whether that is ours: the paper says that it did not reweight the KL.
JUDGED = {"radial-whole": False, "published": False, "radial": True}
DROP = 0.02  # the largest loss of accuracy that is called not significant
ALMOST = 0.87  # the share of the data that is called almost 90 %
STEP = 0.005  # a change of accuracy that is neither a rise nor a fall
SINGLE = 0.03  # how far from a limit fewer than three runs tell something: 10,000 test images and the luck of a run
TRAINED = 0.5  # the accuracy on ten classes from which a network is called trained
NEARLY_NONE = 0.1  # the share of the true draws' mutual information below which noise is called nearly none


@dataclass(frozen=True)
class Variant:
    """A way to train that networks are compared in.

    Args:
        name: a key of LABELS.
        key: in the keys of parts, from which their seeds follow: that of fig8-left where the training is the same.
        options: that differ from the network's.
        random: whether its draws differ; otherwise the test asks one.
    """

    name: str
    key: str
    options: Mapping[str, Any]
    random: bool = True


@dataclass(frozen=True)
class Network:
    """A network of the comparison.

    Args:
        name: in keys and tables.
        training: how, but for what the variants choose.
        variants: names of them.
        replications: of each, with seeds of their own.
    """

    name: str
    training: Training
    variants: tuple[str, ...]
    replications: int = 1


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        variants: with all their options, so that a changed one is measured anew.
        networks: that are compared.
    """

    variants: tuple[Variant, ...]
    networks: tuple[Network, ...]


def parts(settings: Settings) -> list[Part]:
    """One for each training."""
    return [
        Part(
            f"{net.name}-{variant.key}-r{k}",
            {"kind": "run", "network": net.name, "variant": variant.name, "replication": k},
        )
        for net in settings.networks
        for variant in settings.variants
        if variant.name in net.variants
        for k in range(net.replications)
    ]


def measure(part: Part, bench: Bench) -> Row:
    """One training, and what it answers."""
    training, options = training_of(part, bench.settings)
    return trained(training, bench, **options)


def training_of(part: Part, settings: Settings) -> tuple[Training, Mapping[str, Any]]:
    """How the network of a part is trained, and the options of its variant."""
    (net,) = (n for n in settings.networks if n.name == part.given["network"])
    (variant,) = (v for v in settings.variants if v.name == part.given["variant"])
    return net.training if variant.random else replace(net.training, asked=1), variant.options


def check(settings: Settings, root: Path | None) -> None:
    """Refuse where data are missing."""
    need_data([net.training for net in settings.networks], root)


# ---- what the runs say


@dataclass(frozen=True)
class Runs:
    """The replications of a variant of a network, and those of the deterministic network."""

    network: str
    rows: Sequence[Row]
    plain: Sequence[Row]
    diverged: int

    def told(self, text: str) -> str:
        """A text on the runs that ended, with the name of the network and a word on the others."""
        lost = f" ({self.diverged} diverged)" if self.rows and self.diverged else ""
        return f"{self.network} {text if self.rows else 'no run ended'}{lost}"


def runs(results: Results, variant: str, only: str = "") -> list[Runs]:
    """The runs of a variant by network.

    Args:
        results: of all parts.
        variant: a name.
        only: a word that the network's model has.
    """

    def rows(net: Network, name: str) -> list[Row]:
        return [r for r in results.of("run") if r["network"] == net.name and r["variant"] == name]

    def ended(net: Network, name: str) -> list[Row]:
        return [row for row in rows(net, name) if not row["failed"]]

    return [
        Runs(net.name, ended(net, variant), ended(net, "deterministic"), sum(bool(r["failed"]) for r in found))
        for net in results.settings.networks
        if only in net.training.model and (found := rows(net, variant))
    ]


def accuracy(row: Row) -> float:
    """On all test data."""
    return float(row["scores"]["accuracy"])


Told = tuple[str, bool | None]  # what was measured, and whether a sentence is so


def _at_most(text: str, first: Spread, second: Spread, limit: float) -> Told:
    """first - second against a limit: by its 95 % interval, or by SINGLE where runs are too few for one."""
    if first.mean is None or second.mean is None:
        return text, None
    gap, value = difference(first, second), first.mean - second.mean
    few = gap is None or gap.count < LEAST
    low, high = (value - SINGLE, value + SINGLE) if gap is None or few else (gap.low, gap.high)
    held = True if high <= limit else False if low > limit else None
    close = f" (fewer than {LEAST} runs, and less than {100 * SINGLE:.0f} points from the limit)"
    return text + (close if few and held is None else ""), held


def _rises(found: Runs) -> Told:
    known = {tau: mean for tau, mean in zip(TAUS, _line(found.rows, "accuracy"), strict=True) if not math.isnan(mean)}
    if len(known) < 2:
        return "has fewer than two sets that are not empty", None
    means = list(known.values())
    gain, back = means[-1] - means[0], min(b - a for a, b in pairwise(means))
    text = f"{100 * means[0]:.2f} % at {min(known):g}, {100 * means[-1]:.2f} % at {max(known):g}"
    return text, False if min(gain, back) < -STEP else True if gain > STEP else None


def _at_least(quantity: Callable[[Row], float | None], limit: float) -> Callable[[Runs], Told]:
    def told(found: Runs) -> Told:
        s = over(found.rows, quantity)
        return _at_most(s.percent() + (" %" if s.count else ""), Spread(limit, 0.0, s.count), s, 0.0)

    return told


def _drops(found: Runs) -> Told:
    plain, other = over(found.plain, accuracy), over(found.rows, accuracy)
    if plain.mean is None or other.mean is None:
        return "without a deterministic run", None
    gap = difference(plain, other)
    text = f"{100 * (plain.mean - other.mean):+.2f}" if gap is None or gap.count < LEAST else gap.interval()
    return _at_most(f"in points {text}", plain, other, DROP)


@dataclass(frozen=True)
class Sentence:
    """A sentence of the paper on Radial networks.

    Args:
        text: the sentence, without its full stop.
        told: of a network, what was measured and whether it is so.
        only: a word that the models have of which it is said.
    """

    text: str
    told: Callable[[Runs], Told]
    only: str = ""

    def judge(self, results: Results, variant: str, ours: bool) -> Finding:
        """False where one network differs, None where none does but not all tell."""
        found = runs(results, variant, self.only)
        told = [self.told(each) for each in found]
        held = [h for _, h in told]
        listed = "; ".join(each.told(text) for each, (text, _) in zip(found, told, strict=True)) or "no such network"
        whole = None if not held else False if False in held else None if None in held else True
        return Finding(f"{self.text} ({LABELS[variant]}).", listed, whole, ours)


SENTENCES = (
    Sentence("The accuracy rises with the confidence", _rises),
    Sentence("All networks are right on more than 90 % of the data of confidence 1",
             _at_least(in_set(1.0, "accuracy"), 0.9)),
    Sentence("All networks are at least 75 % confident on at least 85 % of the data",
             _at_least(in_set(0.75, "share"), 0.85)),
    Sentence(f"ResNets are 100 % confident on almost 90 % of the data, that is from {100 * ALMOST:.0f} %",
             _at_least(in_set(1.0, "share"), ALMOST), "resnet"),
    Sentence(f"The drop against the deterministic network is not significant: at most {100 * DROP:.0f} points", _drops),
)  # fmt: skip


def judge(results: Results) -> list[Finding]:
    """The paper's sentences on Radial networks, then on Gaussian ones, then ours on the published noise."""
    shown = {variant: ours for variant, ours in JUDGED.items() if runs(results, variant)}
    found = [sentence.judge(results, variant, ours) for variant, ours in shown.items() for sentence in SENTENCES]
    found += [_gaussian(results), _published(results)]
    if all(net.training.data == "cifar10" for net in results.settings.networks):
        return found
    return [replace(finding, held=None) for finding in found]  # all sentences are about CIFAR-10


def _listed(results: Results, variant: str) -> str:
    found = [each.told(f"{over(each.rows, accuracy).percent()} %") for each in runs(results, variant)]
    return f"{LABELS[variant]}: {', '.join(found) or 'not run'}"


def _gaussian(results: Results) -> Finding:
    """Without tricks: neither pretraining nor annealing nor a smaller weight of the KL."""
    radial, gaussian = (
        [not row["failed"] and accuracy(row) >= TRAINED for row in results.of("run") if row["variant"] == variant]
        for variant in ("radial-whole", "normal-whole")
    )
    told = bool(radial and gaussian) and all(radial)  # where Radial fails too, the settings may be to blame
    return Finding(
        f"Without fixes a Radial posterior can be trained, a Gaussian one cannot (trained: from {100 * TRAINED:.0f} % "
        "accuracy).",
        "; ".join(_listed(results, variant) for variant in ("radial-whole", "normal-whole", "normal")),
        not any(gaussian) if told else None,
    )


def _published(results: Results) -> Finding:
    """How random the published network is, beside a true Radial one of the same objective."""

    def information(found: Runs) -> Spread:
        return over(found.rows, lambda row: row["scores"]["mutual_information"])

    true = {each.network: each for each in runs(results, "radial-whole")}
    both = [(each, true[each.network]) for each in runs(results, "published") if each.network in true]
    values = [(information(noise).mean, information(draws).mean) for noise, draws in both]
    apart = [a < NEARLY_NONE * b for a, b in values if a is not None and b is not None]
    texts = [f"{noise.told(_text(information(noise), '.1e'))}, true draws {_text(information(draws), '.1e')}"
             for noise, draws in both]  # fmt: skip
    return Finding(
        "The published noise, divided by the norm of a whole batch of activations, is nearly none: the mutual "
        "information of its network is less than a tenth of that with true Radial draws (whole KL).",
        f"in nats, {'; '.join(texts) or 'not run'}",
        all(apart) if apart else None,
        True,
    )


def _text(s: Spread, digits: str) -> str:
    if s.mean is None:
        return "not known"
    return f"{s.mean:{digits}}" + ("" if s.deviation is None else f" ± {s.deviation:{digits}}")


# ---- figure and table


def draw(results: Results) -> Figure:
    """Accuracy and size of the confidence sets, means and thin replications, and the accuracy of every variant."""
    nets = [net.name for net in results.settings.networks]
    shown = [name for name in LABELS if runs(results, name)]
    colours = {name: light("muted") for name in shown} | dict(coloured([name for name in JUDGED if name in shown]))
    marks = dict(zip(nets, zip(cycle("osD^vPX<>"), cycle(("-", "--", ":", "-."))), strict=False))
    heads = [("Accuracy of the confidence set", "threshold of confidence", ""),
             ("Its share of the test data", "threshold of confidence", ""),
             ("Accuracy on all test data", "mean and deviation over replications", "")]  # fmt: skip
    figure, (left, middle, right) = panels(heads, (14, 4.4))
    for place, name in enumerate(shown):
        for each in runs(results, name):
            marker, style = marks[each.network]
            look = {"color": colours[name], "marker": marker, "markersize": 4}
            for axes, field in ((left, "accuracy"), (middle, "share")) if name in JUDGED else ():
                for row in each.rows if len(each.rows) > 1 else ():
                    axes.plot(TAUS, _line([row], field), color=colours[name], alpha=0.3, linewidth=0.9)
                axes.plot(TAUS, _line(each.rows, field), linestyle=style, **look)
            s = over(each.rows, accuracy)
            if s.mean is not None:
                y = place + 0.6 * ((nets.index(each.network) + 0.5) / len(nets) - 0.5)
                right.errorbar(s.mean, y, xerr=s.deviation, capsize=3, linestyle="none", **look)
    for name in (name for name in JUDGED if name in shown):
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


def _line(rows: Sequence[Row], field: str) -> list[float]:
    means = [over(rows, in_set(tau, field)).mean for tau in TAUS]
    return [math.nan if mean is None else mean for mean in means]


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
            cells = [s.percent() if digits is None else _text(s, digits) for s, digits in spreads]
            count = f"{len(each.rows)}" + (f" ({each.diverged} diverged)" if each.diverged else "")
            rows.append([each.network, LABELS[name], count, *(cells if each.rows else ["-"] * len(cells))])
    header = ["network", "training", "runs", *(heading for heading, _, _ in COLUMNS)]
    how = "Mean ± deviation over the runs that ended; a deterministic network has one vote, so that it is always sure"
    return f"{how}:\n\n{markdown(header, rows)}"


# ---- the trainings


def _variants(shared: str) -> tuple[Variant, ...]:
    """All variants; `shared` names the one that fig8-left trains with M = 100, whose runs are found by its keys."""
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
        Variant(name, "m100" if name == shared else name, given, name != "deterministic")
        for name, given in options.items()
    )


def _training(scale: str, model: str, **changed: Any) -> Training:
    """That of fig8-left, but for what the variants choose."""
    images = IMAGES[scale]
    kept = {name: value for name, value in images.options.items() if name not in TEMPERED}
    return replace(images, model=model, options={**kept, **changed})


_ALL = tuple(LABELS)
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
    "vanishes; its accuracies are not those of a Radial posterior. The confidence of an answer "
    "is the share of draws that vote for it. At the cpu scale: a CIFAR ResNet of 8 layers (ResNet-20 with one block a "
    "stage), all six trainings, three replications of each, 4 epochs instead of 100, batches of 128 instead of 32 "
    "(`Radial, tempered` is the very run of fig8-left with M = 100); and one run each, deterministic and `Radial, "
    "tempered` only, 3 epochs, of ResNet-20, a PreActResNet-18 of a quarter of the width and a DenseNet-BC of 22 "
    "layers (growth 12). The test asks 20 draws, and one of a deterministic network, whose draws are equal. Sentences "
    "are judged on means over replications. A limit is held or missed where the whole 95 % Student interval (three "
    f"runs or more) is on one side of it; with fewer runs, where the number is {100 * SINGLE:.0f} points from it, "
    "which is more than the sampling of 10,000 test images (0.3 to 0.5 points) and the luck of one run explain; "
    "otherwise it is not told. The accuracy rises where no step to the next set that is not empty falls by more than "
    "half a point and all steps together gain more than that. At the tiny scale scikit-learn's digits, on which "
    "nothing is judged.",
    version=2,
    settings={
        "tiny": Settings(
            _variants("radial"),
            (Network("small_conv", _training("tiny", "small_conv", model_options={}), _ALL, 2),),
        ),
        "cpu": Settings(
            _variants("radial"),
            (
                Network("resnet8", _training("cpu", "resnet20"), _ALL, 3),
                Network("resnet20", _training("cpu", "resnet20", model_options={}, epochs=3), _TWO),
                Network("preact_resnet18-16",
                        _training("cpu", "preact_resnet18", model_options={"width": 16}, epochs=3), _TWO),
                Network("densenet_bc22_12",
                        _training("cpu", "densenet_bc100_12", model_options={"depths": [3, 3, 3]}, epochs=3), _TWO),
            ),
        ),
        "paper": Settings(
            _variants("radial-whole"), tuple(Network(name, _training("paper", name), _ALL) for name in _LARGE)
        ),
    },
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
    check=check,
)  # fmt: skip
