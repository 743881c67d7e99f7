"""log p(y | the network's output), and what it says of y: the mean, the probabilities, the noise that stays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcrepar import checks
from mcrepar.errors import MethodError, ParameterError

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


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


class Categorical(Likelihood):
    """One of C classes, with the class dimension 1 as in F.cross_entropy: (batch, C, ...) for a y of (batch, ...).

    log p(y | u) = u_y - log sum_c exp(u_c), its mean over a soft label: a y of floats, (batch, C, ...), which sum to 1
    over the classes (mixup, label smoothing)

    >>> Categorical().log_prob(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
    tensor([0.2500, 0.2500])
    """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        target = y.to(output.dtype) if y.is_floating_point() else y.long()
        return -_summed(F.cross_entropy(output, target, reduction="none"))

    def probs(self, output: Tensor) -> Tensor:
        return _wide(output).softmax(1)

    def _check_output(self, output: Tensor) -> None:
        if output.dim() < 2:
            self._refuse(f"output has the shape {tuple(output.shape)}", "an output of (batch, classes, ...)")

    def _check(self, output: Tensor, y: Tensor) -> None:
        if y.is_floating_point() and y.dim() == output.dim():
            return self._check_soft(output, y)
        if y.is_floating_point() or y.dtype == torch.bool:
            soft = f"probabilities of shape {tuple(output.shape)}"
            self._refuse(f"y has dtype {y.dtype}", f"class numbers of an integer dtype, or {soft}")
        self._check_shape((output.shape[0], *output.shape[2:]), y, output)
        classes = output.shape[1]
        return self._refuse_if(
            lambda: ((y < 0) | (y >= classes)).any(),
            lambda: f"y lies between {int(y.min())} and {int(y.max())}, and there are {classes} classes",
            f"0 to {classes - 1}",
            "y is no class",
        )

    def _check_soft(self, output: Tensor, y: Tensor) -> None:
        self._check_shape(tuple(output.shape), y, output)
        sums = _wide(y).sum(1)
        self._refuse_if(
            lambda: (y < 0).any() | ((sums - 1).abs() > 1e-2).any(),  # halves sum to 1 with such an error
            lambda: (
                f"soft labels lie above {float(y.min()):g} and sum to {float(sums.min()):g} up to {float(sums.max()):g}"
            ),
            "probabilities that sum to 1 over dimension 1",
            "the soft labels of y are no probabilities",
        )


class Bernoulli(Likelihood):
    """Yes or no for every output, which is a logit: y in {0, 1}, or in [0, 1] as grey values of an autoencoder.

    log p(y | u) = y u - log(1 + exp(u))

    >>> Bernoulli().log_prob(torch.zeros(1, 3), torch.ones(1, 3)).exp()
    tensor([0.1250])
    """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return -_summed(F.binary_cross_entropy_with_logits(output, y.to(output.dtype), reduction="none"))

    def probs(self, output: Tensor) -> Tensor:
        """The probability of y = 1, output by output."""
        return _wide(output).sigmoid()

    def _check(self, output: Tensor, y: Tensor) -> None:
        self._check_shape(tuple(output.shape), y, output)
        self._refuse_if(
            lambda: ((y < 0) | (y > 1)).any(),
            lambda: f"y lies between {float(y.min()):g} and {float(y.max()):g}",
            "values between 0 and 1",
            "y is not between 0 and 1",
        )


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
        number = isinstance(scale, int | float) and not isinstance(scale, bool)
        if not (number and 0 < float(scale) < math.inf) and scale not in ("learned", "heteroscedastic"):
            right = "a positive number, 'learned' or 'heteroscedastic'"
            raise ParameterError(f"Normal(scale={scale!r})", "it is not a standard deviation", right)
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
            return _summed(square * (-0.5 * precision * precision) - (math.log(self.fixed_scale) + _HALF_LOG_2PI))
        return _summed(-0.5 * square * torch.exp(-2 * log_scale) - log_scale - _HALF_LOG_2PI)

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


def _wide(output: Tensor) -> Tensor:
    """At least single precision: probabilities in bfloat16 sum to 1 within 7e-4 only."""
    return output.float() if output.dtype.itemsize < 4 else output


def _summed(values: Tensor) -> Tensor:
    """The sum over everything but the batch."""
    return (values if values.dim() == 2 else values.reshape(len(values), -1)).sum(1)


LIKELIHOODS: Mapping[str, type[Likelihood]] = {"categorical": Categorical, "bernoulli": Bernoulli, "normal": Normal}


def likelihood_of(asked: Likelihood | str | None) -> Likelihood | None:
    """A likelihood by its name, or as it is; None takes the network's outputs themselves for y.

    >>> likelihood_of("categorical")
    Categorical()
    """
    if asked is None or isinstance(asked, Likelihood):
        return asked
    if asked not in LIKELIHOODS:
        known = " or ".join(map(repr, LIKELIHOODS))
        raise ParameterError(f"likelihood={asked!r}", "there is no such likelihood", known)
    return LIKELIHOODS[asked]()


def quantile(samples: Tensor, noise: Tensor | None, p: float) -> Tensor:
    """The p-quantile over dimension 0: of the samples, or of the mixture of Normals around them.

    mean_k Phi((quantile - samples_k) / sqrt(noise_k)) = p

    Args:
        samples: (draws, ...).
        noise: the variances of the Normals, in the same shape; None is the samples alone, interpolated linearly.
        p: between 0 and 1.

    >>> quantile(torch.tensor([0.0, 1.0, 2.0]), None, 0.25), quantile(torch.zeros(2), torch.ones(2), 0.975)
    (tensor(0.5000), tensor(1.9600))
    """
    means = samples.double()
    if noise is not None:
        value: Tensor = _mixture_quantile(means, noise.double().sqrt(), p)
    else:
        ordered, place = means.sort(0).values, p * (len(means) - 1)
        before, after = math.floor(place), math.ceil(place)
        value = torch.lerp(ordered[before], ordered[after], place - before)
    return value.to(torch.promote_types(samples.dtype, torch.float32))


def _mixture_quantile(means: Tensor, std: Tensor, p: float) -> Tensor:
    """Newton's steps, halving the interval where they leave it; it begins with the quantiles of the parts."""
    ends: Tensor = means + std * torch.special.ndtri(torch.tensor(p, dtype=torch.float64))
    low, high, value = ends.amin(0), ends.amax(0), ends.mean(0)
    for _ in range(100):
        z = (value - means) / std
        excess = torch.special.ndtr(z).mean(0) - p
        low, high = torch.where(excess < 0, value, low), torch.where(excess < 0, high, value)
        slope = (torch.exp(-z * z / 2) / std).mean(0) / math.sqrt(2 * math.pi)
        newton = value - excess / slope
        value, before = torch.where((low <= newton) & (newton <= high), newton, (low + high) / 2), value
        if bool(((value - before).abs() <= 1e-10 * std.amin(0)).all()):
            break
    return value
