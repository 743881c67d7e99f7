"""The likelihood of real numbers: Normal noise around the output, of a fixed, learned or predicted scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mcrepar.likelihoods.likelihood import HALF_LOG_2PI, Likelihood, log_prob_of_square, summed
from mcrepar.validation import real_number


class Normal(Likelihood):
    """y = output + scale * noise, independently for every output.

    log p(y | u) = -(y - u)^2 / (2 scale^2) - log scale - log(2 pi) / 2

    Args:
        scale: the standard deviation of y; "learned" for one parameter, `log_scale`, to be given to the optimizer;
            "heteroscedastic" for a network whose output is the mean and log scale, two halves of its last dimension.

    >>> Normal(scale=0.5).log_prob(torch.zeros(1, 1), torch.ones(1, 1))
    tensor([-2.2258])
    >>> [name for name, _ in Normal("learned").named_parameters()]
    ['log_scale']
    >>> Normal("heteroscedastic").mean(torch.tensor([[1.0, 2.0, 0.0, 0.0]]))
    tensor([[1., 2.]])
    """

    log_scale: nn.Parameter | None

    def __init__(self, scale: float | str = 1.0) -> None:
        super().__init__()
        if scale not in ("learned", "heteroscedastic"):
            real_number("Normal with scale", scale, 0, instead="a positive number, 'learned' or 'heteroscedastic'")
        self.kind = scale if isinstance(scale, str) else "fixed"
        self.fixed_scale = 1.0 if isinstance(scale, str) else float(scale)
        self.register_parameter("log_scale", nn.Parameter(torch.zeros(())) if scale == "learned" else None)

    @property
    def options(self) -> dict[str, float | str]:
        """The scale."""
        return {"scale": self.fixed_scale if self.kind == "fixed" else self.kind}

    def split(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The mean, and the log scale that broadcasts to it."""
        if self.kind == "heteroscedastic":
            half = output.shape[-1] // 2
            return output[..., :half], output[..., half:]
        if self.log_scale is not None:
            return output, self.log_scale.to(torch.promote_types(output.dtype, self.log_scale.dtype))
        return output, torch.full((), math.log(self.fixed_scale), dtype=output.dtype, device=output.device)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        mean, log_scale = (output, None) if self.kind == "fixed" else self.split(output)
        return self.log_prob_of_square((y - mean).square(), log_scale)

    def log_prob_of_square(self, square: Tensor, log_scale: Tensor | None) -> Tensor:
        """log p as a function of (y - mean)^2, in which it is linear; without a log scale, with the fixed one."""
        if log_scale is None:
            precision = 1 / self.fixed_scale
            return summed(square * (-0.5 * precision * precision) - (math.log(self.fixed_scale) + HALF_LOG_2PI))
        return log_prob_of_square(square, log_scale)

    def target(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What the output is to be near, and the log scale around it."""
        return y, self.split(output)[1]

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """E (y - u)^2 = (y - m)^2 + v; a Normal log scale l has E exp(-2 l) = exp(-2 E l + 2 Var l)."""
        centre, log_scale = self.split(mean)
        if self.kind != "heteroscedastic":
            return log_prob_of_square((y - centre).square() + variance, log_scale)
        v, spread = variance.tensor_split(2, -1)
        return log_prob_of_square(((y - centre).square() + v) * torch.exp(2 * spread), log_scale)

    def mean(self, output: Tensor) -> Tensor:
        return self.split(output)[0]

    def aleatoric(self, output: Tensor) -> Tensor:
        mean, log_scale = self.split(output)
        return torch.exp(2 * log_scale).expand_as(mean)

    def extra_repr(self) -> str:
        """The scale."""
        return f"scale={self.fixed_scale}" if self.kind == "fixed" else f"scale={self.kind!r}"

    def _check_output(self, output: Tensor) -> None:
        if self.kind == "heteroscedastic" and (output.dim() < 2 or output.shape[-1] % 2):
            shape = f"output has the shape {tuple(output.shape)}, without halves"
            self._refuse(shape, "a last dimension of means and log scales")

    def _check(self, output: Tensor, y: Tensor) -> None:
        if not y.is_floating_point():
            self._refuse(f"y has dtype {y.dtype}", "a floating-point tensor, for instance y.float()")
        *others, last = output.shape
        self._check_shape((*others, last // 2 if self.kind == "heteroscedastic" else last), y, output)
