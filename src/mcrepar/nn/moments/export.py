"""The pass of moments as an ordinary module, for export: mean and variance of the output in one graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.errors import MethodError
from mcrepar.nn.batches import Output, the_tensor
from mcrepar.nn.module import BayesianModule, random_parts
from mcrepar.nn.moments.moment_pass import Scaling, check_moments
from mcrepar.nn.moments.rules import settling
from mcrepar.nn.moments.tensor import Factors, MomentTensor
from mcrepar.nn.moments.weights import weight_moments
from mcrepar.nn.passes import evaluating, stored_statistics
from mcrepar.nn.swap import plain_copy, slot


class MomentModule(nn.Module):
    """An ordinary module that answers with mean and variance of an output; made by `moment_module`.

    Args:
        net: an ordinary network, with the means in the place of random weights.
        weights: the moments of the random weights, by their names.
        factors: of variances, as `calibrate_moments` fits them.
        output: what to take of a network that returns more than a tensor.
    """

    def __init__(
        self, net: nn.Module, weights: dict[str, MomentTensor], factors: tuple[tuple[str, float], ...], output: Output
    ) -> None:
        super().__init__()
        self.net, self.factors, self.output = net, factors, output
        self.names = list(weights)
        self.forms = [weight.factors is not None for weight in weights.values()]
        for k, weight in enumerate(weights.values()):
            parts = [weight.variance]
            if weight.factors is not None:
                parts = [weight.factors.weight, *weight.factors.outputs, *weight.factors.inputs]
            for j, part in enumerate(parts):
                self.register_buffer(f"moment{k}_{j}", part.detach().clone())

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of the output."""
        scaling, held = Scaling(self.factors), []
        for k, (name, factored) in enumerate(zip(self.names, self.forms, strict=True)):
            owner, last = slot(self.net, name)
            mean = owner._parameters.pop(last)
            held.append((owner, last, mean))
            first, *rest = (getattr(self, f"moment{k}_{j}") for j in range(5 if factored else 1))
            assert mean is not None
            if factored:
                factors = Factors(first, (rest[0], rest[1]), (rest[2], rest[3]))
                vars(owner)[last] = MomentTensor(mean, torch.zeros_like(mean), factors)
            else:
                vars(owner)[last] = MomentTensor(mean, first)
        try:
            with settling(scaling if self.factors else lambda name, result: result):
                out = the_tensor(self.net(*args, **kwargs), self.output)
        finally:
            for owner, last, mean in held:
                vars(owner).pop(last, None)
                owner._parameters[last] = mean
        return (out.expectation, out.variance) if isinstance(out, MomentTensor) else (out, torch.zeros_like(out))


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
            "moment_module(bnn)", f"{what}, and the module holds one pass through one network", "nn.ensemble"
        )
    check_moments(bnn)
    with evaluating(bnn), torch.no_grad():
        weights, statistics = weight_moments(bnn), stored_statistics(bnn)
        means = {name: weight.expectation for name, weight in weights.items()}
        plain = plain_copy(bnn, {**means, **statistics}).eval()
    return MomentModule(plain, weights, bnn.calibration.moment_factors, output).eval().requires_grad_(False)
