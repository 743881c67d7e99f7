"""What people do with a prediction: conformal sets, a temperature, a table, a figure; and several of them as one."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from mcrepar import metrics, plots
from mcrepar.conformal import Conformal, calibrate, single_probs
from mcrepar.errors import MethodError, ParameterError
from mcrepar.validation import closest, real_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

CALIBRATION_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of the intervals of a calibration plot


@dataclass(frozen=True, eq=False, repr=False)
class Classes:
    """What the draws say of classes, the class dimension being 1.

    Args:
        probs: the mean probabilities, (examples, classes, ...).
        votes: the number of draws whose most probable class it is, (examples, classes, ...).
        expected_entropy: the mean of the draws' entropies, (examples, ...), in nats.
    """

    probs: Tensor
    votes: Tensor
    expected_entropy: Tensor


class Actions(ABC):
    """What `Prediction` is acted upon by; its fields are described there."""

    draws: Any
    mean: Any
    aleatoric: Any
    epistemic: Any
    kept: Any
    noise: Any
    classes: Any

    def conformal(self, y: Any, level: float = 0.9, method: str | None = None, **options: float) -> Conformal:
        """A rule whose sets hold the true y with probability `level`, calibrated on this prediction.

        level <= P(y in rule(new prediction)), at most 1 / (n + 1) more where no two scores are equal; sets of classes
        hold the most probable class in any case, and y more often then

        Args:
            y: the true classes or values of examples that the network was not trained on.
            level: between 0 and 1.
            method: "aps" (the default), "raps" or "split" for classes; "cqr" (the default) or "split" for a regression.
            options: of "raps": penalty=0.1 for every class beyond the first free=2.

        Returns:
            A rule: `rule(p)` is a mask (examples, classes), or the ends (lower, upper) of intervals, and
            `rule.covered(p, y)` says which of them hold y.
        """
        return calibrate(self, y, level, method, **options)

    def temperature(self, y: Any) -> float:
        """The temperature that makes the probabilities of this prediction fit y best; above 1 they were too confident.

        argmin_T -mean_i log mean_k softmax(log p_ik / T)[y_i], T from 0.05 to 20

        Args:
            y: the true classes of examples that the network was not trained on.
        """
        draws, single = self._draws_of_classes(), single_probs(self)
        labels = torch.as_tensor(y).cpu().reshape(-1).long()
        if len(labels) != len(single) or int(labels.min()) < 0 or int(labels.max()) >= single.shape[1]:
            why = f"y has the shape {tuple(labels.shape)} and values up to {int(labels.max())}"
            raise ParameterError("temperature(y)", why, f"{len(single)} classes from 0 to {single.shape[1] - 1}")
        index = labels.reshape(1, -1, 1, *(1,) * (draws.dim() - 3)).expand(len(draws), -1, 1, *draws.shape[3:])

        def nll(log_t: float) -> float:
            tempered = (draws / math.exp(log_t)).log_softmax(2).gather(2, index)
            return -float((tempered.logsumexp(0) - math.log(len(draws))).mean())

        low, high, golden = math.log(0.05), math.log(20.0), (math.sqrt(5) - 1) / 2
        left, right = high - golden * (high - low), low + golden * (high - low)
        at_left, at_right = nll(left), nll(right)
        while high - low > 1e-6:  # the golden section
            if at_left < at_right:
                high, right, at_right, left = right, left, at_left, low + (1 - golden) * (right - low)
                at_left = nll(left)
            else:
                low, left, at_left, right = left, right, at_right, high - (1 - golden) * (high - left)
                at_right = nll(right)
        return math.exp((low + high) / 2)

    def tempered(self, temperature: float) -> Self:
        """The prediction with the probabilities of every draw at a temperature, softmax(log p / T).

        Args:
            temperature: T; 1 changes nothing.
        """
        real_number("temperature", float(temperature), 0, instead="p.temperature(y)")
        draws = (self._draws_of_classes() / temperature).softmax(2)  # (draws, examples, classes, ...)
        probs, spread = draws.mean(0), draws.var(0, correction=0)
        entropy = torch.special.entr(draws).sum(2).mean(0)
        binary = self.kept.dim() < draws.dim()
        columns = [probs, (draws * (1 - draws)).mean(0), spread, draws]
        mean, aleatoric, epistemic, kept = (
            (c.select(-self.mean.dim() if binary else 0, 1) if binary else c).to(self.mean.dtype) for c in columns
        )
        classes = replace(self.classes, probs=probs.to(mean.dtype), expected_entropy=entropy.to(mean.dtype))
        return replace(self, mean=mean, aleatoric=aleatoric, epistemic=epistemic, kept=kept, classes=classes)  # type: ignore[type-var]

    def to_pandas(self, names: Sequence[str] | None = None, index: Any = None) -> DataFrame:
        """A table with a row for every example.

        For classes: label, confidence, the probability of each, entropy, expected_entropy, mutual_information; for a
        regression: mean, std, aleatoric, epistemic and the 90 % interval of every output.

        Args:
            names: of the classes, or of the outputs.
            index: of the table.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise MethodError("to_pandas()", "pandas is not installed", "pip install pandas") from None
        p: Any = self
        if self.classes is not None:
            probs = single_probs(self)
            named = _named(names, probs.shape[1], "the classes")
            columns = {"label": [named[k] for k in p.label.reshape(-1).tolist()] if names else p.label.reshape(-1)}
            columns |= {"confidence": p.confidence.reshape(-1)}
            columns |= {f"p_{name}": probs[:, k] for k, name in enumerate(named)}
            columns |= {w: getattr(p, w).reshape(-1) for w in ("entropy", "expected_entropy", "mutual_information")}
        else:
            words = {"mean": p.mean, "std": p.std, "aleatoric": p.aleatoric, "epistemic": p.epistemic}
            words |= dict(zip(("lower_90", "upper_90"), p.interval(0.9), strict=True)) if self.kept is not None else {}
            flat = {word: t.reshape(len(self.mean), -1) for word, t in words.items()}
            named = _named(names, flat["mean"].shape[1], "the outputs")
            single = len(named) == 1 and names is None
            columns = {w if single else f"{w}_{n}": t[:, k] for k, n in enumerate(named) for w, t in flat.items()}
        return DataFrame({n: c.numpy() if isinstance(c, Tensor) else c for n, c in columns.items()}, index=index)

    def plot(self, y: Any = None, kind: str | None = None) -> Figure:
        """A figure of the prediction.

        Args:
            y: the true classes or values, which all kinds but "uncertainty" need.
            kind: "reliability", "confidence" (accuracy of the confidence sets), "share" (their size) or "uncertainty"
                for classes; "intervals", "calibration" or "uncertainty" for a regression. None is the first with y, and
                "uncertainty" without.
        """
        figures = CLASSES if self.classes is not None else REGRESSION
        kind = kind or ("uncertainty" if y is None else next(iter(figures)))
        if kind not in figures:
            raise MethodError(f"plot(kind={kind!r})", "there is no such figure", " or ".join(closest(kind, figures)))
        if y is None and kind != "uncertainty":
            raise ParameterError(f"plot(kind={kind!r})", "it compares with the truth", f"plot(y, kind={kind!r})")
        return figures[kind](self, None if y is None else torch.as_tensor(y).cpu().reshape(-1).numpy())

    def _draws_of_classes(self) -> Tensor:
        """The log probabilities of all draws in double precision, (draws, examples, classes, ...)."""
        if self.classes is None:
            raise MethodError("the temperature of a prediction", "its y is not a class", "likelihood='categorical'")
        samples: Tensor = self.samples.double()  # type: ignore[attr-defined]
        if samples.dim() == self.classes.probs.dim():  # the probability of yes
            samples = torch.stack([1 - samples, samples], 2)
        return samples.clamp_min(torch.finfo(torch.float32).tiny).log()


P = TypeVar("P", bound=Actions)


def mixture(parts: Sequence[P]) -> P:
    """Several predictions of the same examples as one, every draw of each counting the same.

    Var y = E Var[y | W] + Var E[y | W] over the draws of all of them

    Args:
        parts: predictions with one likelihood, such as those of the members of an ensemble.
    """
    first, total = parts[0], sum(p.draws for p in parts)
    shapes = [tuple(p.mean.shape) for p in parts]
    if len(set(shapes)) > 1:
        why = f"their predictions have the shapes {' and '.join(map(str, dict.fromkeys(shapes)))}"
        raise ParameterError("an ensemble of these networks", why, "networks with the same outputs")

    def averaged(pick: Callable[[Any], Tensor]) -> Tensor:
        return torch.stack([pick(p).double() * (p.draws / total) for p in parts]).sum(0)

    mean = averaged(lambda p: p.mean)
    columns = {
        "mean": mean,
        "aleatoric": averaged(lambda p: p.aleatoric),
        "epistemic": averaged(lambda p: p.epistemic + (p.mean - mean).square()),
    }
    joined = {
        name: None if any(getattr(p, name) is None for p in parts) else torch.cat([getattr(p, name) for p in parts])
        for name in ("kept", "noise")
    }
    classes = None
    if first.classes is not None:
        probs, expected = averaged(lambda p: p.classes.probs), averaged(lambda p: p.classes.expected_entropy)
        votes = torch.stack([p.classes.votes for p in parts]).sum(0)
        classes = Classes(probs.to(first.mean.dtype), votes, expected.to(first.mean.dtype))
    narrow = {name: column.to(first.mean.dtype) for name, column in columns.items()}
    made: P = replace(first, draws=total, classes=classes, **narrow, **joined)  # type: ignore[type-var]
    return made


def _named(names: Sequence[str] | None, count: int, of: str) -> list[str]:
    if names is not None and len(names) != count:
        raise ParameterError(f"to_pandas(names={list(names)!r})", f"there are {count} of {of}", f"{count} names")
    return [str(k) for k in range(count)] if names is None else [str(name) for name in names]


def _reliability(p: Any, y: Any) -> Figure:
    bins = metrics.reliability(single_probs(p).numpy(), y)
    return plots.reliability_diagram(bins.lower, bins.upper, bins.confidence, bins.accuracy, bins.count)


def _sets(p: Any, y: Any, share: bool) -> Figure:
    sets = metrics.confidence_sets(p.confidence.reshape(-1), p.label.reshape(-1).numpy() == y, None)
    tau, size = [s.tau for s in sets], [s.share for s in sets]
    if share:
        return plots.threshold_curve(tau, size, "Share of the examples", "share", colour="violet", floor=0.0)
    right, low, high = (np.array([getattr(s, name) for s in sets], float) for name in ("accuracy", "low", "high"))
    return plots.threshold_curve(tau, right, "Accuracy where draws agree", "accuracy", low, high)


def _intervals(p: Any, y: Any) -> Figure:
    lower, upper = (end.reshape(-1) for end in p.interval(0.9))
    return plots.predicted_against_true(y, p.mean.reshape(-1), lower, upper)


def _calibration(p: Any, y: Any) -> Figure:
    ends = [[end.reshape(-1).numpy() for end in p.interval(level)] for level in CALIBRATION_LEVELS]
    inside = [metrics.interval_coverage(lower, upper, y) for lower, upper in ends]
    return plots.interval_calibration(CALIBRATION_LEVELS, inside)


Plots = Mapping[str, Callable[[Any, Any], "Figure"]]
CLASSES: Plots = {
    "reliability": _reliability,
    "confidence": lambda p, y: _sets(p, y, share=False),
    "share": lambda p, y: _sets(p, y, share=True),
    "uncertainty": lambda p, y: plots.uncertainty_per_example(
        p.expected_entropy.reshape(-1), p.mutual_information.reshape(-1), "entropy, nats"
    ),
}
REGRESSION: Plots = {
    "intervals": _intervals,
    "calibration": _calibration,
    "uncertainty": lambda p, y: plots.uncertainty_per_example(
        p.aleatoric.reshape(-1), p.epistemic.reshape(-1), "variance of y"
    ),
}
