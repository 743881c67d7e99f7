"""What others wrote: any torch.distributions object as a prior, any function as a statistic to be averaged."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor

from mcrepar.distributions.parameters import HALF_LINE, LINE, Interval
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import LogDensity, Prior, PriorRow, Term, Values
from mcrepar.distributions.priors import PRIORS, prior
from mcrepar.distributions.statistics import General, Monomial
from mcrepar.errors import ParameterError

NEAR, FAR = 1e4, 1e8  # where the growth of an external log density is read off


def as_prior(p: object) -> Prior:
    """`p` itself, or the prior that a torch.distributions object stands for.

    >>> as_prior(td.Normal(0.0, 0.5)).name
    'normal'
    >>> as_prior(td.Gumbel(0.0, 1.0)).name
    'Gumbel'
    """
    if isinstance(p, Prior):
        return p
    if not isinstance(p, td.Distribution):
        instead = "prior(name, ...) or a torch distribution"
        raise ParameterError(f"a prior of type {type(p).__name__}", "it has no density", instead)
    dist: td.Distribution = p
    while isinstance(dist, td.Independent):  # the sum over weights is the same
        dist = dist.base_dist
    own = getattr(dist, "posterior", None)  # one of ours
    if isinstance(own, Posterior) and own.row.same_prior is not None and (same := own.row.same_prior(own)) is not None:
        return prior(same[0], **same[1])
    for row in PRIORS.values():
        if row.like is type(dist):
            return prior(row.name, **{q.name: getattr(dist, q.name) for q in row.parameters})
    return _external(dist)


def as_expected(g: object, shape: Sequence[int]) -> Prior:
    """What stands for a statistic, or for a function of the weights, whose expectation is asked for.

    Args:
        g: a statistic; or a function from (draws, *shape) to the same shape or to (draws,).
        shape: of the tensor of weights.
    """
    if isinstance(g, Monomial | General):
        signed = not isinstance(g, Monomial) or g.absolute or g.polynomial
        density, name = LogDensity((Term(g, 1.0),)), g.text()
        row = PriorRow(name, (), lambda values: density, lambda values: LINE if signed else HALF_LINE)
        return Prior(name, {}, row.density, row.support({}), row=row, expected=True)
    if not callable(g) or isinstance(g, type):
        what = f"the expectation of a {type(g).__name__}"
        raise ParameterError(what, "it is no function of weights", "a statistic such as Monomial(2.0), or a function")
    name = f"{getattr(g, '__name__', type(g).__name__)}(w)"
    single = _gives(g, (2, 3)) == (2, 3)
    given = None if single else _gives(g, (2, *shape))
    if not single and given not in ((2,), (2, *shape)):
        why = f"of weights of shape {(2, *shape)}, two draws, it makes {given}"
        raise ParameterError(f"the expectation of {name}", why, "a function to one number per weight or per draw")

    growth = max(_growth(g, (2, 3) if single else (2, *shape), side * FAR, side * NEAR) for side in (1, -1))
    statistic = General(g if single else _per_draw(g, shape), name, growth, joint=not single, length=0.0)
    return Prior(name, {}, lambda values: LogDensity((Term(statistic, 1.0),)), LINE, expected=True)


def _gives(g: Callable[[Tensor], Any], shape: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that a function makes of weights of this shape, None where it makes none of them."""
    try:
        with torch.no_grad():
            return tuple(g(torch.full(tuple(shape), 1.5, dtype=torch.float64)).shape)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None


def _per_draw(g: Callable[[Tensor], Tensor], shape: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """A function of whole tensors of weights, summed for every draw: (draws, size) -> (draws,)."""
    return lambda flat: g(flat.reshape(len(flat), *shape)).reshape(len(flat), -1).sum(-1)


def _external(dist: td.Distribution) -> Prior:
    name = type(dist).__name__
    try:
        support = _support(name, dist.support)
        shape = dist.batch_shape + dist.event_shape
    except (NotImplementedError, AttributeError) as error:
        why = "it does not say where it lives (support), or was made without super().__init__()"
        raise ParameterError(f"prior {name}", why, "a distribution with a support and a batch_shape") from error
    values = dict(_tensors(dist, (), set()))
    whole = bool(dist.batch_shape or dist.event_shape)  # its shape says which weight is which: never cut it

    def build(present: Values) -> LogDensity:
        log_prob = _replaced(dist, (), present, {}).log_prob
        fn = _per_draw(log_prob, shape) if whole else log_prob
        return LogDensity((Term(General(fn, f"log p of {name}", growth, joint=whole, pole=pole, length=0.0), 1.0),))

    sides = [s for s, end in ((1, support.upper), (-1, support.lower)) if math.isinf(end)]
    growth, pole = max([0.0, *(_growth(dist.log_prob, shape, s * FAR, s * NEAR) for s in sides)]), 0.0
    if support.lower == 0:
        pole = _growth(dist.log_prob, shape, 1 / FAR, 1 / NEAR)
    return Prior(name, values, build, support, shape=tuple(shape), source=dist)


def _support(name: str, constraint: Any) -> Interval:
    """The interval of a constraint."""
    if constraint is None or constraint.is_discrete:
        raise ParameterError(
            f"prior {name}", "its support is not an interval of real numbers", "a continuous distribution"
        )
    constraint = getattr(constraint, "base_constraint", constraint)
    if constraint in (td.constraints.real, td.constraints.real_vector):
        return LINE
    bounds = [getattr(constraint, side, None) for side in ("lower_bound", "upper_bound")]
    if bounds == [None, None]:
        raise ParameterError(
            f"prior {name}", f"its support {constraint} is not an interval", "a distribution on an interval"
        )
    lower, upper = (torch.as_tensor(b if b is not None else math.inf * s) for b, s in zip(bounds, (-1, 1), strict=True))
    return Interval(float(lower.max()), float(upper.min()))


def _growth(fn: Callable[[Tensor], Tensor], shape: Sequence[int], far: float, near: float) -> float:
    """The power of |w| that a function follows between two points, 0 for logarithms and constants."""
    try:
        with torch.no_grad():
            ends = [fn(torch.full(tuple(shape), x, dtype=torch.float64)).abs().max().item() for x in (far, near)]
    except (ValueError, RuntimeError):
        return 0.0
    if math.isinf(ends[0]):
        return math.inf  # faster than any power
    if not all(math.isfinite(e) and e > 0 for e in ends):
        return 0.0
    power = abs(math.log(ends[0] / ends[1]) / math.log(far / near)) if ends[0] > ends[1] else 0.0
    return round(power, 2) if power > 0.3 else 0.0


def _tensors(item: Any, path: tuple[str, ...], seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside a distribution, by its path; a transform and its inverse hold each other."""
    seen.add(id(item))
    for key, value in _members(item):
        where = (*path, key)
        if isinstance(value, Tensor):
            yield ".".join(where), value
        elif _nested(value) and id(value) not in seen:
            yield from _tensors(value, where, seen)


def _replaced(item: Any, path: tuple[str, ...], values: Values, copies: dict[int, Any]) -> Any:
    """A copy of a distribution that holds `values` in place of its own tensors."""
    out = item if isinstance(item, list | tuple) else copies.setdefault(id(item), copy.copy(item))
    parts = {}
    for key, value in _members(item):
        where = (*path, key)
        if _nested(value):
            parts[key] = copies[id(value)] if id(value) in copies else _replaced(value, where, values, copies)
        else:
            cached = isinstance(value, weakref.ref)  # a transform's inverse: made again from the copy
            parts[key] = None if cached else values.get(".".join(where), value)
    if isinstance(item, list | tuple):
        return type(item)(parts.values())
    out.__dict__.update(parts)
    return out


def _members(item: Any) -> list[tuple[str, Any]]:
    pairs = enumerate(item) if isinstance(item, list | tuple) else vars(item).items()
    return [(str(key), value) for key, value in pairs]


def _nested(value: Any) -> bool:
    return isinstance(value, td.Distribution | td.Transform) or (type(value) in (list, tuple) and len(value) > 0)
