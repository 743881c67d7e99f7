"""A row of the table of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Rule = Callable[..., Any]  # rule(func, *args, **kwargs): the result of func(*args, **kwargs), with mean and variance


@dataclass(frozen=True)
class Row:
    """One operation.

    Args:
        rule: rule(func, *args, **kwargs) is the result of func, with mean and variance.
        fitted: from how many random arguments on the variance has a factor, fitted to draws; 0 is never. It stands for
            dependence between the numbers that the operation adds up.
        composite: whether the rule runs other operations with rules of their own.
    """

    rule: Rule
    fitted: int = 0
    composite: bool = False
