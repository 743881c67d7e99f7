"""Expectations in closed form of statistics without a finite tuple (math.md D3): one row each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP, IDENTITY
from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Term
from mcrepar.distributions.statistics import General, Monomial, Statistic
from mcrepar.divergence.average import refuse_second_derivatives
from mcrepar.divergence.sums import summed

if TYPE_CHECKING:
    from mcrepar.divergence.terms import PosteriorKey

CLOSE = 1e-6  # relative; closed forms that hold at equal scales are right to first order around them
_ONE = torch.ones(())


@dataclass(frozen=True)
class ClosedForm:
    """A statistic whose expectation is known under some posteriors."""

    # whether it is known, from the families: the posterior, the statistic and its centre (None: a tensor)
    applies: Callable[[PosteriorKey, Statistic, float | None], bool]
    mean: Callable[[Posterior, Term], Tensor | None]  # E statistic(W - center), by weight, or summed where it is joint
    condition: str = ""  # when it holds, in words; "" for always
    holds: Callable[[Posterior, Term], bool] = lambda q, term: True  # whether these tensors meet the condition

    def total(self, q: Posterior, term: Term) -> Tensor:
        """coefficient * E statistic(W - center), summed over the weights, in float64."""
        mean = self.mean(q, term)
        assert mean is not None
        if self.condition:
            mean = _FirstOrder.apply(mean)  # type: ignore[no-untyped-call]
        return summed(term.coefficient * mean) if mean.shape == q.shape else mean


class _FirstOrder(torch.autograd.Function):
    """The identity, for a form that has the right value and gradient where it holds, but no curvature."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor) -> Tensor:
        return mean.view_as(mean)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_second_derivatives("a closed form that holds under a condition")
        return grad


def _shift(q: Posterior, term: Term) -> Tensor:
    return torch.as_tensor(q.loc - term.center, dtype=q.dtype, device=q.device).expand(q.shape)


def _length(term: Term) -> Number:
    assert isinstance(term.statistic, General)
    return term.statistic.length


def _kind(statistic: Statistic) -> str:
    return statistic.kind if isinstance(statistic, General) else ""


def _has_mgf(q: PosteriorKey, statistic: Statistic, center: float | None) -> bool:
    if not isinstance(statistic, Monomial) or q.form.outer is not EXP or not q.noise.mgf_limit > 0:
        return False
    return (center == 0 or statistic.polynomial) and not statistic.absolute


def _mgf(q: Posterior, term: Term) -> Tensor:
    """E (e^v - c)^p = sum_k binom(p, k) (-c)^(p-k) E e^(k v), and E e^(p v) for c = 0 and any real p."""
    assert isinstance(term.statistic, Monomial)
    p = term.statistic.power
    if not isinstance(term.center, Tensor) and term.center == 0:
        return q.raw_moment(p)
    mean: Tensor = (-term.center) ** int(p) * torch.ones_like(q.scale)
    for k in range(1, int(p) + 1):
        mean = mean + math.comb(int(p), k) * (-term.center) ** (int(p) - k) * q.raw_moment(float(k))
    return mean


def _equal_scales(q: Posterior, term: Term) -> bool:
    return bool(((q.scale / _length(term) - 1).detach().abs() <= CLOSE).all())


def _proportional(q: Posterior, term: Term) -> bool:
    ratio = (q.scale / _length(term)).detach()
    same = torch.as_tensor(q.loc - term.center).detach()
    return bool((same == 0).all()) and float(ratio.max() - ratio.min()) <= CLOSE * float(ratio.max())


CLOSED_FORMS = {
    "|w|": ClosedForm(
        lambda q, g, center: (
            q.form.outer is IDENTITY and g == Monomial(1.0, absolute=True) and q.noise.mean_abs(_ONE, _ONE) is not None
        ),
        lambda q, term: q.noise.mean_abs(_shift(q, term), q.scale),
    ),
    "w^p of w = exp(v)": ClosedForm(_has_mgf, _mgf),
    "softplus": ClosedForm(
        lambda q, g, center: (
            q.form.outer is IDENTITY and _kind(g) == "softplus" and q.noise.mean_softplus(_ONE, _ONE) is not None
        ),
        lambda q, term: q.noise.mean_softplus(
            torch.as_tensor((q.loc - term.center) / _length(term)), q.scale / _length(term)
        ),
        "posterior and prior have equal scales",
        _equal_scales,
    ),
    "norm": ClosedForm(
        lambda q, g, center: _kind(g) == "norm" and q.noise.mean_norm(_ONE) is not None,
        lambda q, term: q.noise.mean_norm(q.scale / _length(term)),
        "posterior and prior have equal locations and proportional scales",
        _proportional,
    ),
}
