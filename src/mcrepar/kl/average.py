"""The mean of log p(W) over draws or nodes, where the choice is what the graph keeps.

direct keeps everything; stream keeps the gradient, accumulated in the forward; regen keeps theta and a seed and draws
the same noise again in the backward; quad is stream over fixed nodes instead of draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mcrepar.errors import MethodError
from mcrepar.families.posterior import Posterior
from mcrepar.families.prior import Prior, joint_term
from mcrepar.kl.draws import COPIES, Walk

Visit = Callable[[slice, Tensor, Tensor | None], None]  # a block of weights, its noise, the weights of the nodes
Nodes = Callable[[Visit], None]


@dataclass(frozen=True, eq=False)
class Integrand:
    """The terms of log p(W(theta, xi)) as a function of theta, the prior's tensors and the noise.

    Args:
        q: the posterior.
        p: the prior.
    """

    q: Posterior
    p: Prior

    @property
    def whole(self) -> bool:
        """Whether the terms look at the whole tensor at once."""
        return self.p.density.joint

    @property
    def theta(self) -> list[Tensor]:
        """scale, and loc where it is a tensor, both flat."""
        loc = self.q.loc
        return [self.q.scale.reshape(-1), *([loc.reshape(-1)] if isinstance(loc, Tensor) else [])]

    @property
    def zeta(self) -> list[Tensor]:
        """The tensors of the prior."""
        return list(self.p.tensors.values())

    def weights(self, theta: list[Tensor], xi: Tensor) -> Tensor:
        """W(theta, xi) on a block: (draws, block)."""
        loc = theta[1] if len(theta) == 2 else self.q.loc
        return self.q.form.weights(loc, theta[0], xi)

    def log_prob(self, zeta: list[Tensor], w: Tensor, block: slice, omega: Tensor | None = None) -> Tensor:
        """The sum of the terms over draws (weighted by `omega` where they are nodes) and the weights of a block."""
        tensors = dict(zip(self.p.tensors, (self._cut(z, block) for z in zeta), strict=True))
        total: Tensor | float = 0.0
        for term in self.p.build({**self.p.values, **tensors}).terms:
            rows = joint_term(term, w) if self.whole else term(w)
            total = total + (rows.sum() if omega is None else omega @ rows.sum(-1))
        assert isinstance(total, Tensor)
        return total

    def _cut(self, x: Tensor, block: slice) -> Tensor:
        """The part of a prior's tensor that belongs to a block: all of it where it is one number."""
        if self.whole or self.p.row is None or x.numel() == 1:
            return x
        if x.shape == self.q.shape:
            return x.reshape(-1)[block]
        strides = x.contiguous().expand(self.q.shape).stride()
        places = torch.arange(block.start, block.stop, device=x.device)
        where = torch.zeros_like(places)
        for length, stride in zip(reversed(self.q.shape), reversed(strides), strict=True):
            where = where + places % length * stride
            places = places // length
        return x.reshape(-1)[where]


def direct(integrand: Integrand, walk: Walk) -> Tensor:
    """(1/M) sum_i log p(W(theta, xi_i)), all draws inside the graph."""
    w = integrand.weights(integrand.theta, walk.all())
    return integrand.log_prob(integrand.zeta, w, slice(0, walk.size)) / walk.draws


def stream(integrand: Integrand, walk: Walk) -> Tensor:
    """The same value and gradient with S tensors kept for the backward, whatever M (Theorem S1)."""
    mean: Tensor = _Stream.apply(integrand, _drawn(walk), 1 / walk.draws, *integrand.theta, *integrand.zeta)  # type: ignore[no-untyped-call]
    return mean


def quad(integrand: Integrand, walk: Walk) -> Tensor:
    """sum_n omega_n log p(W(theta, x_n)) over the noise's fixed nodes, with S tensors kept for the backward."""
    points, omegas = integrand.q.noise.nodes()
    options: dict[str, Any] = {"dtype": walk.dtype, "device": walk.device}
    xi = torch.tensor(points, **options)[:, None]
    omega = torch.tensor(omegas, **options)
    width = max(1, walk.max_bytes // (COPIES * walk.dtype.itemsize * len(omega)))

    def nodes(visit: Visit) -> None:
        for start in range(0, walk.size, width):
            visit(slice(start, min(start + width, walk.size)), xi, omega)

    mean: Tensor = _Stream.apply(integrand, nodes, 1.0, *integrand.theta, *integrand.zeta)  # type: ignore[no-untyped-call]
    return mean


def regen(integrand: Integrand, walk: Walk) -> Tensor:
    """The same value and gradient with nothing kept but theta and a seed; the backward draws the noise again."""
    mean: Tensor = _Regen.apply(integrand, walk, *integrand.theta, *integrand.zeta)  # type: ignore[no-untyped-call]
    return mean


def _accumulate(
    integrand: Integrand, nodes: Nodes, inputs: Sequence[Tensor], needed: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The sum of the integrand over all nodes, in float64, and its gradient for the inputs that need one.

    Only log p is differentiated by autograd, block by block; dW/dtheta is the form's own.
    """
    split = 1 + isinstance(integrand.q.loc, Tensor)
    theta, zeta = (
        list(inputs[:split]),
        [z.detach().requires_grad_(n) for z, n in zip(inputs, needed, strict=True)][split:],
    )
    wide = torch.float32 if theta[0].device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=wide, device=theta[0].device)
    slopes = [torch.zeros_like(x) if need else None for x, need in zip(inputs, needed, strict=True)]
    wanted = [z for z in zeta if z.requires_grad]
    lock = threading.Lock()  # blocks are disjoint in theta, but share the total and the prior's tensors

    def visit(block: slice, xi: Tensor, omega: Tensor | None) -> None:
        with torch.no_grad():
            w = integrand.weights([x[block] for x in theta], xi)
        with torch.enable_grad():
            w.requires_grad_(any(needed[:split]))
            value = integrand.log_prob(zeta, w, block, omega)
            sources = [*([w] if w.requires_grad else []), *wanted]
            found = list(torch.autograd.grad(value, sources, allow_unused=True)) if sources else []
        if w.requires_grad and (slope := found.pop(0)) is not None:
            by_loc, by_scale = integrand.q.form.pull_back(slope, w.detach(), xi)
            for into, part in zip(slopes[:split], (by_scale, by_loc), strict=False):
                if into is not None:
                    into[block].add_(part)
        with lock:
            total.add_(value.detach())
            shared = (s for s in slopes[split:] if s is not None)
            for into, part in zip(shared, found, strict=True):
                if part is not None:
                    into.add_(part)

    nodes(visit)
    return total, slopes


class _Stream(torch.autograd.Function):
    """The gradient of the mean is accumulated while the mean is: O(1) memory in M."""

    @staticmethod
    def forward(ctx: Any, integrand: Integrand, nodes: Nodes, factor: float, *inputs: Tensor) -> Tensor:
        total, slopes = _accumulate(integrand, nodes, inputs, ctx.needs_input_grad[3:])
        ctx.save_for_backward(*(None if s is None else s.mul_(factor) for s in slopes))
        return total * factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, None, None, *(None if s is None else s * grad.to(s.dtype) for s in ctx.saved_tensors)


class _Regen(torch.autograd.Function):
    """The noise is drawn again in the backward: no memory beside theta."""

    @staticmethod
    def forward(ctx: Any, integrand: Integrand, walk: Walk, *inputs: Tensor) -> Tensor:
        ctx.integrand, ctx.walk = integrand, walk
        ctx.save_for_backward(*inputs)
        total, _ = _accumulate(integrand, _drawn(walk), inputs, [False] * len(inputs))
        return total / walk.draws

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        _, slopes = _accumulate(ctx.integrand, _drawn(ctx.walk), ctx.saved_tensors, ctx.needs_input_grad[2:])
        scale = grad / ctx.walk.draws
        return None, None, *(None if s is None else s.mul_(scale.to(s.dtype)) for s in slopes)


def _drawn(walk: Walk) -> Nodes:
    return lambda visit: walk.each(lambda block, xi: visit(block, xi, None))


def check_learned(integrand: Integrand, method: str) -> None:
    """Refuse a foreign prior that hides learned tensors where only `direct` finds them."""
    size = integrand.q.numel if integrand.whole else 1
    scale = integrand.theta[0]
    zeta = [z.detach() for z in integrand.zeta]
    with torch.enable_grad():
        w = torch.full((1, size), 1.5, dtype=scale.dtype, device=scale.device)
        hidden = integrand.log_prob(zeta, w, slice(0, size)).requires_grad
    if hidden:
        raise MethodError(
            f"{integrand.p.name} prior by {method}",
            "it holds learned tensors where this method cannot see them",
            "method='direct', or a distribution whose parameters are its own attributes",
        )
