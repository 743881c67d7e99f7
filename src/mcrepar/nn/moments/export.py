"""The pass of moments as an ordinary module, for export: mean and variance of the output in one graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mcrepar.errors import MethodError
from mcrepar.nn.batches import Output
from mcrepar.nn.calibration import MomentFactor
from mcrepar.nn.module import BayesianModule, random_parts
from mcrepar.nn.moments.moment_pass import check_moments, scaled, weight_moments
from mcrepar.nn.moments.tensor import Factors, MomentTensor, precise
from mcrepar.nn.prediction_passes import evaluating, stored_statistics
from mcrepar.nn.swap import plain_copy


class MomentModule(nn.Module):
    """An ordinary module that answers with mean and variance of an output; made by `moment_module`.

    Args:
        net: an ordinary network, with the means in the place of random weights.
        weights: the moments of the random weights, by their names.
        factors: of variances, as `calibrate_moments` fits them.
        output: what to take of a network that returns more than a tensor.
    """

    def __init__(
        self, net: nn.Module, weights: dict[str, MomentTensor], factors: tuple[MomentFactor, ...], output: Output
    ) -> None:
        super().__init__()
        self.net, self.output = net, output
        self.parts = {name: 1 + len(weight.factors or ()) for name, weight in weights.items()}
        for k, weight in enumerate(weights.values()):
            for j, part in enumerate([weight.variance, *(weight.factors or ())]):
                self.register_buffer(f"moment{k}_{j}", part.detach().clone())
        self.operations = [(row.operation, len(row.centre)) for row in factors]
        numbers = [number for row in factors for number in (row.factor, *row.centre)]
        (like,) = precise(next(iter(weights.values())).variance)
        self.register_buffer("factors", torch.tensor(numbers, dtype=like.dtype, device=like.device))

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of the output."""
        held: dict[str, Tensor] = {}
        for k, (name, count) in enumerate(self.parts.items()):
            variance, *rank1 = (getattr(self, f"moment{k}_{j}") for j in range(count))
            held[name] = MomentTensor(self.net.get_parameter(name), variance, Factors(*rank1) if rank1 else None)

        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(self.net, held, args, kwargs, tie_weights=False)

        numbers: Any = torch.split(
            self.get_buffer("factors"), [n for _, centre in self.operations for n in (1, centre)]
        )
        factors: list[Any] = [  # without a dimension: a factor does not decide the dtype of what it multiplies
            MomentFactor(name, numbers[2 * k][0], numbers[2 * k + 1]) for k, (name, _) in enumerate(self.operations)
        ]
        return scaled(call, factors, self.output, args, kwargs)[:2]


def moment_module(bnn: nn.Module, *, output: Output = None) -> MomentModule:
    """Mean and variance of a Bayesian neural network's output as an ordinary module, for torch.export or ONNX.

    What predict(bnn, x, draws="moments") computes, with the factors of `calibrate_moments` and the pooled norm
    statistics; its answer is a pair of tensors.

    Args:
        bnn: made by `bayesian`; it is left as it is.
        output: what to take of a network that returns more than a tensor: an index, a key or a function.

    >>> from mcrepar import bayesian
    >>> plain = moment_module(bayesian(nn.Linear(2, 3)))
    >>> [t.shape for t in plain(torch.zeros(5, 2))]
    [torch.Size([5, 3]), torch.Size([5, 3])]
    """
    random_parts(bnn, "the moments of")
    if not isinstance(bnn, BayesianModule) or bnn.members > 1:
        what = "it has several members" if isinstance(bnn, BayesianModule) else "it is put together by hand"
        raise MethodError(
            "moment_module(bnn)",
            f"{what}, and the module holds one pass through one network",
            "predict(bnn, x, draws='moments')",
        )
    check_moments(bnn)
    with evaluating(bnn), torch.no_grad():
        weights, statistics = weight_moments(bnn), stored_statistics(bnn)
        means = {name: weight.expectation for name, weight in weights.items()}
        plain = plain_copy(bnn, {**means, **statistics}).eval()
    return MomentModule(plain, weights, bnn.calibration.moment_factors, output).eval().requires_grad_(False)
