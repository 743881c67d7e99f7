"""KL(q || p) as torch.distributions.kl_divergence wants it: a number per weight, or one per event of a joint family."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.torch_families import Family
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence.average import refuse_second_derivatives
from mcrepar.divergence.chunks import CPU_BLOCK
from mcrepar.divergence.contraction import Tuple
from mcrepar.divergence.integral import Weights, expectation
from mcrepar.divergence.kl import check_objects, kl_of
from mcrepar.divergence.methods import Estimator, wide_dtype
from mcrepar.divergence.plan import Plan, decide, plan_pair
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
    if p.row is None and p.shape:  # an external density that knows which weight is which
        if not plan.finite:
            decide(plan, q, p, Estimator())  # which says why
        return -_entropy(q) - _at_nodes(q, source)
    check_objects(q, p, None)
    decision = decide(plan, q, p, Estimator() if p.row is not None else Estimator("quad"))
    learned = {"loc": q.free_loc, "scale": q.free_scale, "log_scale": q.free_log_scale}
    q = q.bind(False, None, **{name: t.double() for name, t in learned.items() if t is not None})
    p = p.filled(**{name: t.double() for name, t in p.tensors.items()})
    with named_extremes(q, p):
        mean = _closed(plan, q, p) if decision.method == "exact" else _integrated(q, p)
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


def _integrated(q: Posterior, p: Prior) -> Tensor:
    """The same by adaptive quadrature, its gradient being known with its value."""
    loc = [q.loc.reshape(-1)] if isinstance(q.loc, Tensor) else []
    zeta = [t if not t.dim() else t.expand(q.shape).reshape(-1) for t in p.tensors.values()]
    inputs = [q.scale.reshape(-1), *loc, *zeta]
    needed = [x.requires_grad and torch.is_grad_enabled() for x in inputs]
    with torch.no_grad():
        flat = [x.detach() for x in inputs]
        spread = [bool(t.dim()) for t in zeta]
        weights = Weights(q, p, flat[0], flat[1] if loc else q.loc, flat[1 + len(loc) :], spread, needed)
        found = expectation(weights, CPU_BLOCK)
    value: Tensor = _Known.apply(found.value, found.slopes, *inputs)  # type: ignore[no-untyped-call]
    return value.reshape(q.shape)


def _at_nodes(q: Posterior, p: td.Distribution) -> Tensor:
    """The same for any density with a batch of its own, at fixed nodes of the noise."""
    x, omega = (torch.tensor(a, dtype=q.dtype, device=q.device) for a in q.noise.nodes())
    ones = (-1, *(1,) * len(q.shape))
    log_prob: Tensor = p.log_prob(q.weights(x.reshape(ones).expand(-1, *q.shape)))
    return (omega.reshape(ones) * log_prob).sum(0)


class _Known(torch.autograd.Function):
    """Values of weights whose gradients are known already; a tensor of one number is shared by all of them."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slopes: list[Tensor | None], *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*slopes)
        ctx.shared = [not x.dim() for x in inputs]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        refuse_second_derivatives("quad")
        own = [None if s is None else s * grad for s in ctx.saved_tensors]
        summed = [s if s is None or not one else s.sum() for s, one in zip(own, ctx.shared, strict=True)]
        return None, None, *summed
