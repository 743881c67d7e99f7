"""A prior's log density as data, and what a row of the table says of its family."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor

from mcrepar.distributions.parameters import HALF_LINE, Interval, Number, Parameter, spelled
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.statistics import General, Monomial, Statistic

Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Term:
    """coefficient * statistic(w - center); for a statistic of log w the centre is subtracted from log w."""

    statistic: Statistic  # what is averaged
    coefficient: Number  # a number or a tensor that broadcasts to the weights
    center: Number = 0.0  # likewise

    def __call__(self, w: Tensor) -> Tensor:
        moved = isinstance(self.center, Tensor) or self.center != 0
        if isinstance(self.statistic, Monomial) and self.statistic.log and moved:
            return self.coefficient * (w.log() - self.center) ** self.statistic.log
        return self.coefficient * self.statistic(w - self.center if moved else w)


@dataclass(frozen=True, eq=False)
class LogDensity:
    """log p(w) = constant + sum of terms."""

    terms: tuple[Term, ...]  # what depends on w
    constant: Number = 0.0  # per weight; a number or a tensor that broadcasts to the weights
    # added once for the whole tensor, from its number of weights (a joint distribution)
    total: Callable[[int], float] = field(default=lambda size: 0.0)
    penalty: Number = 0.0  # what the KL adds per unit of a weight's posterior variance (a hierarchical prior)

    def __post_init__(self) -> None:
        # a number that is 0 stays it, unlike a tensor that is learned or filled in
        live = (t for t in self.terms if isinstance(t.coefficient, Tensor) or t.coefficient != 0)
        object.__setattr__(self, "terms", tuple(live))

    @property
    def joint(self) -> bool:
        """Whether a term looks at the whole tensor at once."""
        return any(isinstance(t.statistic, General) and t.statistic.joint for t in self.terms)


@dataclass(frozen=True)
class PriorRow:
    """A family of priors."""

    name: str
    parameters: tuple[Parameter, ...]
    density: Callable[[Values], LogDensity]  # its log density, from the values of its parameters
    support: Callable[[Values], Interval] = lambda values: HALF_LINE  # where its density is positive, from the same
    groups: tuple[str, ...] = ()  # the rows of the paper's Table 1 that name it
    kernel: bool = False  # whether it is offered as an improper kernel too (math.md B, Pareto and Dirichlet)
    simplex: bool = False  # whether its support is a simplex, on which no elementwise posterior lives
    generic: Mapping[str, Any] = field(default_factory=dict)  # values that Table 1 is judged for, if no defaults
    like: type[td.Distribution] | None = None  # torch's class of the same distribution with the same names
    # by parameter: the value that minimises the KL to a posterior, where it has a closed form
    optimal: Mapping[str, Callable[[Posterior, Values], Tensor]] = field(default_factory=dict)
    lengths: tuple[str, ...] = ()  # the parameters that may be given relative to the size of a network's weights
    learned: bool = True  # whether a network may learn its parameters
    # what the KL of a weight is at least, in nats, from the values
    least_kl: Callable[[Values], float] = lambda values: 0.0
    # parameters that put it around 1 with about this standard deviation, for a prior over factors
    around_one: Callable[[float], Mapping[str, Any]] | None = None
    single: PriorRow | None = None  # what it is over one weight, with the same parameters, where that is another row
    aliases: tuple[str, ...] = ()  # other spellings


@dataclass(frozen=True, eq=False, repr=False)
class Prior:
    """A prior over the weights of a tensor; made by `prior`, or from any torch.distributions object."""

    name: str  # the family's name, or the class of an external distribution
    values: Values  # its parameters, numbers or tensors; a tensor that requires grad is learned
    build: Callable[[Values], LogDensity]  # its log density, from the values
    support: Interval  # where its density is positive
    improper: bool = False  # whether it stands for its kernel, without support or normalisation
    simplex: bool = False  # whether its support is a simplex
    row: PriorRow | None = None  # its row of the table, None for an external distribution
    relative: str = ""  # the unit of its lengths that a network fills in, "fan_in" or "spread"; "" for absolute numbers
    shape: tuple[int, ...] = ()  # of an external distribution that is not over a single number
    source: td.Distribution | None = None  # the external distribution
    expected: bool = False  # whether it stands for a statistic whose expectation is asked for, not for a density

    def __repr__(self) -> str:
        if self.source is not None:
            return f"prior({self.source})"
        words = {**self.values, **({"improper": True} if self.improper else {})}
        words |= {"relative": self.relative} if self.relative else {}
        return f"prior({self.name!r}, {spelled(words)})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.source is not None:
            return _restored, (self.source, self.improper, {})
        values = {**self.values, **({"relative": self.relative} if self.relative else {})}
        return _restored, (self.name, self.improper, values)

    @property
    def words(self) -> dict[str, str]:
        """The parameters that a network fills in: "learned", "tied" or "optimal"."""
        return {name: v for name, v in self.values.items() if isinstance(v, str)}

    def filled(self, **values: Number) -> Prior:
        """The same prior with these values, unchecked."""
        return replace(self, values={**self.values, **values})

    def in_units(self, unit: float) -> Prior:
        """The prior with absolute lengths, for a tensor of weights of this size."""
        assert self.row is not None
        scaled = {n: unit * v for n, v in self.values.items() if n in self.row.lengths and not isinstance(v, str)}
        return replace(self.filled(**scaled), relative="")

    def over(self, size: int) -> Prior:
        """The same prior for a tensor of `size` weights: over one weight a joint distribution is an elementwise one."""
        if size > 1 or self.row is None or self.row.single is None:
            return self
        return replace(self, build=self.row.single.density, row=self.row.single)

    def sketch(self) -> Prior:
        """The same prior with tensors of one number in place of words, to plan with."""
        assert self.row is not None or not self.words
        defaults = {p.name: p.default for p in self.row.parameters} if self.row is not None else {}
        return self.filled(**{name: torch.tensor(defaults[name]) for name in self.words})

    @property
    def density(self) -> LogDensity:
        """constant + sum of terms, from the present values."""
        return self.build(self.values)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters that are tensors."""
        return {name: v for name, v in self.values.items() if isinstance(v, Tensor)}

    def least_kl(self) -> float:
        """What the KL of a weight to this prior is at least, in nats: above 0 where a hyperparameter is integrated out.

        >>> from mcrepar import prior
        >>> round(prior("hierarchical", scale=0.05, loc_scale=0.3).least_kl(), 4)
        1.8055
        """
        return 0.0 if self.row is None else self.row.least_kl(self.values)

    def log_prob(self, w: Tensor) -> Tensor:
        """log p(w), elementwise, -inf outside the support; for a joint one a number per draw (leading dimension).

        >>> from mcrepar import prior
        >>> float(prior("normal", scale=2.0).log_prob(torch.tensor(0.0)))
        -1.612085...
        """
        density, inside = self.density, self.support.holds(w)
        if not density.joint and not bool(inside.all()):
            safe = torch.where(inside, w, max(self.support.lower, 0.0) + 1)
            return torch.where(inside, self.log_prob(safe), -math.inf)
        if not density.joint:
            out = torch.zeros_like(w) + density.constant
            for term in density.terms:
                out = out + term(w)
            return out
        shape, size = w.shape[1:], w[0].numel()
        constant = torch.as_tensor(density.constant, dtype=w.dtype, device=w.device).expand(shape).sum()
        ours = self.tensors if self.row is not None else {}  # an external distribution knows its own shape
        shaped = {n: t.expand(shape).reshape(-1) for n, t in ours.items() if t.numel() > 1}
        terms = self.filled(**shaped).density.terms
        return sum((term(w.reshape(len(w), -1)) for term in terms), constant + density.total(size))


def _restored(source: str | td.Distribution, improper: bool, values: dict[str, Any]) -> Prior:
    """A pickled prior: by name and values, or from the distribution that it was made of."""
    from mcrepar.distributions.priors import prior
    from mcrepar.distributions.torch_priors import as_prior

    return prior(source, improper=improper, **values) if isinstance(source, str) else as_prior(source)
