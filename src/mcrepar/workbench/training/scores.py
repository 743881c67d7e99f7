"""What validation data say of a network in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.data.dataset import Split
from mcrepar.likelihoods import Likelihood, OneOfMany
from mcrepar.nn.calibration import fresh_draw
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.prediction_passes import evaluating
from mcrepar.nn.swap import run as run_on
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.task import MOST_VOXELS

BATCH = 500


@dataclass(frozen=True)
class Validated:
    """Means over the validation examples.

    Args:
        nll: the negative log likelihood, a mean over draws too: the first part of the ELBO.
        lpd: the log predictive density, log of the mean over draws of p(y | draw), in which predictions are averaged.
        score: accuracy or root mean squared error of the averaged predictions.
    """

    nll: float
    lpd: float
    score: float


def total_score(likelihood: Likelihood, mean: Tensor, y: Tensor) -> float:
    """How many answers are right, or the sum of squared errors.

    Args:
        likelihood: of y.
        mean: probabilities of classes, or the mean of y.
        y: classes, also as weighted labels of voxels, or numbers in the shape of the mean.
    """
    if isinstance(likelihood, OneOfMany):
        return float((mean.argmax(1) == (y.argmax(1) if y.dim() == mean.dim() else y)).sum())
    return float((mean - y).square().sum())


def mean_score(likelihood: Likelihood, total: float, count: float) -> float:
    """The accuracy, or the root of the mean squared error."""
    return total / count if isinstance(likelihood, OneOfMany) else float((total / count) ** 0.5)


def validate(
    net: nn.Module,
    likelihood: Likelihood,
    split: Split,
    batch: Callable[[Split], tuple[Tensor, Tensor]],
    draws: int,
    world: World,
) -> Validated:
    """How well a few draws predict, one by one and averaged.

    Every process takes a share of the examples; the draws, from the default RNG, must be the same on all.

    Args:
        net: Bayesian, or still plain (then there is one pass).
        likelihood: of y.
        split: the validation data.
        batch: from raw data to the network's input and y.
        draws: of the weights.
        world: of processes.
    """
    mine = torch.arange(world.rank, len(split), world.size)
    size = BATCH if split.y.dim() == 1 else max(1, min(BATCH, MOST_VOXELS // split.y[0].numel()))
    parts = [split.at(mine[k : k + size]) for k in range(0, len(mine), size)]
    draws = draws if isinstance(net, BayesianModule) else 1
    with evaluating(net), torch.no_grad():
        means, log_probs = _drawn(net, likelihood, [partial(batch, part) for part in parts], draws)
        score = sum(total_score(likelihood, m, batch(part)[1]) for m, part in zip(means, parts, strict=True))
    nll = -sum(float(each.sum()) for each in log_probs) / draws
    lpd = sum(float((each.logsumexp(0) - math.log(draws)).sum()) for each in log_probs)
    nll, lpd, score = (sum(column) for column in zip(*world.gather([nll, lpd, score]), strict=True))
    count = len(split.labels)  # of examples, or of voxels that count
    return Validated(nll / count, lpd / count, mean_score(likelihood, score, count))


def _drawn(
    net: nn.Module, likelihood: Likelihood, batches: Sequence[Callable[[], tuple[Tensor, Tensor]]], draws: int
) -> tuple[list[Any], list[Tensor]]:
    """The mean prediction of every batch, and log p(y | draw) of its examples, (draws, examples)."""
    means: list[Any] = [0.0] * len(batches)
    logs: list[list[Tensor]] = [[] for _ in batches]
    for k in range(draws):
        run: Callable[..., Any] = net
        if isinstance(net, BayesianModule):  # members take turns, as in a prediction
            run = partial(run_on, net, fresh_draw(net, member=k % max(net.members, 1)))
        for place, batch in enumerate(batches):
            x, y = batch()
            output = run(x).float()
            logs[place].append(likelihood.log_prob(output, y).double())
            means[place] = means[place] + likelihood.mean(output) / draws
    return means, [torch.stack(each) for each in logs]
