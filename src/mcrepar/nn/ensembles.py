"""Draws of a Bayesian neural network as an ordinary one, for export: its answer is the mean over them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.likelihoods import Likelihood, likelihood_of
from mcrepar.nn.batches import Output, the_tensor
from mcrepar.nn.module import random_parts
from mcrepar.nn.prediction_passes import evaluating, plain_draw
from mcrepar.validation import check_generator, whole_number


class Ensemble(nn.Module):
    """An ordinary module that averages the answers of several networks; made by `ensemble`.

    E[y | x] = mean_k E[y | x, W_k]

    Args:
        members: networks that hold one draw of the weights each.
        likelihood: of y given a network's output; None takes the output itself for y.
        output: what to take of a network that returns more than a tensor.
    """

    def __init__(self, members: list[nn.Module], likelihood: Likelihood | None, output: Output) -> None:
        super().__init__()
        self.members, self.likelihood, self.output = nn.ModuleList(members), likelihood, output

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The mean of y; for classes their mean probabilities."""
        outputs = (the_tensor(member(*args, **kwargs), self.output) for member in self.members)
        means = [out if self.likelihood is None else self.likelihood.mean(out) for out in outputs]
        return sum(means[1:], means[0]) / len(means)


def ensemble(
    bnn: nn.Module,
    draws: int = 10,
    likelihood: Likelihood | str | None = None,
    generator: torch.Generator | None = None,
    *,
    output: Output = None,
) -> Ensemble:
    """The predictive mean over fixed draws of the weights, as an ordinary module for torch.export or ONNX.

    E[y | x] = mean_k E[y | x, W_k], the draws (with norm statistics of their own) being those of
    predict(bnn, x, draws, likelihood=likelihood, generator=generator)

    To the exporters it is a forward(*args): a batch of any size is dynamic_shapes=(({0: Dim.AUTO},),).

    Args:
        bnn: a Bayesian neural network, or an ordinary one that contains Bayesian layers; it is left as it is.
        draws: how many copies of the network the module holds.
        likelihood: of y: an object or "categorical", "bernoulli", "normal"; None averages the outputs themselves.
        generator: the source of the draws; None is the default RNG.
        output: what to take of a network that returns more than a tensor: an index, a key or a function.

    >>> from mcrepar import bayesian
    >>> plain = ensemble(bayesian(nn.Linear(2, 3)), draws=4, likelihood="categorical")
    >>> plain(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    >>> len(plain.state_dict())
    8
    """
    random_parts(bnn, "an ensemble of")
    draws = whole_number("draws", draws)
    check_generator(generator)
    checked = likelihood_of(likelihood)
    with evaluating(bnn), torch.no_grad():
        members = [plain_draw(bnn, generator) for _ in range(draws)]
    return Ensemble(members, copy.deepcopy(checked), output).eval()
