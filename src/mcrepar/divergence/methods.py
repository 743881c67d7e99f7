"""How an expectation is estimated: the method, the number of draws and their options."""

from __future__ import annotations

import difflib
import math
import numbers
from dataclasses import dataclass

from mcrepar.errors import MethodError, ParameterError

METHODS = ("exact", "stats", "repar", "stream", "regen", "quad", "taylor", "direct")
SAMPLED = ("stats", "repar", "stream", "regen", "taylor", "direct")
DEFAULT_DRAWS = 100
DEFAULT_DEGREE = 4
DEFAULT_BYTES = 64 * 2**20
ALIASES = {"closed": "exact"}


@dataclass(frozen=True)
class Estimator:
    """A method and its options, checked when made.

    Args:
        method: "auto" or one of `METHODS`.
        n_mc_iter: M, the number of Monte Carlo iterations; None takes `DEFAULT_DRAWS` where one is needed.
        entropy: "exact", or "mc" to sample log q as the paper does.
        degree: of the Taylor polynomial.
        center: the point of the Taylor expansion; None takes the prior's centre, or 1 on the half-line.
        force: run a Monte Carlo method although its variance is infinite.
        max_bytes: bound on the memory that a streamed method needs beside its result (a prior over the whole tensor,
            such as radial, needs some draws of the whole tensor besides).

    >>> Estimator("closed").method
    'exact'
    """

    method: str = "auto"
    n_mc_iter: int | None = None
    entropy: str = "exact"
    degree: int | None = None
    center: float | None = None
    force: bool = False
    max_bytes: int = DEFAULT_BYTES

    def __post_init__(self) -> None:
        method = ALIASES.get(str(self.method).lower(), str(self.method).lower())
        object.__setattr__(self, "method", method)
        if method != "auto" and method not in METHODS:
            near = difflib.get_close_matches(method, METHODS, n=2) or ["auto", *METHODS]
            raise MethodError(f"method={self.method!r}", "no method has this name", " or ".join(map(repr, near)))
        for name, least in (("n_mc_iter", 1), ("degree", 1), ("max_bytes", 2**16)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if self.entropy not in ("exact", "mc"):
            raise MethodError(f"entropy={self.entropy!r}", "no such entropy", "'exact' or 'mc'")
        if self.center is not None and not _finite_number(self.center):
            raise ParameterError(f"center={self.center!r}", "it is not a finite number", "a finite number")
        self._check_options(method)

    @property
    def draws(self) -> int:
        """M, or its default."""
        return DEFAULT_DRAWS if self.n_mc_iter is None else self.n_mc_iter

    def _check_options(self, method: str) -> None:
        if method in ("exact", "quad"):
            if self.n_mc_iter is not None:
                raise MethodError(
                    f"n_mc_iter={self.n_mc_iter} with method={method!r}",
                    "it draws nothing",
                    f"method={method!r} alone, or 'stats' with n_mc_iter",
                )
            if self.entropy == "mc":
                raise MethodError(
                    f"entropy='mc' with method={method!r}",
                    "it draws nothing",
                    "entropy='exact', or method='repar'",
                )
        for option in ("degree", "center"):
            if getattr(self, option) is not None and method != "taylor":
                raise MethodError(f"{option} with method={method!r}", "only taylor has it", "method='taylor'")


def _finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole_number(name: str, value: object, least: int = 1) -> int:
    """A count as an int, or a refusal of what is none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ParameterError(f"{name}={value!r}", f"it is a {type(value).__name__}", "a whole number")
    if value < least:
        raise ParameterError(f"{name}={value}", "it is too small", f"a whole number of at least {least}")
    return int(value)
