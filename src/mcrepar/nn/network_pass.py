"""The random tensors of a large network on a CPU: drawn, summed and differentiated in one pass.

It stands in a `Layout` where a small network has its groups. Compiled and mapped functions, and parameters that are no
plain tensors, go through the tensors one by one instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.divergence.contraction import Fixed
from mcrepar.divergence.joint_pass import Recipe, Theta, run
from mcrepar.errors import MethodError
from mcrepar.nn.random_tensor import RandomTensor, named

Names = tuple[str, ...]
SHARED: ContextVar[dict[tuple[int, ...], Any] | None] = ContextVar("what a step computes once", default=None)
BUCKET = 2**22  # weights whose gradients leave together where processes exchange them while others are computed


def shared_step() -> dict[tuple[int, ...], Any] | None:
    """What has been computed in a step that is under way; None where there is none."""
    return None if torch.compiler.is_compiling() else SHARED.get()


@dataclass(frozen=True, eq=False)
class NetworkPass:
    """The tensors with one pass."""

    tensors: Sequence[RandomTensor]  # in their order in the network, of one dtype
    names: Sequence[Names]  # of each of them there
    recipes: Sequence[Recipe]  # of each of them
    summed: bool  # whether the recipes have the KLs
    rooms: dict[int, list[list[Tensor]]] = field(default_factory=dict)  # memory of weights, by bucket

    @classmethod
    def of(cls, members: Sequence[tuple[Names, RandomTensor]]) -> NetworkPass:
        """The pass of these tensors, which sums their KLs where all of them are fixed contractions."""
        tensors = [tensor for _, tensor in members]
        posteriors, fixed = [tensor.posterior for tensor in tensors], [tensor.fixed_products() for tensor in tensors]
        recipes = [Recipe(q.noise, q.form, kl or Fixed()) for q, kl in zip(posteriors, fixed, strict=True)]
        return cls(tensors, [names for names, _ in members], recipes, None not in fixed)

    @property
    def key(self) -> tuple[int, ...]:
        """What tells it from groups and other passes."""
        return (id(self),)

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Fresh weights by their names. Inside of a step, the KL is summed too."""
        shared = shared_step()
        if not self._plain() or (shared is None and torch.is_grad_enabled()):  # the pass saves parameters for backward
            return named(zip(self.names, (tensor.draw(generator) for tensor in self.tensors), strict=True))
        beside = self.summed and shared is not None and self.key not in shared
        found, kl = self._run(True, beside, generator)
        if beside and shared is not None:
            shared[self.key] = kl
        whole = [tensor.whole(w) for tensor, w in zip(self.tensors, found, strict=True)]
        return named(zip(self.names, whole, strict=True))

    def divergence(self, generator: torch.Generator | None = None) -> Tensor:
        """The sum of the KLs, in float64: the one that was summed beside a draw, where there is one."""
        shared = shared_step()
        if shared is not None and self.key in shared:
            found: Tensor = shared[self.key]
            return found
        if not self._plain():
            return torch.stack([tensor.divergence(None, generator) for tensor in self.tensors]).sum()
        return self._run(False, True, generator)[1]

    def _run(self, sample: bool, summed: bool, generator: torch.Generator | None) -> tuple[list[Tensor], Tensor]:
        weights: list[Tensor] = []
        kls: list[Tensor] = []
        for thetas, recipes in self._buckets():
            chosen = recipes if summed else [replace(r, kl=Fixed()) for r in recipes]
            found, kl = run(thetas, chosen, sample, generator, self.rooms.setdefault(len(kls), []))
            weights += found
            kls.append(kl)
        return weights, kls[0] if len(kls) == 1 else torch.stack(kls).sum()

    def _buckets(self) -> Iterator[tuple[list[Theta], list[Recipe]]]:
        """All tensors at once; in a group of processes runs of them, so that gradients are exchanged meanwhile."""
        sizes = [tensor.log_scale.numel() for tensor in self.tensors]
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        every = zip(self.tensors, self.recipes, ends, strict=True)
        for _, bucket in groupby(every, lambda one: one[2] // BUCKET if several else 0):
            pairs = list(bucket)
            yield [(tensor.centre, tensor.log_scale) for tensor, _, _ in pairs], [recipe for _, recipe, _ in pairs]

    def _plain(self) -> bool:
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        return all(type(tensor.log_scale) in (Tensor, nn.Parameter) for tensor in self.tensors)


def refuse_shards(tensors: Sequence[RandomTensor]) -> None:
    """Refuse tensors of which this process has a shard: fully_shard(bnn) makes them whole inside of bnn(x) only."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.tensor import DTensor

        if any(isinstance(tensor.log_scale, DTensor) for tensor in tensors):
            raise MethodError(
                "a draw from parameters that are sharded among processes",
                "they are whole only inside of bnn(x), and there only if the network is sharded as one",
                "fully_shard(bnn) without fully_shard of its parts, and bnn(x) or elbo; for predictions, load a full "
                "state_dict into a network that is not sharded",
            )
