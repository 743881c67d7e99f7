"""KL(q || p) as torch.distributions.kl_divergence wants it: a number per weight, or one per event of a joint family."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.distributions as td
from torch import Tensor

from mcrepar.distributions.posterior import Posterior, free_tensors
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.torch_families import Family
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence.average import Integrand
from mcrepar.divergence.chunks import DEFAULT_BYTES
from mcrepar.divergence.contraction import Tuple
from mcrepar.divergence.kl import check_objects, kl_of
from mcrepar.divergence.methods import METHODS, Estimator, wide_dtype
from mcrepar.divergence.plan import Plan, plan_pair
from mcrepar.divergence.quad import integrated
from mcrepar.divergence.sums import unflat, weight_order
from mcrepar.divergence.terms import named_extremes
from mcrepar.errors import InfiniteKLError, SupportMismatchError


def kl(q: Family, p: td.Distribution) -> Tensor:
    """KL(q || p) by closed form or quadrature; infinite, as torch has it, where q has mass that p has not."""
    own, joint = q.posterior, q.posterior.noise.joint or bool(p.event_shape)
    if not joint:
        shape = torch.broadcast_shapes(q.batch_shape, p.batch_shape)  # type: ignore[no-untyped-call]
        own = q.expand(shape).posterior
    try:
        value = kl_of(own, as_prior(p), Estimator()) if joint else _of_weights(own, p)
    except (SupportMismatchError, InfiniteKLError):
        value = own.scale.new_full(() if joint else own.shape, math.inf)
    value = value.to(wide_dtype(own.dtype))
    return value.expand(q.batch_shape) if q.posterior.noise.joint else value


def _of_weights(q: Posterior, source: td.Distribution) -> Tensor:
    """KL(q || p) of every weight, in double precision, differentiable in the tensors of both."""
    p = as_prior(source)
    plan, p = plan_pair(q, p), p.over(q.numel)
    plan = replace(plan, sides=(q, p))
    shared = any(t.requires_grad and t.numel() > 1 for t in p.tensors.values())  # by all weights, several numbers
    if p.row is None and (p.shape or shared):  # an external density that knows which weight is which, or learns more
        if not plan.finite:
            plan.decide(Estimator())  # which says why
        return -_entropy(q) - _at_nodes(q, source)
    check_objects(q, p, None)
    decision = plan.decide(Estimator() if p.row is not None else Estimator("quad"))
    q = q.bind(False, None, **{name: t.double() for name, t in free_tensors(q).items()})
    p = p.filled(**{name: t.double() for name, t in p.tensors.items()})
    with named_extremes(q, p):
        if METHODS[decision.method].contracts:
            mean = _closed(plan, q, p)
        else:
            mean = unflat(integrated(Integrand(q, p), DEFAULT_BYTES, total=False)[0], q.shape, weight_order(q, p))
        return -_entropy(q) - mean - p.density.constant


def _entropy(q: Posterior) -> Tensor:
    return Family.of(q).entropy()


def _closed(plan: Plan, q: Posterior, p: Prior) -> Tensor:
    """E log p(W) without its constant: <n(theta), E t> and closed forms, weight by weight."""
    pairs = list(zip(p.density.terms, plan.terms, strict=True))
    mean = torch.zeros_like(q.scale)
    entries = [(term, t.entries) for term, t in pairs if t.entries]
    if entries:
        parts = Tuple(q, *zip(*entries, strict=True))
        taus = [entry.tau for _, group in entries for entry in group]
        t = [1.0 if tau.constant else q.noise.moment(tau) for tau in taus]
        mean = mean + torch.tensordot(torch.tensor(t, dtype=mean.dtype, device=mean.device), parts.n(q), 1)
    for term, known in pairs:
        if known.entries is None and known.closed is not None:
            closed = known.closed.mean(q, term)
            assert closed is not None
            mean = mean + term.coefficient * closed
    return mean


def _at_nodes(q: Posterior, p: td.Distribution) -> Tensor:
    """The same for any density with a batch of its own, at fixed nodes of the noise."""
    x, omega = (torch.tensor(a, dtype=q.dtype, device=q.device) for a in q.noise.nodes())
    ones = (-1, *(1,) * len(q.shape))
    log_prob: Tensor = p.log_prob(q.weights(x.reshape(ones).expand(-1, *q.shape)))
    return (omega.reshape(ones) * log_prob).sum(0)
