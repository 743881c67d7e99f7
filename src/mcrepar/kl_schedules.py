"""The weight of the KL by step: one row per schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mcrepar.errors import MethodError, ParameterError
from mcrepar.validation import closest, real_number, whole_number

SCHEDULES: Mapping[str, Callable[..., float]] = {
    "graves": lambda step: 1.0,
    "blundell": lambda step, batches: batches * 2.0 ** -(step % batches + 1) / (1 - 2.0**-batches),  # without overflow
    "paper": lambda step, batch_size: float(batch_size),
    "constant": lambda step, beta: beta,
    "linear": lambda step, steps, beta=1.0: beta * min(1.0, step / steps),
    "cyclic": lambda step, period, ratio=0.5, beta=1.0: beta * min(1.0, (step % period) / (period * ratio)),
}


@dataclass(frozen=True)
class KLWeight:
    """A schedule of beta; made by `kl_weight`.

    Args:
        name: of the schedule.
        options: its numbers.
    """

    name: str
    options: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __call__(self, step: int) -> float:
        """The beta of a step, counted from 0."""
        return SCHEDULES[self.name](whole_number("step", step, least=0), **self.options)


def kl_weight(name: str, **options: float) -> KLWeight:
    """A schedule step -> beta, steps counted from 0; loss = nll + beta * KL / data_size.

    Args:
        name: "graves": 1.
            "blundell": B 2^(B-i) / (2^B - 1) for i = 1..B over an epoch of B batches, with the mean 1.
            "paper": the batch size, so that the KL is divided by the number of batches.
            "constant": beta (below 1 a tempered posterior).
            "linear": from 0 to beta over a number of steps.
            "cyclic": from 0 to beta over the first part of every period, then beta.
        options: blundell: batches; paper: batch_size; constant: beta; linear: steps, beta=1;
            cyclic: period, ratio=0.5 (that first part), beta=1.

    >>> beta = kl_weight("linear", steps=100)
    >>> beta(0), beta(50), beta(200)
    (0.0, 0.5, 1.0)
    """
    if name not in SCHEDULES:
        near = closest(name, SCHEDULES)
        raise MethodError(f"kl_weight({name!r})", "no schedule has this name", " or ".join(map(repr, near)))
    known = dict(list(inspect.signature(SCHEDULES[name]).parameters.items())[1:])
    listed = ", ".join(f"{option}=..." for option in known) or "no options"
    for option in options:
        if option not in known:
            raise ParameterError(f"kl_weight({name!r}, {option}=...)", "it has no such option", listed)
    for option, parameter in known.items():
        if option not in options and parameter.default is inspect.Parameter.empty:
            raise ParameterError(f"kl_weight({name!r})", f"it needs {option}", listed)
    return KLWeight(name, {option: _option(option, value) for option, value in options.items()})


def _option(name: str, value: float) -> float:
    if name not in ("beta", "ratio"):
        return whole_number(name, value)
    number = beta_number(name, value)
    if name == "ratio" and not 0 < number <= 1:
        raise ParameterError(f"ratio={value}", "it is no share of a period", "a number above 0 and up to 1")
    return number


def beta_number(name: str, value: object) -> float:
    """A weight of the KL, or a refusal: finite and at least 0."""
    if isinstance(value, KLWeight):
        raise ParameterError(f"{name}={value}", "it is a schedule", f"its value at a step, {name}=schedule(step)")
    return real_number(name, value, 0, closed=True, instead="a number such as 1.0")
