"""The mean of log p(W) over draws or nodes, where the choice is what the graph keeps.

direct keeps everything; stream keeps the gradient, accumulated in the forward; regen keeps theta and a seed and draws
the same noise again in the backward; quad is stream over fixed nodes instead of draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mcrepar.errors import MethodError
from mcrepar.families.parameters import Number
from mcrepar.families.posteriors import Posterior
from mcrepar.families.priors import Prior, joint_term
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
    def inputs(self) -> list[Tensor]:
        """What may be differentiated: loc and scale (flat), then the prior's tensors."""
        loc = self.q.loc
        theta = [loc.reshape(-1)] if isinstance(loc, Tensor) else []
        return [*theta, self.q.scale.reshape(-1), *self.p.tensors.values()]

    def cut(self, inputs: list[Tensor], block: slice) -> list[Tensor]:
        """The inputs of one block of weights."""
        parts = 1 + isinstance(self.q.loc, Tensor)
        theta = [x[block] for x in inputs[:parts]]
        return theta + [self._cut(x, block) for x in inputs[parts:]]

    def __call__(self, inputs: list[Tensor], xi: Tensor, weights: Tensor | None = None) -> Tensor:
        """The sum over draws (weighted where they are nodes) and weights: xi is (draws, block)."""
        parts = 1 + isinstance(self.q.loc, Tensor)
        loc: Number = inputs[0] if parts == 2 else self.q.loc
        w = self.q.form.weights(loc, inputs[parts - 1], xi)
        density = self.p.build({**self.p.values, **dict(zip(self.p.tensors, inputs[parts:], strict=True))})
        total: Tensor | None = None
        for term in density.terms:
            rows = joint_term(term, w) if self.whole else term(w)
            value = rows.sum() if weights is None else weights @ rows.sum(-1)
            total = value if total is None else total + value
        assert total is not None
        return total

    def _cut(self, x: Tensor, block: slice) -> Tensor:
        """The part of a prior's tensor that belongs to a block: all of it where it is one number."""
        if self.whole or x.numel() == 1:
            return x
        if x.shape == self.q.shape:
            return x.reshape(-1)[block]
        strides = x.expand(self.q.shape).stride()
        places = torch.arange(block.start, block.stop, device=x.device)
        where = torch.zeros_like(places)
        for length, stride in zip(reversed(self.q.shape), reversed(strides), strict=True):
            where = where + places % length * stride
            places = places // length
        return x.contiguous().view(-1)[where]


def direct(integrand: Integrand, walk: Walk) -> Tensor:
    """(1/M) sum_i log p(W(theta, xi_i)), all draws inside the graph."""
    return integrand(integrand.inputs, walk.all()) / walk.draws


def stream(integrand: Integrand, walk: Walk) -> Tensor:
    """The same value and gradient with S tensors kept for the backward, whatever M (Theorem S1)."""
    return _Stream.apply(integrand, _drawn(walk), 1 / walk.draws, *integrand.inputs)


def quad(integrand: Integrand, walk: Walk) -> Tensor:
    """sum_n omega_n log p(W(theta, x_n)) over the noise's fixed nodes, with S tensors kept for the backward."""
    points, omegas = integrand.q.noise.nodes()
    options: dict[str, Any] = {"dtype": walk.dtype, "device": walk.device}
    xi = torch.as_tensor(np.asarray(points), **options)[:, None]
    omega = torch.as_tensor(np.asarray(omegas), **options)
    width = max(1, walk.max_bytes // (COPIES * walk.dtype.itemsize * len(omega)))

    def nodes(visit: Visit) -> None:
        for start in range(0, walk.size, width):
            visit(slice(start, min(start + width, walk.size)), xi, omega)

    return _Stream.apply(integrand, nodes, 1.0, *integrand.inputs)


def regen(integrand: Integrand, walk: Walk) -> Tensor:
    """The same value and gradient with nothing kept but theta and a seed; the backward draws the noise again."""
    return _Regen.apply(integrand, walk, *integrand.inputs)


def _accumulate(
    integrand: Integrand, nodes: Nodes, inputs: list[Tensor], needed: list[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The sum of the integrand over all nodes, in float64, and its gradient for the inputs that need one."""
    wide = torch.float32 if inputs[0].device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=wide, device=inputs[0].device)
    slopes = [torch.zeros_like(x) if need else None for x, need in zip(inputs, needed, strict=True)]
    lock = threading.Lock()
    parts = 1 + isinstance(integrand.q.loc, Tensor)

    def visit(block: slice, xi: Tensor, weights: Tensor | None) -> None:
        nonlocal total
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
            cuts = [
                x.detach().requires_grad_(need)
                for x, need in zip(integrand.cut(inputs, block)[:parts], needed[:parts], strict=True)
            ]
            rest = integrand.cut(leaves, block)[parts:]
            value = integrand(cuts + rest, xi, weights)
            wanted = [x for x, need in zip(cuts + leaves[parts:], needed, strict=True) if need]
            found = iter(torch.autograd.grad(value, wanted, allow_unused=True) if wanted else ())
        with lock:
            total += value.detach()
            for k, slope in enumerate(slopes):
                part = next(found) if slope is not None else None
                if slope is not None and part is not None:
                    (slope[block] if k < parts else slope).add_(part)

    nodes(visit)
    return total, slopes


class _Stream(torch.autograd.Function):
    """The gradient of the mean is accumulated while the mean is: O(1) memory in M."""

    @staticmethod
    def forward(ctx: Any, integrand: Integrand, nodes: Nodes, factor: float, *inputs: Tensor) -> Tensor:
        total, slopes = _accumulate(integrand, nodes, list(inputs), list(ctx.needs_input_grad[3:]))
        ctx.save_for_backward(*(None if s is None else s.mul_(factor) for s in slopes))
        return total * factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return None, None, None, *(None if s is None else s * grad.to(s.dtype) for s in ctx.saved_tensors)


class _Regen(torch.autograd.Function):
    """The noise is drawn again in the backward: no memory beside theta."""

    @staticmethod
    def forward(ctx: Any, integrand: Integrand, walk: Walk, *inputs: Tensor) -> Tensor:
        ctx.integrand, ctx.walk = integrand, walk
        ctx.save_for_backward(*inputs)
        total, _ = _accumulate(integrand, _drawn(walk), list(inputs), [False] * len(inputs))
        return total / walk.draws

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        needed = list(ctx.needs_input_grad[2:])
        _, slopes = _accumulate(ctx.integrand, _drawn(ctx.walk), list(ctx.saved_tensors), needed)
        scale = grad / ctx.walk.draws
        return None, None, *(None if s is None else s.mul_(scale.to(s.dtype)) for s in slopes)


def _drawn(walk: Walk) -> Nodes:
    return lambda visit: walk.each(lambda block, xi: visit(block, xi, None))


def check_learned(integrand: Integrand, method: str) -> None:
    """Refuse a foreign prior that hides learned tensors where only `direct` finds them."""
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in integrand.inputs]
        size = integrand.q.numel if integrand.whole else 1
        cuts = inputs if integrand.whole else integrand.cut(inputs, slice(0, 1))
        value = integrand(cuts, torch.full((1, size), 0.5, dtype=inputs[0].dtype, device=inputs[0].device))
    known = {id(x) for x in inputs}
    seen, todo = set(), [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            raise MethodError(
                f"{integrand.p.name} prior by {method}",
                "it holds learned tensors where this method cannot see them",
                "method='direct', or a distribution whose parameters are its own attributes",
            )
        todo += [n for n, _ in node.next_functions]
