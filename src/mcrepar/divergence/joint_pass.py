"""One pass over all random tensors of a network: their sample, the sum of their KLs, and the gradients of both.

The tensors are cut into blocks that stay in the cache, which kept threads go through: noise, exp(log_scale), weights,
summands of the KL. The backward goes through the same blocks once and writes the gradients of the likelihood and of
the KL together. A KL that is no fixed contraction (`kl.fixed_products`) is computed tensor by tensor instead.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import Form
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.random import Source, new_seed, on_cores, place_seed
from mcrepar.divergence.contraction import Fixed
from mcrepar.divergence.sums import Order, Point, combine, empty_like, flat, memory_order, unflat

BLOCK = 2**16  # weights: a handful of float32 temporaries fit into the cache of a core
REFERENCES = 4  # of Python to a gradient that nobody else looks at
SAVED = 3  # tensors on the memory of weights that the network has let go of: in the graph, out of it, and in `rooms`
Theta = tuple[Tensor | None, Tensor]  # loc, learned or fixed, and log_scale


@dataclass(frozen=True, eq=False)
class Recipe:
    """What the pass does with one tensor: the noise of its weights, how it becomes a weight, and the KL."""

    noise: Noise
    form: Form
    kl: Fixed

    def sample(self, generator: torch.Generator, point: Point, radius: Tensor | None, out: Tensor) -> None:
        """f(loc + scale * xi) on a block."""
        (xi,) = self.noise.draw(1, point.size, dtype=out.dtype, device=out.device, generator=generator, radius=radius)
        if point.loc is None:
            torch.mul(xi, point.scale, out=out)
        else:
            torch.addcmul(point.loc, xi, point.scale, out=out)
        if self.form.outer.derivative is not None:
            out.copy_(self.form.outer.apply(out))

    def pull_back(self, point: Point, w: Tensor, d_loc: Tensor, d_scale: Tensor) -> None:
        """The likelihood's gradient on a block: `d_loc` holds dF/dw, and `d_scale` becomes dF/dv (v - loc)."""
        outer = self.form.outer
        if outer.derivative is not None:
            d_loc.mul_(outer.derivative(w))
            w = outer.inverse(w)
        if point.loc is None:
            torch.mul(d_loc, w, out=d_scale)
        else:
            torch.sub(w, point.loc, out=d_scale).mul_(d_loc)


def run(
    thetas: Sequence[Theta],
    recipes: Sequence[Recipe],
    sample: bool,
    generator: torch.Generator | None,
    rooms: list[list[Tensor]] | None = None,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The weights of every tensor (none without `sample`), and the sum of the KLs in float64.

    Args:
        thetas: loc and log_scale of every tensor, of one dtype, on the CPU.
        recipes: of every tensor.
        sample: whether weights are drawn.
        generator: decides all noise, by one number.
        rooms: where memory of weights is left for the next pass, which takes what nobody else looks at any more: new
            memory costs as much as the noise.
    """
    drawn = sample or any(recipe.kl.taus for recipe in recipes)
    walk = Walk(recipes, sample, new_seed(generator) if drawn else 0, rooms if rooms is not None else [])
    *weights, kl = _Pass.apply(walk, *(x for theta in thetas for x in theta))  # type: ignore[no-untyped-call]
    return tuple(weights), kl


@dataclass(eq=False)
class Walk:
    """One forward and its backward: the blocks, (tensor, start, stop), and what is kept of them in between."""

    recipes: Sequence[Recipe]
    sample: bool
    seed: int
    rooms: list[list[Tensor]]
    dtype: torch.dtype = torch.float32
    orders: list[Order] = field(default_factory=list)
    blocks: list[tuple[int, slice]] = field(default_factory=list)
    shares: list[float | None] = field(default_factory=list)
    means: list[list[Tensor]] = field(default_factory=list)

    def forward(self, thetas: Sequence[Theta]) -> tuple[list[Tensor], float]:
        """The weights, and the sum of the KLs."""
        for k, (loc, log_scale) in enumerate(thetas):
            self.orders.append(memory_order([log_scale] if loc is None else [log_scale, loc]))
            size = log_scale.numel()
            self.blocks += [(k, slice(a, min(a + BLOCK, size))) for a in range(0, size, BLOCK)]
        rows = self._rows(thetas)
        weights = self._weights([x for _, x in thetas]) if self.sample else []
        targets = [flat(w, o) for w, o in zip(weights, self.orders, strict=False)]
        self.means = [[] for _ in self.blocks]
        self.dtype = rows[0][1].dtype
        radii = self._splits()
        sums = [0.0] * len(self.blocks)

        def work(share: Iterable[int]) -> None:
            generator = torch.Generator()
            source = Source(self.dtype, "cpu", generator)
            for b in share:
                k, cut = self.blocks[b]
                recipe, point = self.recipes[k], _point(rows[k], cut)
                if self.sample:
                    generator.manual_seed(place_seed(self.seed, b + 1))
                    recipe.sample(generator, point, radii[b], targets[k][cut])
                means = self._drawn(b, source)
                self.means[b] = [] if recipe.noise.redraws else means
                sums[b] = math.fsum(point.sum(f, t).item() for f, t in recipe.kl.summands(means))

        with torch.no_grad():
            on_cores(len(self.blocks), torch.get_num_threads(), work)
        return weights, math.fsum([*sums, *(recipe.kl.rest for recipe in self.recipes)])

    def backward(
        self, thetas: Sequence[Theta], weights: Sequence[Tensor], grads: list[Tensor | None], slope: float
    ) -> list[tuple[Tensor, Tensor]]:
        """d_loc in the memory of the weights' gradient, d_log_scale in that of the weights, if nobody else has them."""
        rows, values = self._rows(thetas), [flat(w, o) for w, o in zip(weights, self.orders, strict=False)]
        d_locs = [self._target(k, x, grads) for k, (_, x) in enumerate(thetas)]
        again = self.sample and not torch._C._autograd._get_current_graph_task_keep_graph()
        d_scales = [
            _again(weights[k]) if again and _free(weights[k], SAVED) else empty_like(x, self.orders[k])
            for k, (_, x) in enumerate(thetas)
        ]
        into = [(flat(a, o), flat(b, o)) for a, b, o in zip(d_locs, d_scales, self.orders, strict=True)]

        def work(share: Iterable[int]) -> None:
            source = Source(self.dtype, "cpu", torch.Generator())
            for b in share:
                k, cut = self.blocks[b]
                point, d_loc, d_scale = _point(rows[k], cut), into[k][0][cut], into[k][1][cut]
                if self.sample:
                    self.recipes[k].pull_back(point, values[k][cut], d_loc, d_scale)
                means = self.means[b] or self._drawn(b, source)
                jobs = [(f, t, slope) for f, t in self.recipes[k].kl.summands(means)] if slope else []
                if point.loc is not None:
                    combine([point.slope_loc(*job) for job in jobs], d_loc, fresh=not self.sample)
                combine([point.slope_scale(*job) for job in jobs], d_scale, fresh=not self.sample)

        with torch.no_grad():
            on_cores(len(self.blocks), torch.get_num_threads(), work)
        return list(zip(d_locs, d_scales, strict=True))

    def _rows(self, thetas: Sequence[Theta]) -> list[Theta]:
        """loc and log_scale of every tensor in the order of memory."""
        every = [(loc, x, o) for (loc, x), o in zip(thetas, self.orders, strict=True)]
        return [(None if loc is None else flat(loc.detach(), o), flat(x.detach(), o)) for loc, x, o in every]

    def _weights(self, like: Sequence[Tensor]) -> list[Tensor]:
        """Memory for the weights; what a pass before left is used again where nothing else refers to it."""
        try:
            before = self.rooms.pop()  # no other thread finds it now
        except IndexError:
            before = []
        out = []
        for room, x, order in zip_longest(before[: len(like)], like, self.orders):
            wanted = empty_like(x, order)  # costs nothing before it is written
            if room is not None and room.stride() == wanted.stride() and room.shape == x.shape and _free(room):
                wanted = _again(room)
            out.append(wanted)
        self.rooms[:] = [[w.detach() for w in out]]
        return out

    def _drawn(self, b: int, source: Source) -> list[Tensor]:
        """The means on a block, the same whenever they are drawn."""
        k, cut = self.blocks[b]
        recipe = self.recipes[k]
        if not recipe.kl.taus:
            return []
        assert source.generator is not None
        source.generator.manual_seed(place_seed(self.seed, b + 1 + len(self.blocks)))
        size = cut.stop - cut.start
        return recipe.noise.draw_means_of_block(recipe.kl.taus, source, recipe.kl.draws, size, self.shares[b])

    def means_of(self, k: int) -> list[Tensor]:
        """The means on a whole tensor."""
        source = Source(self.dtype, "cpu", torch.Generator())
        parts = [self.means[b] or self._drawn(b, source) for b, (owner, _) in enumerate(self.blocks) if owner == k]
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    def _splits(self) -> list[Tensor | None]:
        """What the blocks of joint noise share of one draw: their norms, and the sums of their means."""
        radii: list[Tensor | None] = []
        source = Source(self.dtype, "cpu", torch.Generator().manual_seed(self.seed))
        for k, recipe in enumerate(self.recipes):
            sizes = [cut.stop - cut.start for i, cut in self.blocks if i == k]
            split = recipe.noise.split(source, 1, sizes) if self.sample else None
            radii += [None] * len(sizes) if split is None else list(split[1].unbind(1))
            shares = recipe.noise.split_means(source, recipe.kl.draws, sizes) if recipe.kl.taus else [None] * len(sizes)
            self.shares += shares
        return radii

    def _target(self, k: int, like: Tensor, grads: list[Tensor | None]) -> Tensor:
        """A tensor in the order of memory that may be changed; of a sample it holds the weights' gradient."""
        grad = grads[k] if self.sample else None
        if grad is not None and _owned(grad) and flat(grad, self.orders[k]).data_ptr() == grad.data_ptr():
            return grad
        out = empty_like(like, self.orders[k])
        if self.sample:
            out.zero_() if grad is None else out.copy_(grad)
        return out


def _point(row: Theta, cut: slice) -> Point:
    return Point(None if row[0] is None else row[0][cut], row[1][cut], True)


def _free(room: Tensor, known: int = 1) -> bool:
    """Whether no other tensor has this memory than those that are known."""
    storage = room.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) <= known + 1  # and `storage`


def _again(room: Tensor) -> Tensor:
    """A tensor of its own on the memory of another."""
    return torch.empty(0, dtype=room.dtype).set_(room.untyped_storage(), 0, room.shape, room.stride())


def _owned(grad: Tensor) -> bool:
    """Whether no other tensor, node or hook looks at the memory of a gradient."""
    storage = grad.untyped_storage()
    return (
        storage.nbytes() == grad.nbytes
        and grad._use_count() == 1  # type: ignore[attr-defined]
        and _free(grad, 2)
        and sys.getrefcount(grad) <= REFERENCES
    )


class _Pass(torch.autograd.Function):
    """The weights and the KL; saved are theta and the weights, which the network saves as well."""

    @staticmethod
    def forward(ctx: Any, walk: Walk, *flattened: Any) -> tuple[Tensor, ...]:
        thetas = list(zip(flattened[::2], flattened[1::2], strict=True))
        weights, kl = walk.forward(thetas)
        ctx.walk, ctx.count = walk, len(flattened)
        ctx.save_for_backward(*flattened, *weights)
        ctx.set_materialize_grads(False)
        return *weights, torch.tensor(kl, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        saved, walk = ctx.saved_tensors, ctx.walk
        thetas = list(zip(saved[: ctx.count : 2], saved[1 : ctx.count : 2], strict=True))
        on_kl, own = grads[-1], list(grads[:-1])
        del grads
        if torch.is_grad_enabled():  # create_graph=True
            return None, *_differentiable(walk, thetas, saved[ctx.count :], own, on_kl)
        found = walk.backward(thetas, saved[ctx.count :], own, 0.0 if on_kl is None else float(on_kl))
        pairs = zip(found, thetas, strict=True)
        return None, *(x for (d_loc, d_scale), (loc, _) in pairs for x in (None if loc is None else d_loc, d_scale))


def _differentiable(
    walk: Walk, thetas: Sequence[Theta], weights: Sequence[Tensor], grads: Sequence[Tensor | None], slope: Tensor | None
) -> list[Tensor | None]:
    """The gradients as a graph of their own, for second derivatives, tensor by tensor in plain torch."""
    out: list[Tensor | None] = []
    for k, ((loc, rho), order) in enumerate(zip(thetas, walk.orders, strict=True)):
        point = Point(None if loc is None else flat(loc, order), flat(rho, order), True)
        jobs = walk.recipes[k].kl.summands(walk.means_of(k)) if slope is not None else []
        found = point.slopes((f, t, slope.to(rho.dtype)) for f, t in jobs if slope is not None)
        if walk.sample and (grad := grads[k]) is not None:
            outer, w = walk.recipes[k].form.outer, flat(weights[k].detach(), order)
            v = w if outer.derivative is None else outer.inverse(w)
            moved = (v if point.loc is None else v - point.loc.detach()) * (point.given - point.given.detach()).exp()
            slopes = flat(grad, order)
            if outer.derivative is not None:
                slopes = slopes * outer.derivative(outer.apply(moved if point.loc is None else point.loc + moved))
            found = [slopes + found[0], slopes * moved + found[1]]
        out += [None if loc is None else unflat(found[0], rho.shape, order), unflat(found[1], rho.shape, order)]
    return out
