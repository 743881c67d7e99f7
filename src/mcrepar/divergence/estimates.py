"""What the methods do: a job becomes products of a tuple to be contracted, or a mean of log p(W)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcrepar.distributions.forms import Entry
from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior, Term
from mcrepar.distributions.random import new_seed
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence import average
from mcrepar.divergence.chunks import Chunks
from mcrepar.divergence.closed_forms import ClosedForm
from mcrepar.divergence.contraction import Product, slope_entries
from mcrepar.divergence.quad import integrated
from mcrepar.divergence.taylor import polynomials
from mcrepar.divergence.terms import PosteriorKey
from mcrepar.errors import TaylorWarning

if TYPE_CHECKING:
    from mcrepar.divergence.methods import Estimator
    from mcrepar.divergence.plan import Plan

Means = dict[Monomial, Number]


@dataclass(frozen=True, eq=False)
class Job:
    """A plan, the tensors to apply it to, the method that was decided on, and the request that it answers.

    The generator is first touched by `chunks` or by a method that draws, after every refusal.
    """

    plan: Plan
    q: Posterior
    p: Prior
    method: str
    request: Estimator
    generator: torch.Generator | None

    @cached_property
    def chunks(self) -> Chunks:
        """The draws of methods that replay them, seeded once."""
        q, seed = self.q, new_seed(self.generator)
        whole, most = self.p.density.joint, self.request.max_bytes
        return Chunks(q.noise, self.request.draws, q.numel, q.dtype, q.device, seed, most, whole)

    def integrand(self, hidden: bool = True) -> average.Integrand:
        """log p(W), to be averaged; an external one is looked at first. `hidden`: not all of it is in the graph."""
        integrand = average.Integrand(self.q, self.p)
        if self.p.row is None:
            average.check_external(integrand, self.method, hidden)
        return integrand


@dataclass(frozen=True, eq=False)
class Estimate:
    """E log p(W) without its constant: minus a sum of products, plus means that are no product."""

    products: Sequence[Product] = ()  # of the tuple, with their signs turned, to be contracted
    mean: Tensor | None = None  # of log p(W) over draws or nodes; None where there is a tuple
    closed: Sequence[tuple[ClosedForm, Term]] = ()  # the terms whose expectation is known in closed form
    t: Mapping[Monomial, Number] = field(default_factory=dict)  # the means of the noise's statistics
    error: Tensor | None = None  # of a quadrature


def exact(job: Job) -> Estimate:
    """t = E tau(xi), the limit of M -> infinity; closed forms for what has no tuple."""
    return contracted(job, lambda taus: moments(job.q, taus))


def stats(job: Job) -> Estimate:
    """One draw of t from the distribution of the means over M draws, in a time independent of M."""
    return contracted(job, lambda taus: drawn_means(job, taus))


def repar(job: Job) -> Estimate:
    """t = the means over M draws, without a graph: the paper's method."""
    return contracted(job, lambda taus: average.averages(taus, job.chunks))


def taylor(job: Job) -> Estimate:
    """repar, after every statistic is replaced by its Taylor polynomial: the paper's fallback."""
    parts = polynomials(job.q, job.p, job.request.taylor_degree, job.request.center)
    warnings.warn(
        f"taylor of degree {job.request.taylor_degree} is biased, and higher degrees make it worse beyond a point; "
        "exact, quad and stream are unbiased",
        TaylorWarning,
        stacklevel=6,
    )
    return contracted(job, lambda taus: average.averages(taus, job.chunks), parts)


def averaged(mean: Callable[[average.Integrand, Chunks], Tensor], hidden: bool = True) -> Callable[[Job], Estimate]:
    """The method that averages log p(W) over draws by this function."""
    return lambda job: Estimate(mean=mean(job.integrand(hidden), job.chunks))


def quad(job: Job) -> Estimate:
    """log p(W) at the nodes of an adaptive quadrature."""
    mean, error = integrated(job.integrand(), job.request.max_bytes)
    return Estimate(mean=mean, error=error)


def moments(q: Posterior, taus: Iterable[Monomial]) -> Means:
    """E tau(xi)."""
    return {tau: 1.0 if tau.constant else q.noise.moment(tau) for tau in taus}


def drawn_statistics(q: PosteriorKey, taus: Iterable[Monomial], entropy: str) -> tuple[Monomial, ...]:
    """The distinct statistics that `stats` draws at once: these, and those of log q where it is sampled."""
    if entropy == "mc":
        log_density = (tau for _, tau in q.noise.density_terms or ())
        taus = (*taus, *log_density, *(e.tau for e in slope_entries(q)))
    return tuple(dict.fromkeys(taus))


def drawn_means(job: Job, taus: Iterable[Monomial]) -> Means:
    """One draw of the means over M draws, with those of log q where that is sampled too."""
    every, q = drawn_statistics(job.plan.q, taus, job.request.entropy), job.q
    wanted = tuple(tau for tau in every if not tau.constant)
    drawn = q.noise.draw_means(
        wanted, job.request.draws, q.numel, dtype=q.dtype, device=q.device, generator=job.generator
    )
    return {**{tau: 1.0 for tau in every if tau.constant}, **dict(zip(wanted, drawn, strict=True))}


def contracted(
    job: Job,
    means: Callable[[Iterable[Monomial]], Means],
    parts: Sequence[tuple[Term, tuple[Entry, ...]]] | None = None,
) -> Estimate:
    """The products of the plan's tuple, or of `parts`, with t from `means`."""
    closed = []
    if parts is None:
        pairs = list(zip(job.p.density.terms, job.plan.terms, strict=True))
        parts = [(term, plan.entries or ()) for term, plan in pairs]
        closed = [(plan.closed, term) for term, plan in pairs if plan.entries is None and plan.closed]
    t = means(dict.fromkeys(entry.tau for _, entries in parts for entry in entries))
    products = [Product(-term.coefficient, e, term.center, t[e.tau]) for term, entries in parts for e in entries]
    return Estimate(products, closed=closed, t=t)
