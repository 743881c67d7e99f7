"""Prediction: many draws of the weights, each of them over all of x, become means, spreads, entropies and votes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.actions import Actions, Classes, mixture
from mcrepar.distributions.quantiles import quantile
from mcrepar.errors import MethodError, ParameterError
from mcrepar.likelihoods import Bernoulli, Categorical, Likelihood, NoisyDirichlet, Normal, OneOfMany, likelihood_of
from mcrepar.likelihoods.classes import LEFT_OUT
from mcrepar.nn.batches import Batches, Output, check_examples, with_bar
from mcrepar.nn.module import random_parts
from mcrepar.nn.moments.moment_pass import output_moments
from mcrepar.nn.moments.outputs import statistics
from mcrepar.nn.prediction_passes import evaluating
from mcrepar.nn.stacks import draws_at_once, outputs
from mcrepar.validation import check_generator, probability, whole_number

MAX_BYTES = 2**30
Rows = tuple[Tensor, ...]  # mean and variance of y, and the probabilities of classes where there are any


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Actions):
    """The distribution of y given x, averaged over draws of the weights; made by `predict`.

    Var y = aleatoric + epistemic = E Var[y | W] + Var E[y | W]

    Args:
        draws: the number of draws of the weights.
        mean: E y, (examples, ...): the network's output without a likelihood, probabilities for classes.
        aleatoric: the mean over draws of the variance of y given the weights; 0 without a likelihood.
        epistemic: the variance over draws of the mean of y given the weights.
        likelihood: of y given the output; None takes the output itself for y.
        kept: the means of all draws, (draws, examples, ...), or None where they would have passed `max_bytes`.
        noise: the variances of y for all draws, likewise.
        classes: probabilities and votes, for a likelihood of classes.
    """

    draws: int
    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    likelihood: Likelihood | None = None
    kept: Tensor | None = None
    noise: Tensor | None = None
    classes: Classes | None = None

    def __repr__(self) -> str:
        shape, kept = tuple(self.mean.shape), "" if self.kept is None else ", with samples"
        return f"Prediction({self.draws} draws, y of shape {shape}, likelihood={self.likelihood}{kept})"

    @property
    def std(self) -> Tensor:
        """The standard deviation of y, sqrt(aleatoric + epistemic)."""
        return (self.aleatoric + self.epistemic).sqrt()

    @property
    def samples(self) -> Tensor:
        """The mean of y for every draw, (draws, examples, ...)."""
        if self.kept is None:
            raise MethodError(
                "the samples of a prediction",
                f"{self.draws} draws of {tuple(self.mean.shape)} passed max_bytes, only their statistics remain",
                "predict(..., max_bytes=...) with a larger bound, fewer draws, or a part of x",
            )
        return self.kept

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with this probability: quantiles of the mixture of all draws.

        mean_k Phi((bound - mean_k) / std_k) = (1 -+ level) / 2 with a Normal likelihood, quantiles of samples without
        """
        if probability("interval", level) in (0, 1):
            raise ParameterError(f"interval({level})", "it is not a probability between 0 and 1", "interval(0.9)")
        if self.likelihood is not None and not isinstance(self.likelihood, Normal):
            kind = type(self.likelihood).__name__
            raise MethodError(f"the interval of a {kind} y", "its y is not Normal given the weights", "mean and std")
        lower, upper = (quantile(self.samples, self.noise, (1 + sign * level) / 2) for sign in (-1, 1))
        return lower, upper

    def log_prob(self, y: Any) -> Tensor:
        """The log predictive density of y, output by output: (examples, ...).

        log p(y | x) = log mean_k p(y | x, W_k), a mixture of Normals for a Normal likelihood

        Args:
            y: a tensor or array as the likelihood takes it; for a soft label it is the mean over the label. Voxels that
                a uint8 y leaves out have NaN.
        """
        y = torch.as_tensor(y).cpu()
        match self.likelihood:
            case Categorical() | NoisyDirichlet():
                self.likelihood.check(self.probs, y)
                if y.is_floating_point():
                    return torch.xlogy(y.to(self.probs.dtype), self.probs).sum(1)
                out = (y == LEFT_OUT) & (y.dtype == torch.uint8)  # of PerVoxel; others have refused it
                found = self.probs.gather(1, y.long().masked_fill(out, 0).unsqueeze(1)).squeeze(1).log()
                return found.masked_fill(out, math.nan)
            case Bernoulli():
                self.likelihood.check(self.mean, y)
                yes = y.to(self.mean.dtype)
                return torch.xlogy(yes, self.probs[:, 1]) + torch.xlogy(1 - yes, self.probs[:, 0])
            case Normal():
                Normal().check(self.mean, y)
                mean, variance = (t.to(self.mean.dtype) for t in (self.samples, self._noise))
                each = -0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())
                return torch.logsumexp(each, 0) - math.log(self.draws)
        what = "a prediction without a likelihood" if self.likelihood is None else f"a {self.likelihood} y"
        raise MethodError(f"log_prob of {what}", "it has no density here", "predict(..., likelihood='normal')")

    @property
    def probs(self) -> Tensor:
        """The mean probabilities of the classes, (examples, classes, ...); two classes for Bernoulli."""
        return self._of_classes.probs

    @property
    def votes(self) -> Tensor:
        """How many draws vote for each class, (examples, classes, ...)."""
        return self._of_classes.votes

    @property
    def label(self) -> Tensor:
        """The class that most draws vote for; among equals the one with the largest mean probability."""
        most = self.votes == self.votes.amax(1, keepdim=True)
        return torch.where(most, self.probs, -1.0).argmax(1)

    @property
    def entropy(self) -> Tensor:
        """-sum_c p_c log p_c of the mean probabilities, in nats: the whole uncertainty."""
        entropy: Tensor = torch.special.entr(self.probs).sum(1)
        return entropy

    @property
    def expected_entropy(self) -> Tensor:
        """The mean of the draws' entropies, in nats: what remains if the weights were known."""
        return self._of_classes.expected_entropy

    @property
    def mutual_information(self) -> Tensor:
        """entropy - expected_entropy, in nats: what knowing the weights would tell."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def confidence(self) -> Tensor:
        """The share of draws that vote for the predicted class (the paper's confidence)."""
        return self.votes.amax(1) / self.draws

    def confident(self, level: float = 0.9) -> Tensor:
        """The mask of the confidence set: confidence >= level."""
        least = probability("confident", level) * self.draws - 1e-9  # whole numbers: 9 of 10 draws are 0.9
        return self.votes.amax(1) >= least

    @property
    def _noise(self) -> Tensor:
        assert self.noise is not None, "it is kept with the samples"
        return self.noise

    @property
    def _of_classes(self) -> Classes:
        if self.classes is None:
            raise MethodError(
                "classes of a prediction", "its y is not a class", "predict(..., likelihood='categorical')"
            )
        return self.classes


def predict(
    bnn: nn.Module | Sequence[nn.Module],
    x: Any,
    draws: int | str = 100,
    batch_size: int = 256,
    likelihood: Likelihood | str | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    *,
    output: Output = None,
    max_bytes: int = MAX_BYTES,
) -> Prediction:
    """The predictive distribution of a Bayesian neural network, in eval mode, without gradients.

    p(y | x) = mean_k p(y | x, W_k), one draw W_k (with norm statistics of its own) serving all of x

    Inside of bnn.frozen(...) all draws are the frozen one.

    Args:
        bnn: a Bayesian neural network, or an ordinary one that contains Bayesian layers; a list of them is an
            ensemble, of which every member makes the same number of draws, `draws` in all at least.
        x: a tensor or array, a tuple of arguments or a dict of keyword arguments, cut along dimension 0; or an iterable
            of batches in a fixed order (a list, a DataLoader), of which a tuple or list means (inputs, targets, ...).
        draws: the number of draws of the weights; "moments" carries mean and variance of every activation through the
            network in one pass instead, with the variances that `calibrate_moments` has fitted, if it was called.
        batch_size: how many examples go through the network at once.
        likelihood: of y: an object or "categorical", "bernoulli", "normal". None takes the outputs themselves for y
            (regression without noise); classification must be asked for.
        generator: the source of the draws, of any device; None is the default RNG.
        progress: show a bar, where rich is installed.
        output: what to take of a network that returns more than a tensor: an index, a key or a function.
        max_bytes: up to which the samples are kept, on the CPU; beyond it running statistics only.

    >>> from mcrepar import bayesian
    >>> bnn = bayesian(nn.Linear(2, 3))
    >>> p = predict(bnn, torch.zeros(5, 2), draws=10, likelihood="categorical")
    >>> p.probs.shape, p.label.shape, p.confident(0.9).dtype
    (torch.Size([5, 3]), torch.Size([5]), torch.bool)
    """
    if isinstance(bnn, Sequence):
        networks = whole_number("the number of networks", len(bnn))
        each = draws if draws == "moments" else -(-whole_number("draws", draws, other="'moments'") // networks)
        most = max_bytes // networks
        shared = batch_size, likelihood, generator, progress
        return mixture([predict(one, x, each, *shared, output=output, max_bytes=most) for one in bnn])
    random_parts(bnn, "a prediction of")
    one_pass = draws == "moments"
    draws = 1 if one_pass else whole_number("draws", draws, other="'moments'")
    batch_size, max_bytes = whole_number("batch_size", batch_size), whole_number("max_bytes", max_bytes, least=0)
    check_generator(generator)
    likelihood = likelihood_of(likelihood)
    batches = Batches(x, batch_size, bnn)
    reader = None if likelihood is None else copy.deepcopy(likelihood).cpu()
    if one_pass:
        members = output_moments(bnn, batches, output)
        found = statistics(reader, members, partial(_read, reader), max_bytes, generator)
        classes, parts = found.classes and Classes(*found.classes), (found.mean, found.aleatoric, found.epistemic)
        return Prediction(found.draws, *parts, likelihood, found.kept, found.noise, classes)
    tally: _Tally | None = None
    with evaluating(bnn), torch.no_grad():
        at_once = draws_at_once(bnn, batches, draws, output)
        for k in with_bar(range(0, draws, at_once), progress):
            outs = outputs(bnn, batches, k, min(at_once, draws - k), generator, output)
            if not outs:
                raise ParameterError("predict(bnn, x)", "x holds no batch", "at least one example")
            rows = _stack(reader, torch.cat(outs, 1).cpu())  # a device is waited for once
            tally = tally or _Tally(draws, likelihood, max_bytes, rows)
            tally.add(rows)
    assert tally is not None
    return tally.prediction()


class _Tally:
    """Running statistics of the draws in float64, and the samples while they fit.

    Args:
        draws: how many will come.
        likelihood: of y.
        max_bytes: up to which samples are kept.
        rows: those of the first draw, for their shapes.
    """

    def __init__(self, draws: int, likelihood: Likelihood | None, max_bytes: int, rows: Rows) -> None:
        mean, _, *probs = (column[0] for column in rows)
        self.likelihood, self.count = likelihood, 0
        self.dtype = torch.promote_types(mean.dtype, torch.float32)
        self.mean, self.squares, self.aleatoric = (torch.zeros_like(mean, dtype=torch.float64) for _ in range(3))
        noisy = isinstance(likelihood, Normal)  # its interval needs the noise of every draw
        fits = draws * mean.nbytes * (2 if noisy else 1) <= max_bytes
        self.kept = mean.new_empty((draws, *mean.shape)) if fits else None
        self.noise = mean.new_empty((draws, *mean.shape)) if fits and noisy else None
        for p in probs:
            self.probs = torch.zeros_like(p, dtype=torch.float64)
            self.votes = torch.zeros_like(p, dtype=torch.int64)
            self.expected = self.probs.sum(1)

    def add(self, rows: Rows) -> None:
        """Some draws of all examples: (draws, examples, ...)."""
        mean, noise, *probs = rows
        if mean.shape[1:] != self.mean.shape:
            shapes = f"one draw gave {tuple(self.mean.shape)} and another {tuple(mean.shape[1:])}"
            raise ParameterError("predict(bnn, x)", shapes, "an x of fixed length")
        before, self.count = self.count, self.count + len(mean)
        for store, column in ((self.kept, mean), (self.noise, noise)):
            if store is not None:
                store[before : self.count] = column
        share, wide = len(mean) / self.count, mean.double()
        own = wide.mean(0)  # with the squares around it, joined to those of before (Chan et al.)
        step = own - self.mean
        self.squares += (wide - own).square_().sum(0) + step * step * (before * share)
        self.mean += step * share
        self.aleatoric += (noise.double().mean(0) - self.aleatoric) * share
        for p in probs:
            self.probs += (p.double().mean(0) - self.probs) * share
            vote = p.max(2, keepdim=True).indices  # faster than argmax where classes are not neighbours in memory
            self.votes += torch.zeros_like(p, dtype=torch.int64).scatter_(2, vote, 1).sum(0)
            self.expected += (torch.special.entr(p.double()).sum(2).mean(0) - self.expected) * share

    def prediction(self) -> Prediction:
        """What remains of the draws."""
        check_examples(self.mean)
        classes = None
        if isinstance(self.likelihood, OneOfMany | Bernoulli):
            classes = Classes(self.probs.to(self.dtype), self.votes, self.expected.to(self.dtype))
        mean, aleatoric, epistemic = (t.to(self.dtype) for t in (self.mean, self.aleatoric, self.squares / self.count))
        return Prediction(self.count, mean, aleatoric, epistemic, self.likelihood, self.kept, self.noise, classes)


def _read(likelihood: Likelihood | None, out: Tensor) -> Rows:
    """Mean and variance of y, and the probabilities of classes, (examples, classes, ...), of an output on the CPU."""
    if likelihood is None:
        return out, torch.zeros_like(out)
    likelihood.check_output(out)
    if isinstance(likelihood, OneOfMany):
        p = likelihood.probs(out)
        return p, p * (1 - p), p  # mean and aleatoric variance of the labels, by one softmax
    columns = [likelihood.mean(out), likelihood.aleatoric(out)]
    if isinstance(likelihood, Bernoulli):
        columns.append(torch.stack([likelihood.probs(-out), likelihood.probs(out)], 1))
    return tuple(columns)


def _stack(likelihood: Likelihood | None, outs: Tensor) -> Rows:
    """The same of several draws: (draws, examples, ...) each."""
    if likelihood is not None:
        likelihood.check_output(outs[0])
    return tuple(c.reshape(*outs.shape[:2], *c.shape[1:]) for c in _read(likelihood, outs.flatten(0, 1)))
