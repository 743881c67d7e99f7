"""The sentences of figure 7 and its section, judged on what the trainings say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.compared import Runs, line, runs
from experiments.experiment import Finding, Results, Row, all_held
from experiments.rising import rises
from experiments.spreads import LEAST, Spread, difference, over
from experiments.trained import TAUS, accuracy, in_set

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
SINGLE = 0.03  # how far from a limit fewer than three runs tell something: 10,000 test images and the luck of a run
TRAINED = 0.5  # the accuracy on ten classes from which a network is called trained
NEARLY_NONE = 0.1  # the share of the true draws' mutual information below which noise is called nearly none


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
    known = {tau: mean for tau, mean in zip(TAUS, line(found.rows, "accuracy"), strict=True) if not math.isnan(mean)}
    if len(known) < 2:
        return "has fewer than two sets that are not empty", None
    first, last = min(known), max(known)
    return f"{100 * known[first]:.2f} % at {first:g}, {100 * known[last]:.2f} % at {last:g}", rises(found.rows)


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
        return Finding(f"{self.text} ({LABELS[variant]}).", listed, all_held(held), ours)


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
    if all(net.training.data == "cifar10" for net in results.settings.networks):
        return found
    return [replace(finding, held=None) for finding in found]  # all sentences are about CIFAR-10


def _listed(results: Results, variant: str) -> str:
    found = [each.told(f"{over(each.rows, accuracy).percent()} %") for each in runs(results, variant)]
    return f"{LABELS[variant]}: {', '.join(found)}" if found else ""


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
        "; ".join(filter(None, (_listed(results, name) for name in ("radial-whole", "normal-whole", "normal")))),
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
    texts = [f"{noise.told(information(noise).text('.1e'))}, true draws {information(draws).text('.1e')}"
             for noise, draws in both]  # fmt: skip
    return Finding(
        "The published noise, divided by the norm of a whole batch of activations, is nearly none: the mutual "
        "information of its network is less than a tenth of that with true Radial draws (whole KL).",
        f"in nats, {'; '.join(texts) or 'not run'}",
        all(apart) if apart else None,
        True,
    )
