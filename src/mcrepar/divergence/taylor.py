"""The paper's fallback: a statistic replaced by its Taylor polynomial, so that it has a finite tuple.

It is biased, and it does not converge: under Gaussian noise the expectation of the series of log(1 + exp(-w)) diverges
for every scale, the best degree being about (pi / scale)^2 (math.md D3). `exact`, `quad` and `stream` do without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mcrepar.distributions.forms import EXP, Entry, Form, expand
from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior, Term
from mcrepar.distributions.statistics import General, Monomial
from mcrepar.errors import MethodError, ParameterError

MOST_GENERAL = 8  # nested derivatives of an arbitrary function grow exponentially


def inner(form: Form) -> Form:
    """The form of the variable in which a Taylor polynomial is taken: log w for w = exp(v), else w."""
    return Form(form.learned_loc) if form.outer is EXP else form


def polynomials(q: Posterior, p: Prior, degree: int, point: float | None) -> list[tuple[Term, tuple[Entry, ...]]]:
    """The prior's terms as the terms of Taylor polynomials, each with its tuple."""
    learned = any(t.requires_grad for t in p.tensors.values())
    positive = q.row.support.lower >= 0
    terms = [part for t in p.density.terms for part in polynomial(t, q.form, degree, point, positive, learned)]
    out = []
    for term in terms:
        center = None if isinstance(term.center, Tensor) else term.center
        entries = expand(term.statistic, inner(q.form), q.fixed_loc, center, q.noise.positive)
        assert entries is not None
        out.append((term, entries))
    return out


def polynomial(term: Term, form: Form, degree: int, point: float | None, positive: bool, learned: bool) -> list[Term]:
    """The terms of the Taylor polynomial, in w, or in log w under an exponential outer map.

    coefficient * sum_k g^(k)(c) / k! (x - c)^k

    Args:
        term: a term of the prior.
        form: of the posterior.
        degree: K.
        point: c; None takes the centre of the term, or 1 for a statistic of positive weights.
        positive: whether the weights are positive.
        learned: whether the prior has learned parameters, so that the coefficients need a graph.
    """
    statistic = term.statistic
    in_log = form.outer is EXP
    if isinstance(statistic, Monomial) and (
        (statistic.polynomial and not in_log) or (in_log and statistic.log and not statistic.power)
    ):
        power = statistic.log if in_log else statistic.power
        return [Term(Monomial(float(power)), term.coefficient, term.center)]
    if isinstance(statistic, Monomial) and not in_log and not isinstance(term.center, Tensor):
        c = 1.0 if point is None else point
        if c <= term.center:
            raise ParameterError(
                f"taylor of {statistic.text()} about {c:g}", "it is not analytic there", "a positive center"
            )
        coefficients: list[Number] = list(_monomial_series(statistic, c - term.center, degree))
    else:
        if isinstance(statistic, General) and degree > MOST_GENERAL:
            raise MethodError(
                f"taylor of degree {degree}",
                f"derivatives of {statistic.text()} are taken one by one, up to {MOST_GENERAL}",
                f"degree <= {MOST_GENERAL}, or method='quad' or 'stream'",
            )
        start = (0.0 if in_log else 1.0) if positive else _middle(term.center)
        c = start if point is None else point
        fn = (lambda v: term(v.exp()) / term.coefficient) if in_log else (lambda w: term(w) / term.coefficient)
        coefficients = list(_series(fn, c, degree, learned))
    return [Term(Monomial(float(k)), term.coefficient * a, c) for k, a in enumerate(coefficients)]


def _middle(center: Number) -> float:
    return float(center.detach().mean()) if isinstance(center, Tensor) else center


def _monomial_series(statistic: Monomial, c: float, degree: int) -> list[float]:
    """The Taylor coefficients of x^p or (log x)^j at c, by the recurrences of power series."""
    logs = [math.log(c)] + [(-1) ** (k + 1) / (k * c**k) for k in range(1, degree + 1)]
    power = [c**statistic.power]
    for k in range(degree):
        power.append(power[-1] * (statistic.power - k) / ((k + 1) * c))
    for _ in range(statistic.log):
        power = [sum(power[i] * logs[k - i] for i in range(k + 1)) for k in range(degree + 1)]
    return power


def _series(fn: Callable[[Tensor], Tensor], c: float, degree: int, learned: bool) -> list[Tensor]:
    """The Taylor coefficients of a function at c, by nested autograd."""
    with torch.enable_grad():
        shape = fn(torch.tensor(c, dtype=torch.float64)).shape
        x = torch.full(shape, c, dtype=torch.float64, requires_grad=True)
        out = fn(x)
        series = [out]
        for k in range(1, degree + 1):
            (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            series.append(out / math.factorial(k))
    return series if learned else [s.detach() for s in series]
