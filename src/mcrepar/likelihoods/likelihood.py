"""The distribution of y given the output of a network: what every likelihood has, and what it checks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor, nn

from mcrepar import checks
from mcrepar.errors import MethodError, ParameterError

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Likelihood(nn.Module, ABC):
    """The distribution of y given the network's output; a module, because its scale may be learned.

    A new one has `log_prob`, `_check`, which refuses a y that `log_prob` cannot take (and `_check_output` an output),
    and either `probs`, if its y is a class, or `mean` and `aleatoric`.
    """

    @abstractmethod
    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """The sum of log p(y | output) over the outputs of an example: (batch,)."""

    def mean(self, output: Tensor) -> Tensor:
        """E[y | output]; for classes their probabilities."""
        return self.probs(output)

    def aleatoric(self, output: Tensor) -> Tensor:
        """Var[y | output], in the shape of `mean`: the part of the uncertainty that no data removes."""
        p = self.probs(output)
        return p * (1 - p)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """E log p(y | u) for independent Normal outputs u, summed over the outputs of an example: (batch,)."""
        kind = type(self).__name__
        raise MethodError(f"draws='moments' with {kind}", "it has no `expected_log_prob`", "draws=1, or another one")

    def probs(self, output: Tensor) -> Tensor:
        """The probabilities of the classes."""
        raise MethodError(f"probs of {type(self).__name__}", "its y is not a class", "mean and aleatoric")

    @property
    def options(self) -> dict[str, float | str]:
        """The arguments that make another one of its kind, for a file; what was learned is in its state_dict."""
        return {}

    @abstractmethod
    def _check(self, output: Tensor, y: Tensor) -> None: ...

    def _check_output(self, output: Tensor) -> None:
        """Any shape will do, unless a likelihood says more."""

    def check_output(self, output: object) -> Tensor:
        """Refuse an output that says nothing of y: its type, dtype or shape."""
        output = self._batch("output", output)
        if not output.is_floating_point():
            self._refuse(f"output has dtype {output.dtype}", "a floating-point tensor")
        self._check_output(output)
        return output

    def check(self, output: object, y: object) -> None:
        """Refuse an output or a y that `log_prob` cannot take: its type, dtype, shape, range, or NaN."""
        output, y = self.check_output(output), self._batch("y", y)
        if y.is_complex():
            self._refuse(f"y has dtype {y.dtype}", "a real tensor")
        if output.device != y.device:
            self._refuse(f"output is on {output.device} and y on {y.device}", "one device")
        self._check(output, y)
        if y.is_floating_point():
            checks.refuse(
                lambda: y.isnan().any(),
                lambda: self._error(
                    f"y is NaN at {tuple(y.isnan().nonzero()[0].tolist())}, one of {int(y.isnan().sum())}",
                    "data without missing values",
                ),
                "y is NaN",
                lambda: y.detach().sum(),
            )

    def examples(self, y: Tensor) -> int:
        """How many examples a batch has at least, in the unit of `data_size`."""
        return len(y) if y.dim() else 1

    def _batch(self, name: str, value: object) -> Tensor:
        if not isinstance(value, Tensor):
            self._refuse(f"{name} is a {type(value).__name__}", "a tensor (wrap a network that returns more)")
        if value.dim() == 0 or len(value) == 0:
            self._refuse(f"{name} has the shape {tuple(value.shape)}, without a batch", "a batch of examples")
        return value

    def _refuse(self, why: str, instead: str) -> NoReturn:
        raise self._error(why, instead)

    def _refuse_if(self, wrong: Callable[[], Tensor], why: Callable[[], str], instead: str, what: str) -> None:
        """The same where `wrong`; `what` is all that is said of it on a device."""
        checks.refuse(wrong, lambda: self._error(why(), instead), what)

    def _error(self, why: str, instead: str) -> ParameterError:
        return ParameterError(f"{type(self).__name__} likelihood", why, instead)

    def _check_shape(self, wanted: tuple[int, ...], y: Tensor, output: Tensor) -> None:
        if tuple(y.shape) != wanted:
            shapes = f"y has the shape {tuple(y.shape)}, and the output {tuple(output.shape)}"
            by = f", for instance by y.reshape{wanted}" if y.numel() == math.prod(wanted) else ""
            self._refuse(shapes, f"a y of shape {wanted}{by}")


def log_prob_of_square(square: Tensor, log_scale: Tensor) -> Tensor:
    """The log density of a Normal as a function of (y - mean)^2, in which it is linear; summed over outputs."""
    return summed(-0.5 * square * torch.exp(-2 * log_scale) - log_scale - HALF_LOG_2PI)


def wide(output: Tensor) -> Tensor:
    """At least single precision: probabilities in bfloat16 sum to 1 within 7e-4 only."""
    return output.float() if output.dtype.itemsize < 4 else output


def summed(values: Tensor) -> Tensor:
    """The sum over everything but the batch."""
    return (values if values.dim() == 2 else values.reshape(len(values), -1)).sum(1)
