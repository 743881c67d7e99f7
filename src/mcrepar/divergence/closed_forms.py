"""Closed expectations of statistics that have no finite tuple (math.md D3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Term
from mcrepar.distributions.statistics import General, Monomial
from mcrepar.divergence.average import refuse_second_derivatives
from mcrepar.divergence.terms import TermPlan


def closed_mean(q: Posterior, term: Term, plan: TermPlan) -> Tensor:
    """coefficient * E statistic(W - center), summed over the weights, in float64."""
    mean = CLOSED[plan.closed](q, term, plan)
    if plan.condition:
        mean = _FirstOrder.apply(mean)  # type: ignore[no-untyped-call]
    if mean.shape != q.shape:
        return mean
    return (term.coefficient * mean).sum(dtype=torch.float64)


def _abs(q: Posterior, term: Term, plan: TermPlan) -> Tensor:
    u = torch.as_tensor(q.loc - term.center, dtype=q.dtype, device=q.device)
    mean = q.noise.mean_abs(u.expand(q.shape), q.scale)
    assert mean is not None
    return mean


def _softplus(q: Posterior, term: Term, plan: TermPlan) -> Tensor:
    assert isinstance(term.statistic, General)
    length = term.statistic.length
    mean = q.noise.mean_softplus(torch.as_tensor((q.loc - term.center) / length), q.scale / length)
    assert mean is not None
    return mean


def _mgf(q: Posterior, term: Term, plan: TermPlan) -> Tensor:
    """E (e^v - c)^p = sum_k binom(p, k) (-c)^(p-k) E e^(k v), and E e^(p v) for c = 0 and any real p."""
    statistic = plan.statistic
    assert isinstance(statistic, Monomial)
    p = statistic.power
    if not isinstance(term.center, Tensor) and term.center == 0:
        return _power(q, p)
    mean: Tensor = (-term.center) ** int(p) * torch.ones_like(q.scale)
    for k in range(1, int(p) + 1):
        mean = mean + math.comb(int(p), k) * (-term.center) ** (int(p) - k) * _power(q, float(k))
    return mean


def _power(q: Posterior, p: float) -> Tensor:
    log_mgf = q.noise.log_mgf(p * q.scale)
    assert log_mgf is not None
    return (p * q.loc + log_mgf).exp()


def _norm(q: Posterior, term: Term, plan: TermPlan) -> Tensor:
    """E (-r^2/2 - (d - 1) log r) at equal locations and scale = s * prior scale, to first order around it.

    There r = s |N(0, 1)|; with s_j = scale_j / prior scale_j the mean over j of -s_j^2/2 - (d - 1) log s_j has the
    value and the gradient of the expectation.
    """
    assert isinstance(term.statistic, General)
    s = q.scale / term.statistic.length
    d = q.numel
    log_r = -(math.log(2) + 0.5772156649015329) / 2  # E log |N(0, 1)|
    return (-(s * s) / 2 - (d - 1) * s.log()).mean(dtype=torch.float64) - (d - 1) * log_r


class _FirstOrder(torch.autograd.Function):
    """The identity, for a form that has the right value and gradient where it holds, but no curvature."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor) -> Tensor:
        return mean.view_as(mean)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_second_derivatives("a closed form that holds under a condition")
        return grad


CLOSED: dict[str, Callable[[Posterior, Term, TermPlan], Tensor]] = {
    "abs": _abs,
    "softplus": _softplus,
    "mgf": _mgf,
    "norm": _norm,
}
