"""KL(q || p) = E_q log q - E_q log p: the plan of a pair applied to its tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mcrepar.distributions.forms import IDENTITY, Entry, expand
from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior, Term
from mcrepar.distributions.statistics import Monomial
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence import average
from mcrepar.divergence.checks import check_error, check_finite, check_objects, settle, wide_dtype
from mcrepar.divergence.closed_forms import closed_mean
from mcrepar.divergence.contraction import Product, contract
from mcrepar.divergence.draws import Walk, new_seed
from mcrepar.divergence.layout import weight_order
from mcrepar.divergence.means import Means, averages, combined_log_density, lawful, mean_log_density, moments
from mcrepar.divergence.methods import DEFAULT_BYTES, DEFAULT_DEGREE, Estimator
from mcrepar.divergence.plan import Plan, inner, plan_pair
from mcrepar.divergence.quad import quad
from mcrepar.divergence.refusals import named_extremes
from mcrepar.divergence.taylor import polynomial
from mcrepar.divergence.terms import TermPlan
from mcrepar.errors import TaylorWarning

AVERAGED = ("direct", "stream", "regen", "quad")
WALKED = ("direct", "stream", "regen", "repar", "taylor")


def kl_divergence(
    q: Posterior,
    p: object,
    method: str = "auto",
    n_mc_iter: int | None = None,
    *,
    entropy: str = "exact",
    degree: int | None = None,
    center: float | None = None,
    force: bool = False,
    max_bytes: int = DEFAULT_BYTES,
    generator: torch.Generator | None = None,
) -> Tensor:
    """KL(q || p), summed over the tensor, in nats, differentiable in the tensors of q and of p.

    KL(q || p) = E_q log q(w) - E_q log p(w)

    Args:
        q: a posterior with learned tensors.
        p: a prior, or any torch.distributions object.
        method: auto, exact, stats, repar, stream, regen, quad, taylor or direct.
        n_mc_iter: M, the number of Monte Carlo iterations.
        entropy: "exact", or "mc" to sample log q as well.
        degree: of the Taylor polynomial (taylor only).
        center: the point of the Taylor expansion (taylor only).
        force: run a Monte Carlo method although its variance is infinite.
        max_bytes: bound on what repar, stream and regen hold beside their result.
        generator: the source of the noise, of any device; None is the default RNG of the weights' device.

    >>> from mcrepar import posterior, prior
    >>> mu, sigma = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    >>> q = posterior("normal", loc=mu, scale=sigma)
    >>> round(kl_divergence(q, prior("normal", scale=2.0)).item(), 4)
    0.9544
    """
    estimator = Estimator(method, n_mc_iter, entropy, degree, center, force, max_bytes)
    return kl_of(q, as_prior(p), estimator, generator).to(wide_dtype(q.dtype))


def kl_of(
    q: Posterior,
    p: Prior,
    estimator: Estimator,
    generator: torch.Generator | None = None,
    eager: bool = False,
) -> Tensor:
    """The KL of two objects in float64; `eager` keeps the contraction in plain autograd, to be looked at."""
    check_objects(q, p, generator)
    plan = plan_pair(q, p)
    value = apply_plan(plan, q, p, estimator, generator, eager)
    check_finite(plan, q, p, value)
    return value


def apply_plan(
    plan: Plan,
    q: Posterior,
    p: Prior,
    estimator: Estimator,
    generator: torch.Generator | None = None,
    eager: bool = False,
) -> Tensor:
    """The KL of objects that fit together, in float64, with a plan made before."""
    p = p.over(q.numel)
    with named_extremes(q, p), torch.autocast(q.device.type, enabled=False):
        method = settle(plan, q, p, estimator)
        return _apply(plan, _widened(q), _widened_prior(p), method, estimator, generator, eager)


def _apply(
    plan: Plan,
    q: Posterior,
    p: Prior,
    method: str,
    estimator: Estimator,
    generator: torch.Generator | None,
    eager: bool,
) -> Tensor:
    density, order = p.density, weight_order(q, p)
    constant = _summed(density.constant, q) + density.total(q.numel)
    penalty, penalised = _variance_penalty(q, density.penalty)
    constant = constant - penalised
    if method in AVERAGED:
        integrand = average.Integrand(q, p)
        if p.row is None:
            average.check_foreign(integrand, method)
        walk = _walk(q, density.joint, method, estimator, generator)
        cross, error = quad(integrand, walk) if method == "quad" else (getattr(average, method)(integrand, walk), None)
        entropy, log_density = _entropy(q, method, estimator, walk, {})
        rest = contract(q, [*entropy, *penalty], order, eager, estimator.max_bytes)
        value = rest + log_density - cross - constant
        if error is not None:
            check_error(plan, value, error, q.numel)
        return value
    terms, plans = (density.terms, plan.terms) if method != "taylor" else _polynomials(q, p, estimator)
    walk = _walk(q, density.joint, method, estimator, generator)
    means = _means(q, method, _taus(q, plans, method, estimator), walk, generator)
    products = [
        Product(-term.coefficient, entry, term.center, means[entry.tau])
        for term, term_plan in zip(terms, plans, strict=True)
        for entry in term_plan.entries or ()
    ]
    entropy, log_density = _entropy(q, method, estimator, walk, means)
    value = contract(q, [*products, *entropy, *penalty], order, eager, estimator.max_bytes) + log_density - constant
    for term, term_plan in zip(terms, plans, strict=True):
        if term_plan.entries is None:
            value = value - closed_mean(q, term, term_plan)
    return value


def _variance_penalty(q: Posterior, penalty: Number) -> tuple[list[Product], Tensor | float]:
    """penalty * Var W over the weights, never sampled: a product of the tuple, or a number where W = f(v) is not v."""
    if not isinstance(penalty, Tensor) and penalty == 0:
        return [], 0.0
    if q.form.outer is IDENTITY:
        variance = q.noise.moment(Monomial(2.0)) - q.noise.moment(Monomial(1.0)) ** 2
        return [Product(penalty, Entry(1.0, 0, 2.0, 0, Monomial()), 0.0, variance)], 0.0
    return [], (penalty * q.variance).expand(q.shape).sum(dtype=torch.float64)


def _walk(q: Posterior, whole: bool, method: str, estimator: Estimator, generator: torch.Generator | None) -> Walk:
    """The draws of a method; the generator is first touched here, after every refusal."""
    seed = new_seed(generator, q.device) if method in WALKED else 0
    return Walk(q.noise, estimator.draws, q.numel, q.dtype, q.device, seed, estimator.max_bytes, whole)


def _taus(q: Posterior, plans: Sequence[TermPlan], method: str, estimator: Estimator) -> dict[Monomial, None]:
    """The statistics of the noise whose means are needed, each once."""
    taus = dict.fromkeys(e.tau for t in plans for e in t.entries or ())
    if method == "stats" and estimator.entropy == "mc":
        taus |= dict.fromkeys(tau for _, tau in q.noise.density_terms or ())
        taus |= dict.fromkeys(e.tau for e in _slope_entries(q))
    return taus


def _means(
    q: Posterior, method: str, taus: dict[Monomial, None], walk: Walk, generator: torch.Generator | None
) -> Means:
    if method == "exact":
        return moments(q, taus)
    return lawful(q, taus, walk, generator) if method == "stats" else averages(taus, walk)


def _entropy(
    q: Posterior, method: str, estimator: Estimator, walk: Walk, means: Means
) -> tuple[list[Product], Tensor | float]:
    """E log q = E log q0(xi) - log scale - E log f'(v): the products, and the first term.

    Lemma 0: the first term has no gradient, so sampling it changes the noise of the value only.
    """
    slopes = _slope_entries(q)
    if estimator.entropy == "exact":
        t = moments(q, (e.tau for e in slopes))
        size = 1 if q.noise.joint else q.numel
        log_density: Tensor | float = -q.noise.entropy() * size
    elif method == "stats":
        t, log_density = dict(means), combined_log_density(q, means, q.noise.density_terms or ())
    else:  # the walk replays its noise
        t, log_density = averages((e.tau for e in slopes), walk), mean_log_density(q, walk)
    coefficient = q.form.outer.slope[0] if q.form.outer.slope is not None else 0.0
    volume = Product(-1.0, Entry(1.0, 0, 0.0, 1, Monomial()), 0.0, 1.0)
    return [volume, *(Product(-coefficient, e, 0.0, t[e.tau]) for e in slopes)], log_density


def _slope_entries(q: Posterior) -> tuple[Entry, ...]:
    """The entries of log f'(v), none where the outer map is the identity."""
    if q.form.outer.slope is None:
        return ()
    loc = q.loc
    fixed = None if q.form.learned_loc or isinstance(loc, Tensor) else loc
    plain = replace(q.form, outer=IDENTITY)
    return expand(q.form.outer.slope[1], plain, fixed, 0.0, q.noise.positive) or ()


def _polynomials(q: Posterior, p: Prior, estimator: Estimator) -> tuple[Sequence[Term], Sequence[TermPlan]]:
    """The prior's terms as Taylor polynomials, with their tuples."""
    degree = estimator.degree or DEFAULT_DEGREE
    learned = any(t.requires_grad for t in p.tensors.values())
    positive = q.row.support.lower >= 0
    terms = [
        part
        for term in p.density.terms
        for part in polynomial(term, q.form, degree, estimator.center, positive, learned)
    ]
    warnings.warn(
        f"taylor of degree {degree} is biased, and higher degrees make it worse beyond a point; "
        "exact, quad and stream are unbiased",
        TaylorWarning,
        stacklevel=6,
    )
    form = inner(q.form)
    loc = None if q.form.learned_loc or isinstance(q.loc, Tensor) else q.loc
    plans = []
    for term in terms:
        center = None if isinstance(term.center, Tensor) else term.center
        entries = expand(term.statistic, form, loc, center, q.noise.positive)
        assert entries is not None
        plans.append(TermPlan(term.statistic, center, entries))
    return terms, plans


def _summed(constant: Number, q: Posterior) -> Tensor | float:
    """The constant of the log density over all weights, in float64."""
    if not isinstance(constant, Tensor):
        return constant * q.numel
    return constant.double().sum() * (q.numel // constant.numel())


def _widened(q: Posterior) -> Posterior:
    """`q` in at least single precision: halves lose 2e-3 of a KL."""
    dtype = wide_dtype(q.dtype)
    if dtype == q.dtype:
        return q
    names = ("free_loc", "free_scale", "free_log_scale")
    return replace(q, **{n: t.to(dtype) for n in names if (t := getattr(q, n)) is not None})


def _widened_prior(p: Prior) -> Prior:
    """`p` in at least single precision."""
    narrow = {n: t.to(wide_dtype(t.dtype)) for n, t in p.tensors.items() if t.dtype != wide_dtype(t.dtype)}
    return p.filled(**narrow) if narrow else p
