"""Figure 7: confidence sets of several networks, against their deterministic versions and other posteriors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from experiments.experiment import Finding, Results, Row, all_held, markdown
from experiments.panels import panels
from experiments.published_noise import NAME as PUBLISHED
from experiments.significance import HOW_RISING, LEAST, Spread, difference, over, rises
from experiments.studies import IMAGES, Settings, Study, Variant, line, means, study_experiment
from experiments.training_runs import DETERMINISTIC, TAUS, TEMPERED, Training, accuracy, in_set, untempered
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
OF_WHOM = {"radial-whole": False, "published": False, "radial": True}
DROP = 0.02  # the largest loss of accuracy that is called not significant
ALMOST = 0.87  # the share of the data that is called almost 90 %
SINGLE = 0.03  # how far from a limit fewer than three runs are judged: 10,000 test images and the luck of a run
TRAINED = 0.5  # the accuracy on ten classes from which a network is called trained
NEARLY_NONE = 0.1  # the share of the true draws' mutual information below which noise is called nearly none

Answer = tuple[str, bool | None]  # what was measured, and whether a sentence is so


@dataclass(frozen=True)
class Runs:
    """The replications of a variant of a network that ended, those of the deterministic network, and lost ones."""

    network: str
    rows: Sequence[Row]
    plain: Sequence[Row]
    diverged: int

    def text(self, text: str) -> str:
        """A text on the runs that ended, with the name of the network and a word on the others."""
        lost = f" ({self.diverged} diverged)" if self.rows and self.diverged else ""
        return f"{self.network} {text if self.rows else 'no run ended'}{lost}"


def runs(results: Results, variant: str, only: str = "") -> list[Runs]:
    """The runs of a variant by network; `only` is a word that the network's model has."""

    def rows(study: Study, name: str) -> list[Row]:
        return [row for row in results.rows if (row["study"], row["variant"]) == (study.name, name)]

    found = []
    for study in results.settings.studies:
        if only in study.training.model and (all_ := rows(study, variant)):
            ended, plain = ([r for r in some if not r["failed"]] for some in (all_, rows(study, "deterministic")))
            found.append(Runs(study.name, ended, plain, len(all_) - len(ended)))
    return found


def _at_most(text: str, first: Spread, second: Spread, limit: float) -> Answer:
    """first - second against a limit: by its 95 % interval, or by SINGLE where runs are too few for one."""
    if first.mean is None or second.mean is None:
        return text, None
    gap, value = difference(first, second), first.mean - second.mean
    few = gap is None or gap.count < LEAST
    low, high = (value - SINGLE, value + SINGLE) if gap is None or few else (gap.low, gap.high)
    held = True if high <= limit else False if low > limit else None
    close = f" (fewer than {LEAST} runs, and less than {100 * SINGLE:.0f} points from the limit)"
    return text + (close if few and held is None else ""), held


def _rises(found: Runs) -> Answer:
    known = {tau: s.mean for tau, s in zip(TAUS, line(found.rows, "accuracy"), strict=True) if s.mean is not None}
    if len(known) < 2:
        return "has fewer than two sets that are not empty", None
    first, last = min(known), max(known)
    return f"{100 * known[first]:.2f} % at {first:g}, {100 * known[last]:.2f} % at {last:g}", rises(found.rows)


def _at_least(quantity: Callable[[Row], float | None], limit: float) -> Callable[[Runs], Answer]:
    def answer(found: Runs) -> Answer:
        s = over(found.rows, quantity)
        return _at_most(s.percent() + (" %" if s.count else ""), Spread(limit, 0.0, s.count), s, 0.0)

    return answer


def _drops(found: Runs) -> Answer:
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
        answer: of a network, what was measured and whether it is so.
        only: a word that the models have of which it is said.
    """

    text: str
    answer: Callable[[Runs], Answer]
    only: str = ""

    def judge(self, results: Results, variant: str, ours: bool) -> Finding:
        """False where one network differs, None where none does but some are inconclusive."""
        found = [(each, *self.answer(each)) for each in runs(results, variant, self.only)]
        listed = "; ".join(each.text(text) for each, text, _ in found) or "no such network"
        return Finding(f"{self.text} ({LABELS[variant]}).", listed, all_held(held for *_, held in found), ours)


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
    shown = {variant: ours for variant, ours in OF_WHOM.items() if runs(results, variant)}
    found = [sentence.judge(results, variant, ours) for variant, ours in shown.items() for sentence in SENTENCES]
    found += [_gaussian(results), _published(results)]
    if all(study.training.data == "cifar10" for study in results.settings.studies):
        return found
    return [replace(finding, held=None) for finding in found]  # all sentences are about CIFAR-10


def _listed(results: Results, variant: str) -> str:
    found = [each.text(f"{over(each.rows, accuracy).percent()} %") for each in runs(results, variant)]
    return f"{LABELS[variant]}: {', '.join(found)}" if found else ""


def _gaussian(results: Results) -> Finding:
    """Without tricks: neither pretraining nor annealing nor a smaller weight of the KL."""
    radial, gaussian = (
        [not row["failed"] and accuracy(row) >= TRAINED for row in results.rows if row["variant"] == variant]
        for variant in ("radial-whole", "normal-whole")
    )
    judged = bool(radial and gaussian) and all(radial)  # where Radial fails too, the settings may be to blame
    return Finding(
        f"Without fixes a Radial posterior can be trained, a Gaussian one cannot (trained: from {100 * TRAINED:.0f} % "
        "accuracy).",
        "; ".join(filter(None, (_listed(results, name) for name in ("radial-whole", "normal-whole", "normal")))),
        not any(gaussian) if judged else None,
    )


def _published(results: Results) -> Finding:
    """How random the published network is, beside a true Radial one of the same objective."""

    def information(found: Runs) -> Spread:
        return over(found.rows, lambda row: row["scores"]["mutual_information"])

    true = {each.network: each for each in runs(results, "radial-whole")}
    both = [(each, true[each.network]) for each in runs(results, "published") if each.network in true]
    values = [(information(noise).mean, information(draws).mean) for noise, draws in both]
    apart = [a < NEARLY_NONE * b for a, b in values if a is not None and b is not None]
    texts = [f"{noise.text(information(noise).text('.1e'))}, true draws {information(draws).text('.1e')}"
             for noise, draws in both]  # fmt: skip
    return Finding(
        "The published noise, divided by the norm of a whole batch of activations, is nearly none: the mutual "
        "information of its network is less than a tenth of that with true Radial draws (whole KL).",
        f"in nats, {'; '.join(texts) or 'not run'}",
        all(apart) if apart else None,
        True,
    )


def draw(results: Results) -> Figure:
    """Accuracy and size of the confidence sets, means and thin replications, and the accuracy of every variant."""
    nets = [study.name for study in results.settings.studies]
    shown = [name for name in LABELS if runs(results, name)]
    colours = {name: light("muted") for name in shown} | dict(coloured([name for name in OF_WHOM if name in shown]))
    marks = dict(zip(nets, zip(cycle("osD^vPX<>"), cycle(("-", "--", ":", "-."))), strict=False))
    heads = [("Accuracy of the confidence set", "threshold of confidence", ""),
             ("Its share of the test data", "threshold of confidence", ""),
             ("Accuracy on all test data", "mean and standard deviation over replications", "")]  # fmt: skip
    figure, (left, middle, right) = panels(heads, (14, 4.4))
    for place, name in enumerate(shown):
        for each in runs(results, name):
            marker, style = marks[each.network]
            look = {"color": colours[name], "marker": marker, "markersize": 4}
            for axes, field in ((left, "accuracy"), (middle, "share")) if name in OF_WHOM else ():
                for row in each.rows if len(each.rows) > 1 else ():
                    axes.plot(TAUS, means(line([row], field)), color=colours[name], alpha=0.3, linewidth=0.9)
                axes.plot(TAUS, means(line(each.rows, field)), linestyle=style, **look)
            s = over(each.rows, accuracy)
            if s.mean is not None:
                y = place + 0.6 * ((nets.index(each.network) + 0.5) / len(nets) - 0.5)
                right.errorbar(s.mean, y, xerr=s.std, capsize=3, linestyle="none", **look)
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


# Heading, quantity of a run, and the digits of its mean and standard deviation; None is percent.
COLUMNS: tuple[tuple[str, Callable[[Row], float | None], str | None], ...] = (
    ("accuracy, %", accuracy, None),
    ("nll", _score("nll"), ".3f"),
    ("ECE", _score("ece"), ".3f"),
    ("mutual information, nats", _score("mutual_information"), ".1e"),
    ("examples of confidence >= 0.75, %", in_set(0.75, "share"), None),
    ("examples of confidence 1, %", in_set(1.0, "share"), None),
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
    how = (
        "Mean ± standard deviation over the runs that ended; a deterministic network has one vote: its confidence is 1"
    )
    return f"{how}:\n\n{markdown(header, rows)}"


# ---- the trainings


def _variants(shared: Mapping[str, str], names: Sequence[str] = tuple(LABELS)) -> tuple[Variant, ...]:
    """All variants, by name; `shared` has the keys of those that other experiments train too."""
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
    return tuple(  # a forward of the published code takes four times as long
        Variant(name, shared.get(name, name), options[name], name != "deterministic", 1 if name == PUBLISHED else None)
        for name in names
    )


def _training(scale: str, model: str, **changed: Any) -> Training:
    """That of fig8-left, but for what the variants choose."""
    images = untempered(IMAGES[scale])
    return replace(images, model=model, options={**images.options, **changed})


_SHARED = {"radial": "m100", "radial-whole": "whole-m100"}
_FIVE = _variants(_SHARED, ("deterministic", "radial", "radial-whole", "normal-whole", "published"))
_TWO = _variants(_SHARED, ("deterministic", "radial"))
_LARGE = ("preact_resnet18", "preact_resnet34", "preact_resnet50", "preact_resnet101", "preact_resnet152",
          "densenet121", "densenet161", "densenet169", "densenet201")  # fmt: skip
EXPERIMENT = study_experiment(
    title="Confidence sets on CIFAR-10",
    where="Figure 7 and section 5.2 (a), (b)",
    claim="Bayesian ResNets and DenseNets, Radial with M = 100, on CIFAR-10: the accuracy rises with the confidence "
    "and is above 90 % where the confidence is 1; they are at least 75 % confident on 85 to 95 % of the data, and "
    "ResNets 100 % confident on almost 90 %; the drop against deterministic versions is not significant; Gaussian "
    "posteriors could not be trained without fixes.",
    method="Each network is trained as itself (deterministic: no KL, standard deviations of a millionth) and with "
    "random weights: with the whole KL from the first step (prior N(0, 1), beta 1: the paper's objective), and "
    "tempered (annealed KL, beta 0.01, a prior scale learned for each tensor), which the paper says it did without: "
    "those sentences are ours. M = 100 by `stats`. Draws are true ones of the weights, one per batch, each with norm "
    "statistics of its own at the test. `published noise` is the forward of the paper's published code: it divides the "
    "noise of a layer's output by the norm over the whole activation tensor, batch included, so that it nearly "
    "vanishes at equal standard deviations; its accuracies are not those of a Radial posterior. The confidence of an "
    "answer is the share of draws that vote for it. At the cpu scale: a CIFAR ResNet of 8 layers (ResNet-20 with one "
    "block a stage), all trainings but `Gaussian, tempered`, three replications of each (one of `published noise`, "
    "whose forward takes four times as long), 4 epochs instead of 100, batches of 128 instead of 32 (`Radial, "
    "tempered` are the very runs of fig8-left with M = 100, `Radial, whole KL` those of convergence); and one run "
    "each, deterministic and `Radial, tempered` only, 2 epochs, of ResNet-20 and a DenseNet-BC of 16 layers (growth "
    "12). The test asks 20 draws, and one of a deterministic network, whose draws are equal. Sentences are judged on "
    "means over replications. A limit is held or missed where the whole 95 % Student interval (three runs or more) is "
    f"on one side of it; with fewer runs, where the number is {100 * SINGLE:.0f} points from it, which is more than "
    "the sampling of 10,000 test images (0.3 to 0.5 points) and the luck of one run explain; otherwise it is "
    f"inconclusive. {HOW_RISING} The seconds below do not count trainings that were there before: theirs are in the "
    "logs of the runs. At the tiny scale scikit-learn's digits, on which nothing is judged.",
    version=3,
    settings={
        "tiny": Settings((Study("small_conv", _training("tiny", "small_conv", model_options={}), _variants(_SHARED),
                                2),)),
        "cpu": Settings((
            Study("resnet8", _training("cpu", "resnet20"), _FIVE, 3),
            Study("resnet20", _training("cpu", "resnet20", model_options={}, epochs=2), _TWO),
            Study("densenet_bc16_12",
                  _training("cpu", "densenet_bc100_12", model_options={"depths": [2, 2, 2]}, epochs=2), _TWO),
        )),
        "paper": Settings(tuple(Study(name, _training("paper", name), _variants({"radial-whole": "m100"}))
                                for name in _LARGE)),
    },
    judge=judge,
    draw=draw,
    tell=tell,
    undecided={"cpu": "A ResNet of 8 layers after 4 epochs, and two larger ones after 2, can neither confirm nor "
                      "refute sentences about nine deep networks after 100."},
)  # fmt: skip
