"""The validation ELBO and score: a few draws of the weights, each with norm statistics of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.data.dataset import Split
from mcrepar.likelihoods import Categorical, Likelihood
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.passes import evaluating
from mcrepar.training.distributed import World

BATCH = 500


def total_score(likelihood: Likelihood, mean: Tensor, y: Tensor) -> float:
    """How many answers are right, or the sum of squared errors.

    Args:
        likelihood: of y.
        mean: probabilities of classes, or the mean of y.
        y: classes, or numbers in the shape of the mean.
    """
    if isinstance(likelihood, Categorical):
        return float((mean.argmax(1) == y).sum())
    return float((mean - y).square().sum())


def mean_score(likelihood: Likelihood, total: float, count: float) -> float:
    """The accuracy, or the root of the mean squared error."""
    return total / count if isinstance(likelihood, Categorical) else float((total / count) ** 0.5)


def validate(
    net: nn.Module,
    likelihood: Likelihood,
    split: Split,
    batch: Callable[[Split], tuple[Tensor, Tensor]],
    draws: int,
    world: World,
) -> tuple[float, float]:
    """The mean over data and draws of the negative log likelihood, and the score of the draws' mean.

    Every process takes a share of the data; the draws, from the default RNG, must be the same on all.

    Args:
        net: Bayesian, or still plain (then there is one pass).
        likelihood: of y.
        split: the validation data.
        batch: from raw data to the network's input and y.
        draws: of the weights.
        world: of processes.
    """
    mine = torch.arange(world.rank, len(split), world.size)
    parts = [split.at(mine[k : k + BATCH]) for k in range(0, len(mine), BATCH)]
    draws = draws if isinstance(net, BayesianModule) else 1
    means: list[Any] = [0.0] * len(parts)
    nll = score = 0.0
    with evaluating(net), torch.no_grad():
        for _ in range(draws):
            run = partial(net.run, net.complete(net.draw())) if isinstance(net, BayesianModule) else net
            for place, part in enumerate(parts):
                x, y = batch(part)
                output = run(x).float()
                nll -= float(likelihood.log_prob(output, y).sum()) / draws
                means[place] = means[place] + likelihood.mean(output) / draws
        for mean, part in zip(means, parts, strict=True):
            score += total_score(likelihood, mean, batch(part)[1])
    total_nll, total = (sum(column) for column in zip(*world.gather([nll, score]), strict=True))
    return total_nll / len(split), mean_score(likelihood, total, len(split))
