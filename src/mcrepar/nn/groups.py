"""The random tensors of a network that are drawn, summed and differentiated together.

Those of a small network that share families are one row of weights, with one draw and one KL: a step is spent between
operations and not in them, so that their number is all that counts. What is the same at every step (noise, products of
the KL, constants) is computed once. All operations are plain torch, which compiles, maps and differentiates them.
In large networks copies into a row would cost more than they save: on a CPU their tensors are gone through in one pass.
Compiled and mapped functions, and parameters that are no plain tensors, go through the tensors one by one instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from mcrepar.distributions.forms import IDENTITY
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.random import Source
from mcrepar.divergence.contraction import Fixed
from mcrepar.divergence.joint_pass import Recipe, Theta, run
from mcrepar.divergence.methods import METHODS
from mcrepar.errors import MethodError
from mcrepar.nn.locks import during
from mcrepar.nn.random_tensor import RandomTensor, named, random_tensors
from mcrepar.nn.row_divergence import Divergence, elementwise_kl, fixed_kl, row_posterior

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

_joined: Callable[[list[Any]], Tensor] = _flatten_dense_tensors
Names = tuple[str, ...]
Members = Sequence[tuple[Names, Any]]  # random tensors with all of their names
Row = tuple[Tensor | None, Tensor]
SMALL = 2**16  # weights of a network on a CPU up to which its tensors are put in rows
SHARED: ContextVar[dict[tuple[int, ...], Any] | None] = ContextVar("what a step computes once", default=None)
BUCKET = 2**22  # weights whose gradients leave together where processes exchange them while others are computed


def shared_step() -> dict[tuple[int, ...], Any] | None:
    """What has been computed in a step that is under way; None where there is none."""
    return None if torch.compiler.is_compiling() else SHARED.get()


@dataclass(frozen=True, eq=False)
class Group:
    """Random tensors as one row."""

    tensors: list[RandomTensor]  # in their order in the network
    names: list[Names]  # of each of them there
    sizes: list[int]  # their numbers of weights
    places: Tensor  # the number of the tensor that a weight of the row belongs to
    posterior: Posterior  # a template of their family
    noise: Noise  # of the first; that of others may have another size
    located: bool  # whether they have locations, learned or fixed
    # from the posterior of the row to the sum of their KLs; None where the group serves draws alone
    kl: Divergence | None = None

    @classmethod
    def of(cls, members: Members) -> Group:
        """A group of these tensors, for draws."""
        names, tensors = [names for names, _ in members], [tensor for _, tensor in members]
        first, sizes = tensors[0], [tensor.log_scale.numel() for tensor in tensors]
        places = torch.cat([torch.full((n,), k, device=first.log_scale.device) for k, n in enumerate(sizes)])
        q, located = first.posterior, first.centre is not None
        return cls(tensors, names, sizes, places, first.options.posterior, q.noise, located)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """What tells groups of other tensors apart."""
        return tuple(map(id, self.tensors))

    @property
    def key(self) -> tuple[int, ...]:
        """Where a step keeps its row, of which that without a graph serves no gradient."""
        return (torch.is_grad_enabled(), *self.ids)

    @property
    def members(self) -> Members:
        """The tensors with their names."""
        return list(zip(self.names, self.tensors, strict=True))

    def row(self) -> Row:
        """Locations and log scales of all weights."""
        shared = shared_step()
        if shared is not None and self.key in shared:
            row: Row = shared[self.key]
            return row
        log_scale = _joined([tensor.log_scale for tensor in self.tensors])
        found = _joined([tensor.centre for tensor in self.tensors]) if self.located else None, log_scale
        if shared is not None:
            shared[self.key] = found
        return found

    def draw(self, generator: torch.Generator | None = None, draws: int | None = None) -> dict[str, Tensor]:
        """Fresh weights by their names; with `draws` (draws, *shape) each, the same as one draw after the other."""
        loc, log_scale = self.row()
        with torch.no_grad():
            source = Source(log_scale.dtype, log_scale.device, generator)
            xi = self.noise.draw_rows(source, draws or 1, self.sizes, self.places)
        scale, xi = log_scale.exp(), xi if draws else xi[0]
        w = self.posterior.form.outer.apply(scale * xi if loc is None else torch.addcmul(loc, scale, xi))
        lead = (draws,) if draws else ()
        rows = torch.split_with_sizes(w, self.sizes, -1)  # its backward is one operation
        parts = [(t, row.view((*lead, *t.log_scale.shape))) for t, row in zip(self.tensors, rows, strict=True)]
        return named(zip(self.names, (tensor.whole(part) for tensor, part in parts), strict=True))

    def divergence(self, generator: torch.Generator | None = None) -> Tensor:
        """The sum of their KLs, in float64."""
        assert self.kl is not None
        return self.kl(row_posterior(self.posterior, self.noise, *self.row()), generator)


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
        """Where a step keeps its KL, of which that without a graph serves no gradient."""
        return (torch.is_grad_enabled(), id(self))

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Fresh weights by their names. Inside of a step, the KL is summed too."""
        shared = shared_step()
        if not self._plain():
            return named(zip(self.names, (tensor.draw(generator) for tensor in self.tensors), strict=True))
        if shared is None and torch.is_grad_enabled():  # a pass saves parameters, which may change before the backward
            with torch.no_grad():
                moved = self._run(True, False, generator, located=False)[0]
            drawn = (tensor.moved_by(m) for tensor, m in zip(self.tensors, moved, strict=True))
            return named(zip(self.names, drawn, strict=True))
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

    def _run(
        self, sample: bool, summed: bool, generator: torch.Generator | None, located: bool = True
    ) -> tuple[list[Tensor], Tensor]:
        """The weights, or scale * xi where they are not `located`, and the sum of the KLs."""
        weights: list[Tensor] = []
        kls: list[Tensor] = []
        for thetas, recipes in self._buckets():
            chosen = recipes if summed else [replace(r, kl=Fixed()) for r in recipes]
            if not located:
                thetas = [(None, log_scale) for _, log_scale in thetas]
                chosen = [replace(r, form=replace(r.form, outer=IDENTITY)) for r in chosen]
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


def shared_rows() -> AbstractContextManager[None]:
    """A context in which no parameter changes: draws and KLs of a group read its row once."""
    return during(SHARED, {})


@dataclass(frozen=True, eq=False)
class Layout:
    """How the tensors of a network are grouped."""

    looks: Sequence[Any] = ()  # what the network looked like
    tensors: Sequence[RandomTensor] = ()  # all tensors of random numbers
    drawn: Sequence[Group | NetworkPass] = ()  # the groups that are drawn as a row
    drawn_apart: Members = ()  # the tensors that are drawn by themselves
    summed: Sequence[Group | NetworkPass] = ()  # the groups that have one KL
    summed_apart: Sequence[RandomTensor] = ()  # the tensors that have a KL of their own
    factors: Sequence[Group] = ()  # all factors of weights, where they are drawn as rows


class Groups:
    """The groups of a network, kept until the network changes; a copy or a pickle gets them anew."""

    def __init__(self) -> None:
        self.kept = Layout()
        self.tried: tuple[Any, int | None] | None = None  # whether the network runs on stacks of draws (`stacks`)

    def __reduce__(self) -> tuple[type[Groups], tuple[()]]:
        return Groups, ()

    def of(self, bnn: BayesianModule) -> Layout:
        """The groups of a network as it is now."""
        shared = shared_step()
        if shared is not None and (id(self),) in shared:
            layout: Layout = shared[(id(self),)]
            return layout
        tensors: Iterable[Any] = bnn.latents._modules.values()
        parts = (part for tensor in tensors for part in tensor.tensors) if bnn.members else tensors
        looks = [*METHODS.values(), *map(_look, parts)]  # users may add methods
        if looks != self.kept.looks:
            inference = torch.is_inference_mode_enabled()  # whose tensors could not be trained with later
            with torch.inference_mode(False) if inference else nullcontext():
                self.kept = _layout(looks, list(random_tensors(bnn).items()))
        if shared is not None:
            shared[(id(self),)] = self.kept
        return self.kept


def _look(tensor: Any) -> tuple[Any, ...]:
    """What decides in which group a tensor is."""
    log_scale, centre = tensor.log_scale, tensor._parameters.get("loc")  # a module's own way is slow
    centre = tensor._buffers.get("fixed_loc") if centre is None else centre
    regular = log_scale.is_contiguous()
    if centre is not None:
        regular = regular and centre.is_contiguous() and centre.dtype == log_scale.dtype
    return tensor, tensor.options, log_scale.shape, log_scale.dtype, log_scale.device, regular


def _layout(looks: Sequence[Any], tensors: Members) -> Layout:
    alone = [part for _, tensor in tensors for part in tensor.tensors]
    host = alone[0].log_scale.device.type == "cpu"
    large = host and sum(part.log_scale.numel() for part in alone) > SMALL
    dtypes = {part.log_scale.dtype for part in alone}
    halves = len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}
    members = max(getattr(tensor, "members", 0) for _, tensor in tensors)  # of weights with factors
    if members > 1 or (large and (members or halves)):
        return Layout(looks, alone, (), tensors, (), alone)
    if large:
        once = NetworkPass.of(tensors)
        return Layout(looks, alone, (once,), (), (once,) if once.summed else (), () if once.summed else alone)
    drawn, apart = _sorted([((part.name,), part) for part in alone] if members else tensors, _family)
    summed: list[Group] = []
    for group in drawn:
        for alike in _sorted(group.members, _prior)[0]:
            whole = fixed_kl(alike.tensors, alike.places)
            parts = [alike] if whole is not None else _sorted(alike.members, _numbers)[0]
            functions = [(part, whole or elementwise_kl(part.tensors[0])) for part in parts]
            summed += [replace(part, kl=function) for part, function in functions if function is not None]
    known = {tensor for group in summed for tensor in group.tensors}
    rest = [tensor for tensor in alone if tensor not in known]
    if members:
        rows = not apart and all(group.noise.projects for group in drawn)  # Normal or Radial: many rows at once
        return Layout(looks, alone, (), tensors, summed, rest, drawn if rows else ())
    return Layout(looks, alone, drawn, apart, summed, rest)


def _sorted(tensors: Members, key: Callable[[RandomTensor], tuple[Any, ...] | None]) -> tuple[list[Group], Members]:
    """Groups of the tensors that share a key, and those that have none."""
    found: dict[Any, list[tuple[Names, Any]]] = {}
    for member in tensors:
        found.setdefault(key(member[1]), []).append(member)
    apart = found.pop(None, [])
    return [Group.of(members) for members in found.values()], apart


def _family(tensor: RandomTensor) -> tuple[Any, ...] | None:
    """What tensors in a row have in common; None for a tensor that is drawn by itself."""
    options, noise, (*_, dtype, device, regular) = tensor.options, tensor.posterior.noise, _look(tensor)
    fixed = options.posterior.fixed
    shaped = any(isinstance(value, Tensor) for value in fixed.values())
    if shaped or not regular or tensor.held is not None or (noise.joint and not noise.joins):
        return None
    return options.posterior.name, tuple(fixed.items()), dtype, device


def _prior(tensor: RandomTensor) -> tuple[Any, ...] | None:
    """What tensors with one KL have in common; None where a tensor is a part of the prior."""
    p = tensor.options.prior
    own = tensor.anchor is not None or p.row is None or p.tensors or p.words
    return None if own else (p.name, p.improper, tensor.options.estimator)


def _numbers(tensor: RandomTensor) -> tuple[Any, ...]:
    """The values of the prior."""
    return tuple(tensor.options.prior.values.items())
