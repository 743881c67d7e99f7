"""KL(q || p) = E_q log q - E_q log p, and E_q g(W): the plan of a pair applied to its tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import IDENTITY, Entry
from mcrepar.distributions.parameters import Number, check_value
from mcrepar.distributions.posterior import LEARNED, Posterior, check_posterior, free_tensors
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.statistics import Monomial
from mcrepar.distributions.torch_priors import as_expected, as_prior
from mcrepar.divergence.average import averages, mean_log_density
from mcrepar.divergence.chunks import DEFAULT_BYTES
from mcrepar.divergence.contraction import Fixed, Product, contract, slope_entries
from mcrepar.divergence.estimates import Estimate, Job, contracted, moments
from mcrepar.divergence.methods import METHODS, Estimator, wide_dtype
from mcrepar.divergence.plan import Decision, Plan, plan_pair
from mcrepar.divergence.sums import weight_order
from mcrepar.divergence.terms import named_extremes, pair_of
from mcrepar.errors import InfiniteVarianceWarning, McreparError, ParameterError, QuadratureWarning
from mcrepar.validation import check_generator

CLOSER = "parameters of posterior and prior that lie closer together"
SEEN, UNSEEN = 1e-6, 1e-9  # the error of a quadrature that is warned of: relative, and per weight


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
    request = Estimator(method, n_mc_iter, entropy, degree, center, force, max_bytes)
    return kl_of(q, as_prior(p), request, generator).to(wide_dtype(q.dtype))


def expectation(
    q: Posterior,
    g: object,
    n_mc_iter: int | None = None,
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> Tensor:
    """E g(W), summed over the tensor, differentiable in the tensors of q: the paper's Equation 3.

    `explain(q, g)` is its plan: which methods apply, which one runs, and the tuple where there is one.

    Args:
        q: a posterior with learned tensors.
        g: a statistic (`Monomial`, `General`), or a function of the weights: from a tensor of weights with a leading
            dimension of draws to one number per weight, or to one per draw. Nothing is known of such a function, so
            that its expectation is estimated from samples, also where it does not exist.
        n_mc_iter: M, the number of Monte Carlo iterations; None is 100 where samples are needed.
        method: as in `kl_divergence`.
        generator: likewise.

    Raises:
        McreparError: the expectation of a statistic does not exist, or the method does not apply to it.

    >>> from mcrepar import posterior
    >>> q = posterior("normal", loc=torch.tensor([0.0, 1.0]), scale=torch.tensor([1.0, 2.0]))
    >>> expectation(q, Monomial(2.0))  # (0 + 1) + (1 + 4)
    tensor(6.)
    """
    request, shape = Estimator(method, n_mc_iter), check_posterior(q).shape
    return kl_of(q, as_expected(g, shape), request, generator).to(wide_dtype(q.dtype))


def kl_of(q: Posterior, p: Prior, request: Estimator, generator: torch.Generator | None = None) -> Tensor:
    """The KL of two objects in float64."""
    check_objects(q, p, generator)
    plan = plan_pair(q, p)
    value = apply_plan(plan, q, p, request, generator)
    check_finite(plan, q, p, value)
    return value


def apply_plan(
    plan: Plan,
    q: Posterior,
    p: Prior,
    request: Estimator,
    generator: torch.Generator | None = None,
    eager: bool = False,
) -> Tensor:
    """The KL of objects that fit together, in float64, with a plan made before; `eager` contracts in plain autograd."""
    p = p.over(q.numel)
    with named_extremes(q, p), torch.autocast(q.device.type, enabled=False):
        decision = replace(plan, sides=(q, p)).decide(request)
        if decision.infinite_variance:
            words = f"{plan.pair} by {decision.method} has infinite variance"
            warnings.warn(words, InfiniteVarianceWarning, stacklevel=4)
        q, p = _widened(q), _widened_prior(p)
        return _apply(Job(plan, q, p, decision.method, request, generator), eager)


def _apply(job: Job, eager: bool) -> Tensor:
    """E log q - E log p, or E g(W) where that is asked for."""
    q, p, density = job.q, job.p, job.p.density
    penalty, penalised = _variance_penalty(q, density.penalty)
    estimate = METHODS[job.method].run(job)
    entropy, log_density = ([], 0.0) if p.expected else _negative_entropy(job, estimate)
    products = [*estimate.products, *entropy, *penalty]
    value = contract(q, products, weight_order(q, p), eager, job.request.max_bytes) + log_density
    if estimate.mean is not None:
        value = value - estimate.mean
    value = value - (_summed(density.constant, q) + density.total(q.numel) - penalised)
    for form, term in estimate.closed:
        value = value - form.total(q, term)
    if estimate.error is not None:
        _check_error(job.plan, value, estimate.error, q.numel)
    return 0 - value if p.expected else value  # 0 - 0 is 0, while -0 is -0


def fixed_products(plan: Plan, q: Posterior, p: Prior, request: Estimator) -> Fixed | None:
    """The products and the constant of a KL, where both are the same at every step; None where they are not.

    They are where the prior has numbers, every statistic a tuple, no decision looks at values, and nothing is drawn, or
    means of known distribution are.
    """
    p = p.over(q.numel)
    varying = p.row is None or p.tensors or p.words or p.relative or plan.largest_power or not plan.right
    found = None if varying else plan.outcome(request)
    if not isinstance(found, Decision) or found.infinite_variance or request.entropy != "exact":
        return None
    row = METHODS[found.method]
    if not row.contracts:
        return None
    job, density = Job(plan, q, p, found.method, request, None), p.density
    try:
        penalty, penalised = _variance_penalty(q, density.penalty)
        estimate = contracted(job, lambda taus: moments(q, taus))
        entropy, log_density = _negative_entropy(job, estimate)
        constant = log_density - (_summed(density.constant, q) + density.total(q.numel) - penalised)
    except ArithmeticError:  # which a KL of its own names
        return None
    if estimate.closed or isinstance(constant, Tensor):
        return None
    drawn = [x for x in estimate.products if row.samples and not x.entry.tau.constant]
    numbers = [x for x in estimate.products if x not in drawn]
    return Fixed.of(q, [*numbers, *entropy, *penalty], drawn, constant, request.draws if row.samples else 0)


def _variance_penalty(q: Posterior, penalty: Number) -> tuple[list[Product], Tensor | float]:
    """penalty * Var W over the weights, never sampled: a product of the tuple, or a number where W = f(v) is not v."""
    if not isinstance(penalty, Tensor) and penalty == 0:
        return [], 0.0
    if q.form.outer is IDENTITY:
        variance = q.noise.moment(Monomial(2.0)) - q.noise.moment(Monomial(1.0)) ** 2
        return [Product(penalty, Entry(1.0, 0, 2.0, 0, Monomial()), 0.0, variance)], 0.0
    return [], (penalty * q.variance).expand(q.shape).sum(dtype=torch.float64)


def _negative_entropy(job: Job, estimate: Estimate) -> tuple[list[Product], Tensor | float]:
    """E log q = E log q0(xi) - log scale - E log f'(v): the products, and the first term.

    Lemma 0: the first term has no gradient, so sampling it changes the noise of the value only.
    """
    q, slopes = job.q, slope_entries(job.plan.q)
    taus = [e.tau for e in slopes]
    if job.request.entropy == "exact":
        t = moments(q, taus)
        log_density: Tensor | float = -q.noise.entropy() * (1 if q.noise.joint else q.numel)
    elif METHODS[job.method].replays:
        t, log_density = averages(taus, job.chunks), mean_log_density(q, job.chunks)
    else:  # log q is a sum of statistics that are drawn already
        t, log_density = dict(estimate.t), _combined_log_density(q, estimate)
    coefficient = q.form.outer.slope[0] if q.form.outer.slope is not None else 0.0
    volume = Product(-1.0, Entry(1.0, 0, 0.0, 1, Monomial()), 0.0, 1.0)
    return [volume, *(Product(-coefficient, e, 0.0, t[e.tau]) for e in slopes)], log_density


def _combined_log_density(q: Posterior, estimate: Estimate) -> Tensor:
    """The mean of log q0(xi) over the draws, summed over the weights: constant + sum of coefficient * t."""
    terms: Sequence[tuple[float, Monomial]] = q.noise.density_terms or ()
    constant = -sum(c * q.noise.moment(tau) for c, tau in terms) - q.noise.entropy()
    total = torch.tensor(constant * q.numel, dtype=torch.float64, device=q.device)
    for coefficient, tau in terms:
        t = estimate.t[tau]
        total += coefficient * (t.sum(dtype=torch.float64) if isinstance(t, Tensor) else t * q.numel)
    return total


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
    wide: dict[str, Any] = {f"free_{name}": tensor.to(dtype) for name, tensor in free_tensors(q).items()}
    return replace(q, **wide)


def _widened_prior(p: Prior) -> Prior:
    """`p` in at least single precision."""
    narrow = {n: t.to(wide_dtype(t.dtype)) for n, t in p.tensors.items() if t.dtype != wide_dtype(t.dtype)}
    return p.filled(**narrow) if narrow else p


# ---- what can only be said of tensors: whether they fit together, and whether the result is a number


def check_objects(q: object, p: Prior, generator: object) -> None:
    """Refuse templates and tensors that do not fit together."""
    q = check_posterior(q)
    check_generator(generator)
    shape, pair = q.shape, pair_of(q, p)
    for name, word in p.words.items():
        why = f"the prior's {name} is {word!r}, which only a network fills in"
        raise ParameterError(pair, why, "a tensor, or bayesian(net, ...)")
    if p.relative:
        why = f"the prior's lengths are relative to {p.relative!r}, which only a network fills in"
        raise ParameterError(pair, why, "absolute numbers, or bayesian(net, ...)")
    if p.row is None and p.shape and tuple(p.shape) != tuple(shape):
        why = f"the prior has shape {tuple(p.shape)}, the weights {tuple(shape)}"
        raise ParameterError(pair, why, "one shape for both")
    for parameter in p.row.parameters if p.row is not None else ():
        value = p.values[parameter.name]
        if isinstance(value, Tensor):
            _check_tensor(f"{pair} with the prior's {parameter.name}", value, q)
            check_value(f"{pair}, prior", parameter, value)


def _check_tensor(what: str, value: Tensor, q: Posterior) -> None:
    try:
        fits = torch.Size(torch.broadcast_shapes(value.shape, q.shape)) == q.shape  # type: ignore[no-untyped-call]
    except RuntimeError:
        fits = False
    if not fits:
        why = f"its shape {tuple(value.shape)} does not broadcast to the weights' {tuple(q.shape)}"
        raise ParameterError(what, why, "a number or that shape")
    if value.dim() and value.device != q.device:
        raise ParameterError(what, f"it is on {value.device}, the weights on {q.device}", "one device for both")
    if value.dim() and wide_dtype(value.dtype) != wide_dtype(q.dtype):
        raise ParameterError(what, f"it is {value.dtype}, the weights {q.dtype}", "one dtype for both")


def _check_error(plan: Plan, value: Tensor, error: Tensor, size: int) -> None:
    """Refuse a quadrature that float64 ends before the mean is reached; warn where its error may be seen."""
    found, near = float(value.detach()), float(error)
    integrand, closer = ("the function", "a smaller scale") if plan.p.expected else ("log p", CLOSER)
    if math.isinf(near):
        raise ParameterError(
            f"{plan.pair} by quad",
            f"{integrand} goes on growing faster than the posterior falls up to where float64 ends",
            closer,
        )
    if near > max(SEEN * abs(found), UNSEEN * size):
        warnings.warn(
            f"{plan.pair} by quad is {found:.6g} with an estimated error of {near:.1g}: its nodes do not resolve "
            f"{integrand}, or its mean lies further out than float64 reaches; choose {closer}, or compare with "
            "method='stream'",
            QuadratureWarning,
            stacklevel=5,
        )


def check_finite(plan: Plan, q: Posterior, p: Prior, value: Tensor) -> None:
    """Never a silent NaN or infinity: name the parameter that broke, or the range that was exceeded."""
    if not bool(torch.isfinite(value.to(wide_dtype(q.dtype)))):
        raise why_not_finite(plan, q, p, bool(value.isnan()))


def why_not_finite(plan: Plan, q: Posterior, p: Prior, nan: bool) -> McreparError:
    """Why a value is not finite; `nan`: it is not even infinite."""
    try:
        for name, tensor in free_tensors(q).items():
            check_value(plan.pair, LEARNED[name], tensor)
        for parameter in p.row.parameters if p.row is not None else ():
            check_value(f"{plan.pair}, prior", parameter, p.values[parameter.name])
    except ParameterError as error:
        return error
    scales = q.scale.detach()
    broken = "is not a number (NaN)" if nan else f"exceeds the range of {wide_dtype(q.dtype)}"
    why = f"its value {broken}, the posterior's scale being between {float(scales.min()):g} and {float(scales.max()):g}"
    if not p.expected:
        return ParameterError(plan.pair, f"{why} and the prior {p!r}", f"float64 tensors, or {CLOSER}")
    instead = "a function that is a number at every weight" if nan else "float64 tensors, or a smaller scale"
    return ParameterError(plan.pair, why, instead)
