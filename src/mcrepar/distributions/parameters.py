"""The parameters of a family: names, defaults and constraints as data, and the checks that name the offender."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mcrepar.errors import ParameterError, UnknownFamilyError
from mcrepar.validation import closest

Number = float | Tensor


@dataclass(frozen=True)
class Constraint:
    """What a parameter must satisfy: a sentence for the message and a test on tensors."""

    text: str
    holds: Callable[[Tensor], Tensor]


REAL = Constraint("a finite number", lambda x: torch.isfinite(x))
POSITIVE = Constraint("positive and finite", lambda x: torch.isfinite(x) & (x > 0))
UNIT = Constraint("strictly between 0 and 1", lambda x: (x > 0) & (x < 1))
WHOLE = Constraint("a positive whole number", lambda x: (x > 0) & (x == x.floor()) & torch.isfinite(x))


@dataclass(frozen=True)
class Parameter:
    """One parameter of a family."""

    name: str  # as torch.distributions calls it
    constraint: Constraint  # what its value must satisfy
    default: float | None = None  # the printed default; None where the user must give it
    optional: bool = False  # whether None is a value of its own


@dataclass(frozen=True)
class Interval:
    """A support, from `lower` to `upper`.

    >>> Interval(0.0, math.inf) in Interval(-math.inf, math.inf)
    True
    """

    lower: float
    upper: float

    def __contains__(self, other: object) -> bool:
        return isinstance(other, Interval) and self.lower <= other.lower and other.upper <= self.upper

    def holds(self, w: Tensor) -> Tensor:
        """Whether numbers lie inside; 0 does not, as an end."""
        above = w >= self.lower if self.lower else w > 0
        return above & (w <= self.upper)

    def __str__(self) -> str:
        return f"({self.lower:g}, {self.upper:g})"


LINE = Interval(-math.inf, math.inf)
HALF_LINE = Interval(0.0, math.inf)


def canonical(name: str) -> str:
    """A family's name as the tables spell it.

    >>> canonical("Inverse-Gamma"), canonical("Chi-squared")
    ('inverse_gamma', 'chi_squared')
    """
    return "_".join(name.strip().lower().replace("-", " ").replace("_", " ").split())


def find(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    """The row of a table that is called `name`, or an error with the nearest known names."""
    if not isinstance(name, str):
        raise UnknownFamilyError(f"{kind} {name!r}", "a family is asked for by its name", "a string")
    known, aliases = list(table), {alias: key for key, row in table.items() for alias in row.aliases}
    compact = {key.replace("_", ""): key for key in known} | {a.replace("_", ""): k for a, k in aliases.items()}
    key = compact.get(canonical(name).replace("_", ""))
    if key is not None:
        return table[key]
    near = closest(canonical(name), sorted([*known, *aliases]))
    raise UnknownFamilyError(f"{kind} {name!r}", "no family has this name", " or ".join(map(repr, near)))


def check_names(asked: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse parameters that the family does not have."""
    known = list(known)
    for name in given:
        if name not in known:
            raise ParameterError(f"{asked} with {name}=...", f"it has no parameter {name!r}", ", ".join(known))


def check_value(asked: str, parameter: Parameter, value: Any, validate: bool = True) -> Number | None:
    """`value` as a float or a tensor that satisfies the parameter's constraint."""
    name, constraint = parameter.name, parameter.constraint
    what = f"{asked} with {name}={_short(value)}"
    if value is None and parameter.optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise ParameterError(what, f"{name} is a {type(value).__name__}", "a number or a tensor")
    if isinstance(value, Tensor) and not value.is_floating_point():
        raise ParameterError(what, f"{name} has dtype {value.dtype}", "a floating-point tensor")
    if not validate:
        return value
    if isinstance(value, Tensor) and value.is_meta:
        raise ParameterError(what, f"{name} is on the meta device, without values", "a tensor that has values")
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(_number(value), dtype=torch.float64)
    right = constraint.holds(tensor)
    if not bool(right.all()):
        wrong = tensor[~right].flatten()
        where = "" if tensor.dim() == 0 else f" at {tuple((~right).nonzero()[0].tolist())}"
        count = "" if tensor.dim() == 0 else f" ({wrong.numel()} of {tensor.numel()} values)"
        raise ParameterError(
            what,
            f"{name} must be {constraint.text}, but is {wrong[0].item():g}{where}{count}",
            f"values that are {constraint.text}",
        )
    return value if isinstance(value, Tensor) else _number(value)


def _number(value: float) -> float:
    """As a float; a whole number beyond its range becomes infinite, and is refused as such."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def spelled(values: Mapping[str, Any]) -> str:
    """Parameters as they are typed, tensors by their shapes."""
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    return f"<tensor {tuple(value.shape)}>" if isinstance(value, Tensor) else repr(value)
