"""Means over M draws: of log p(W), where the choice is what the graph saves, and of statistics of the noise.

direct saves everything; stream saves the gradient, accumulated in the forward; regen saves theta and a seed and draws
the same noise again in the backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.chunks import Chunks
from mcrepar.divergence.sums import flat, weight_order, wide_sum
from mcrepar.errors import MethodError, ParameterError


@dataclass(frozen=True, eq=False)
class Integrand:
    """The terms of log p(W(theta, xi)) as a function of theta, the prior's tensors and the noise."""

    q: Posterior
    p: Prior

    @property
    def whole(self) -> bool:
        """Whether the terms look at the whole tensor at once."""
        return self.p.density.joint

    @property
    def theta(self) -> list[Tensor]:
        """scale, and loc where it is a tensor, both flat."""
        loc, order = self.q.loc, weight_order(self.q, self.p)
        return [flat(self.q.scale, order), *([flat(loc, order)] if isinstance(loc, Tensor) else [])]

    @property
    def zeta(self) -> list[Tensor]:
        """The tensors of the prior."""
        return list(self.p.tensors.values())

    def weights(self, theta: Sequence[Tensor], xi: Tensor) -> Tensor:
        """W(theta, xi) on a block: (draws, block)."""
        loc = theta[1] if len(theta) == 2 else self.q.loc
        return self.q.form.weights(loc, theta[0], xi)

    def log_prob(self, zeta: Sequence[Tensor], w: Tensor) -> Tensor:
        """The sum of the terms over the weights w of a block, (draws, block), with the prior's tensors cut to it."""
        tensors = dict(zip(self.p.tensors, zeta, strict=True))
        total: Tensor | None = None
        for term in self.p.build({**self.p.values, **tensors}).terms:
            part = term(w).sum()
            total = part if total is None else total + part
        return w.new_zeros(()) if total is None else total

    def spread(self, x: Tensor) -> bool:
        """Whether a tensor of the prior goes weight by weight, and is not one number or an external density's own."""
        return self.p.row is not None and x.numel() > 1

    def each(self, x: Tensor) -> Tensor:
        """The values of a prior's tensor for all weights in a row, where it goes weight by weight."""
        return x.expand(self.q.shape).reshape(-1) if self.spread(x) else x

    def folded(self, slopes: Tensor, shape: torch.Size) -> Tensor:
        """The gradients of single weights, in a row, summed to this shape, of the tensor that they belong to."""
        return slopes if slopes.shape == shape else slopes.reshape(self.q.shape).sum_to_size(shape)


def direct(integrand: Integrand, chunks: Chunks) -> Tensor:
    """(1/M) sum_i log p(W(theta, xi_i)), all draws inside the graph."""
    zeta = map(integrand.each, integrand.zeta)
    return integrand.log_prob(list(zeta), integrand.weights(integrand.theta, chunks.all())) / chunks.draws


def stream(integrand: Integrand, chunks: Chunks) -> Tensor:
    """The same value and gradient with S tensors saved for the backward, whatever M (Theorem S1)."""
    return _in_chunks(integrand, chunks, kept=True)


def regen(integrand: Integrand, chunks: Chunks) -> Tensor:
    """The same value and gradient with nothing saved but theta and a seed; the backward draws the noise again."""
    return _in_chunks(integrand, chunks, kept=False)


def _in_chunks(integrand: Integrand, chunks: Chunks, kept: bool) -> Tensor:
    inputs = (*integrand.theta, *integrand.zeta)
    mean: Tensor = _Mean.apply(integrand, chunks, kept, *inputs)  # type: ignore[no-untyped-call]
    return mean


def _accumulate(
    integrand: Integrand, chunks: Chunks, inputs: Sequence[Tensor], needed: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The sum of the integrand over all draws, in float64, and its gradient for the inputs that need one.

    Only log p is differentiated by autograd, block by block; dW/dtheta is the form's own. Blocks may run in parallel:
    each adds to its own part of theta; what they all share is added up in their order at the end.
    """
    split = 1 + isinstance(integrand.q.loc, Tensor)
    rows = [*inputs[:split], *map(integrand.each, inputs[split:])]
    theta, zeta, learned = rows[:split], rows[split:], needed[split:]
    spread = [integrand.spread(x) for x in inputs[split:]]
    slopes = [torch.zeros_like(x) if need else None for x, need in zip(rows, needed, strict=True)]
    values: dict[int, Tensor] = {}
    shared: dict[tuple[int, int], Tensor] = {}

    def visit(block: slice, xi: Tensor) -> None:
        with torch.no_grad():
            w = integrand.weights([x[block] for x in theta], xi)
            cuts = [(z[block] if each else z).detach() for z, each in zip(zeta, spread, strict=True)]
        with torch.enable_grad():
            w.requires_grad_(any(needed[:split]))
            leaves = [c.requires_grad_() if need else c for c, need in zip(cuts, learned, strict=True)]
            value = integrand.log_prob(leaves, w)
            sources = [x for x in (w, *leaves) if x.requires_grad]
            found = list(torch.autograd.grad(value, sources, allow_unused=True)) if value.requires_grad else []
        detached = value.detach().to(wide_sum(value.device))
        values[block.start] = values[block.start] + detached if block.start in values else detached
        if found and w.requires_grad and (slope := found.pop(0)) is not None:
            by_loc, by_scale = integrand.q.form.pull_back(slope, w.detach(), xi)
            for into, part in zip(slopes[:split], (by_scale, by_loc), strict=False):
                if into is not None:
                    into[block].add_(part)
        for k, (into, each) in enumerate(zip(slopes[split:], spread, strict=True)):
            own = found.pop(0) if into is not None and found else None
            if into is None or own is None:
                continue
            if each:
                into[block].add_(own)
            else:
                key = (block.start, k)
                shared[key] = shared[key] + own if key in shared else own

    chunks.each(visit)
    for key in sorted(shared):
        into = slopes[split + key[1]]
        assert into is not None
        into.add_(shared[key])
    whole = [s if s is None else integrand.folded(s, x.shape) for s, x in zip(slopes, inputs, strict=True)]
    return torch.stack([values[start] for start in sorted(values)]).sum(), whole


class _Mean(torch.autograd.Function):
    """The gradient of the mean is accumulated while the mean is, and kept; or when the noise is drawn again."""

    @staticmethod
    def forward(ctx: Any, integrand: Integrand, chunks: Chunks, kept: bool, *inputs: Tensor) -> Tensor:
        needed = ctx.needs_input_grad[3:] if kept else [False] * len(inputs)
        total, slopes = _accumulate(integrand, chunks, inputs, needed)
        ctx.replay = None if kept else (integrand, chunks)
        ctx.save_for_backward(*([None if s is None else s.div_(chunks.draws) for s in slopes] if kept else inputs))
        return total / chunks.draws

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        refuse_second_derivatives("stream" if ctx.replay is None else "regen")
        if ctx.replay is None:
            return None, None, None, *(None if s is None else s * grad.to(s.dtype) for s in ctx.saved_tensors)
        integrand, chunks = ctx.replay
        _, slopes = _accumulate(integrand, chunks, ctx.saved_tensors, ctx.needs_input_grad[3:])
        scale = grad / chunks.draws
        return None, None, None, *(None if s is None else s.mul_(scale.to(s.dtype)) for s in slopes)


def refuse_second_derivatives(what: str) -> None:
    """A backward runs with gradients enabled only for create_graph=True; silence would give a wrong Hessian."""
    if torch.is_grad_enabled():
        raise MethodError(
            f"second derivatives through {what}", "only first ones are saved", "method='direct', 'repar' or 'exact'"
        )


def check_external(integrand: Integrand, method: str, hidden: bool) -> None:
    """Refuse an external prior that is no density of single weights, or with learned tensors hidden from a method."""
    scale, what = integrand.theta[0], f"{integrand.p.name} prior by {method}"
    with torch.enable_grad():
        w = torch.full((1, scale.numel() if integrand.whole else 2), 1.5, dtype=scale.dtype, device=scale.device)
        zeta = dict(zip(integrand.p.tensors, (z.detach() for z in integrand.zeta), strict=True))
        rows: Any = integrand.p.build({**integrand.p.values, **zeta}).terms[0].statistic(w)
    if not isinstance(rows, Tensor) or (not integrand.whole and rows.shape != w.shape):
        got = f"a tensor of shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
        why = f"log_prob of weights of shape {tuple(w.shape)} gives {got}"
        raise ParameterError(what, why, "a log_prob that gives one number per weight")
    if rows.requires_grad and hidden:
        raise MethodError(
            what,
            "it holds learned tensors where this method cannot see them",
            "method='direct', or a distribution whose parameters are its own attributes",
        )


def averages(taus: Iterable[Monomial], chunks: Chunks) -> dict[Monomial, Number]:
    """mean_i tau(xi_i) over M draws, without a graph and in bounded memory: the paper's t(xi)."""
    sums: dict[Monomial, Tensor] = {}
    for tau in taus:
        sums[tau] = torch.zeros(0 if tau.constant else chunks.size, dtype=chunks.dtype, device=chunks.device)

    def visit(block: slice, xi: Tensor) -> None:
        for tau, total in sums.items():
            if tau.constant:
                continue
            if len(xi) > 1:
                total[block].add_(tau(xi).sum(0))
            elif tau == Monomial(2.0):  # in one pass
                total[block].addcmul_(xi[0], xi[0])
            else:
                total[block].add_(tau(xi[0]))

    with torch.no_grad():
        chunks.each(visit)
        return {tau: 1.0 if tau.constant else total.div_(chunks.draws) for tau, total in sums.items()}


def mean_log_density(q: Posterior, chunks: Chunks) -> Tensor:
    """mean_i log q0(xi_i), summed over the weights, of the very draws of `chunks`."""
    with torch.no_grad():
        if q.noise.joint:
            return q.noise.log_density(chunks.norms()[:, None]).mean()
        totals: list[Tensor] = []
        chunks.each(lambda block, xi: totals.append(q.noise.log_density(xi).sum(dtype=torch.float64)))
        return torch.stack(totals).sum() / chunks.draws
