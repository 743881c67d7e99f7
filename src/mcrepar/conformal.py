"""Conformal prediction: sets of classes and intervals that hold the true y with a stated probability.

A score says how strange y is under a prediction; the threshold is a quantile of the scores of n calibration examples
that the network was not trained on. For a new example that is exchangeable with them

    level <= P(score <= threshold) <= level + 1 / (n + 1),

whatever the network and however few examples there are; the upper bound holds where no two scores are equal (Vovk; Lei
and Wasserman). It is a statement about the mean over examples, not about each of them. Sets of classes hold the most
probable class in any case, so that those of an accurate network hold y more often than the upper bound says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mcrepar.errors import MethodError, ParameterError
from mcrepar.validation import closest, probability, whole_number

Predicted = Any  # a Prediction, which is made of what is here


@dataclass(frozen=True)
class Score:
    """How strange every y is under a prediction: a row of `SCORES`.

    Args:
        meaning: one clause for people.
        classes: the scores of all classes, (examples, classes), from their probabilities and a uniform random number
            for every example, (examples, 1), which breaks ties; None for a regression.
        ends: an interval that is widened by the threshold, and the unit in which it is; None for classes.
        options: its numbers with their defaults.
    """

    meaning: str
    classes: Callable[..., Tensor] | None = None
    ends: Callable[[Any, float], tuple[Tensor, Tensor]] | None = None
    options: Mapping[str, float] = field(default_factory=dict)


def _mass(probs: Tensor, share: Tensor, penalty: float = 0.0, free: float = 0.0) -> Tensor:
    """The probability of all more probable classes, a random share of the class's own, and a penalty beyond `free`.

    sum_{c: p_c > p_y} p_c + u p_y + penalty * max(0, rank(y) - free)

    Without the random share u every least probable class would have the score 1, and confident examples large sets.
    """
    sorted_probs, order = probs.sort(dim=1, descending=True, stable=True)
    ranks = torch.arange(1, probs.shape[1] + 1, dtype=probs.dtype, device=probs.device)
    ordered = sorted_probs.cumsum(1) - (1 - share) * sorted_probs + penalty * (ranks - free).clamp_min(0)
    return torch.empty_like(probs).scatter_(1, order, ordered)


def _shares(probs: Tensor) -> Tensor:
    """Uniform random numbers, (examples, 1): a hash of an example's own probabilities, whatever is predicted beside it.

    The sum of their bits, each word times an odd number of its class, is mixed as in SplitMix64; int64 wraps around.
    """
    classes = torch.arange(1, 2 * probs.shape[1], 2)
    found = (probs.contiguous().view(torch.int64) * (classes * -0x61C8864680B583EB)).sum(1, keepdim=True)
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        found = (found ^ ((found >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((found >> 11) & ((1 << 53) - 1)).double() / 2**53


SCORES: Mapping[str, Score] = {
    "aps": Score("the probability of all more probable classes and a random share of its own (adaptive sets)", _mass),
    "raps": Score(
        "the same with a penalty for every class beyond some (regularized, smaller sets)",
        _mass,
        options={"penalty": 0.1, "free": 2},
    ),
    "split": Score(
        "1 - the probability of the class; |y - mean| of a regression",
        lambda probs, share: 1 - probs,
        lambda p, level: (p.mean, p.mean),
    ),
    "cqr": Score("how far y lies outside of the predicted interval", ends=lambda p, level: p.interval(level)),
}


@dataclass(frozen=True, eq=False)
class Conformal:
    """A calibrated rule that turns predictions into sets; made by `Prediction.conformal`.

    Args:
        method: a key of `SCORES`.
        level: the probability with which a set holds y.
        threshold: of the score: one number, or one for every output of a regression.
        count: how many examples it was calibrated on.
        options: of the score.
        of_classes: whether its sets are of classes, or intervals.
    """

    method: str
    level: float
    threshold: Tensor
    count: int
    options: Mapping[str, float]
    of_classes: bool

    def __call__(self, p: Predicted) -> Any:
        """The sets of a prediction: a mask (examples, classes), or the ends (lower, upper) of intervals.

        A set of classes is never empty: the most probable class is always in it.
        """
        row = SCORES[self.method]
        if (p.classes is not None) != self.of_classes:
            kinds = "a prediction of numbers", "a prediction of classes"
            why = f"it was calibrated on {kinds[self.of_classes]}"
            raise MethodError(f"this conformal rule for {kinds[not self.of_classes]}", why, "one of its own kind")
        if p.classes is not None:
            probs = single_probs(p)
            assert row.classes is not None
            inside = row.classes(probs, _shares(probs), **self.options) <= self.threshold
            return inside.scatter(1, probs.argmax(1, keepdim=True), True)
        assert row.ends is not None
        lower, upper = row.ends(p, self.level)
        wide = self.threshold.to(lower.dtype)
        middle = (lower + upper) / 2  # intervals that shrink beyond nothing
        return torch.minimum(lower - wide, middle), torch.maximum(upper + wide, middle)

    def covered(self, p: Predicted, y: Any) -> Tensor:
        """Which sets hold the true y, (examples, ...)."""
        if p.classes is not None:
            sets: Tensor = self(p)
            return sets.gather(1, _labels(p, y)[:, None])[:, 0]
        lower, upper = self(p)
        true = _numbers(p, y)
        inside: Tensor = (lower <= true) & (true <= upper)
        return inside


def calibrate(p: Predicted, y: Any, level: float = 0.9, method: str | None = None, **options: float) -> Conformal:
    """The rule whose sets hold y with probability `level`, from a prediction of examples that were not trained on.

    Args:
        p: their prediction.
        y: their true classes or values.
        level: between 0 and 1.
        method: "aps", "raps" or "split" for classes, "cqr" or "split" for a regression; None is the first of each.
        options: of "raps": penalty=0.1 for every class beyond the first free=2.

    >>> from torch import nn
    >>> from mcrepar import bayesian, predict
    >>> p = predict(bayesian(nn.Linear(2, 3)), torch.randn(50, 2), draws=10, likelihood="categorical")
    >>> rule = calibrate(p, torch.randint(3, (50,)), level=0.8)
    >>> rule(p).shape, bool(rule.covered(p, torch.zeros(50, dtype=torch.long)).any())
    (torch.Size([50, 3]), True)
    """
    if probability("conformal", level) in (0, 1):
        raise ParameterError(f"conformal(level={level!r})", "it is not a probability between 0 and 1", "level=0.9")
    kind = "classes" if p.classes is not None else "ends"
    fitting = [name for name, row in SCORES.items() if getattr(row, kind) is not None]
    name = fitting[0 if kind == "classes" else -1] if method is None else method
    if name not in fitting:
        what = "classes" if p.classes is not None else "a regression"
        why = f"it is no method for {what}" if name in SCORES else "no method has this name"
        raise MethodError(f"conformal(method={name!r})", why, " or ".join(map(repr, closest(name, fitting))))
    row = SCORES[name]
    for option in options:
        if option not in row.options:
            right = ", ".join(f"{o}={v}" for o, v in row.options.items()) or "no options"
            raise ParameterError(f"conformal({name!r}, {option}=...)", "it has no such option", right)
        if not options[option] >= 0:
            what = f"conformal({name!r}, {option}={options[option]!r})"
            raise ParameterError(what, "it is no number from 0 on", f"{option}={row.options[option]}")
    chosen = {**row.options, **options}
    if p.classes is not None:
        assert row.classes is not None
        probs, labels = single_probs(p), _labels(p, y)
        scores = row.classes(probs, _shares(probs), **chosen).gather(1, labels[:, None])[:, 0]
    else:
        assert row.ends is not None
        lower, upper = row.ends(p, level)
        true = _numbers(p, y)
        scores = torch.maximum(lower - true, true - upper)
    return Conformal(name, level, _quantile(scores, level), len(scores), chosen, p.classes is not None)


def _quantile(scores: Tensor, level: float) -> Tensor:
    """The ceil((n + 1) level)-th smallest score; infinite where there are too few to say."""
    rank = math.ceil((len(scores) + 1) * level - 1e-9)  # 10 * 0.9 is 9.000000000000002 elsewhere
    if rank > len(scores):
        return torch.full(scores.shape[1:], math.inf, dtype=scores.dtype)
    return scores.sort(0).values[whole_number("rank", rank) - 1]


def single_probs(p: Predicted) -> Tensor:
    """The probabilities of one class variable per example, (examples, classes), in double precision."""
    assert p.classes is not None
    probs: Tensor = p.classes.probs.double()
    flat = probs.reshape(*probs.shape[:2], -1)
    if flat.shape[2] != 1:
        why = f"every example has {flat.shape[2]} classes to predict, which are not exchangeable"
        raise MethodError("a set of classes", why, "one output per example")
    return flat[:, :, 0]


def _labels(p: Predicted, y: Any) -> Tensor:
    """The true classes, (examples,)."""
    given, probs = torch.as_tensor(y).cpu(), single_probs(p)
    labels = given.reshape(-1).long()
    if len(labels) != len(probs) or bool((labels != given.reshape(-1)).any()):
        why = f"y has the shape {tuple(given.shape)} for {len(probs)} examples, or is no class"
        raise ParameterError("conformal(y)", why, f"whole numbers of shape ({len(probs)},)")
    if int(labels.min()) < 0 or int(labels.max()) >= probs.shape[1]:
        why = f"y lies between {int(labels.min())} and {int(labels.max())}"
        raise ParameterError("conformal(y)", why, f"classes from 0 to {probs.shape[1] - 1}")
    return labels


def _numbers(p: Predicted, y: Any) -> Tensor:
    """The true values in the shape of the mean."""
    given = torch.as_tensor(y).cpu()
    if given.numel() != p.mean.numel() or not bool(given.isfinite().all()):
        why = f"y has the shape {tuple(given.shape)}, the prediction {tuple(p.mean.shape)}, or is not finite"
        raise ParameterError("conformal(y)", why, f"finite numbers of shape {tuple(p.mean.shape)}")
    return given.reshape(p.mean.shape).to(p.mean.dtype)
