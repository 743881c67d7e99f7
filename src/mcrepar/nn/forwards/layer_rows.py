"""Which rows of the layers are examples: those whose number follows the size of the batch, which two forwards show.

A number alone tells little: as many learned queries, positions or prototypes as a batch has examples are no examples.
The forwards run at the mean of the weights, on copies, without gradients; buffers and random numbers are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mcrepar.nn.batches import copies, examples, one_more
from mcrepar.nn.forwards.layer_weight import FUNCTIONS, Rule, Weight, looks, run_layers
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.swap import run

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

Shape = tuple[int, ...]
LOOKING: ContextVar[bool] = ContextVar("whether a forward only looks at the rows of layers", default=False)


class NotedWeight(Weight):
    """A weight as an ordinary tensor, which notes what its layer is given."""

    plain: Tensor
    calls: list[Shape | None]
    level: int | None

    @classmethod
    def of(cls, plain: Tensor, calls: list[Shape | None]) -> NotedWeight:
        """A weight that appends to `calls` the shape of a layer's input, or None where it is used otherwise."""
        weight = plain.as_subclass(cls)
        weight.plain, weight.calls, weight.level = plain, calls, _level()
        return weight

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function of the plain weights."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs or {})))
        if not looks(func):
            x = args[0] if args else (kwargs or {}).get("input")
            for weight in leaves:
                if isinstance(weight, cls):
                    inside = func in (*FUNCTIONS, F.embedding) and weight.level == _level()  # and not in a vmap
                    weight.calls.append(tuple(x.shape) if inside and isinstance(x, Tensor) else None)
        plain = [leaf.plain if isinstance(leaf, cls) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(plain, spec)
        return func(*args, **kwargs)


def _level() -> int | None:
    """How many transforms of torch.func are around this line."""
    level: int | None = torch._C._functorch.maybe_current_level()
    return level


@dataclass(frozen=True)
class Look:
    """What one forward shows."""

    batch: int  # the number of its examples
    calls: Mapping[str, list[Shape | None]]  # by name of a weight, the shapes of the inputs of its layer
    rows: bool  # whether an output has a row per example

    @property
    def unmet(self) -> set[str]:
        """The weights that no function asked for a rule: they are not used, or go into one that asks none."""
        return {name for name, calls in self.calls.items() if not calls}

    @property
    def dense(self) -> set[str]:
        """The weights of dense layers that run once, each row of their input being an example."""
        rows = {name: _rows(calls[0]) for name, calls in self.calls.items() if len(calls) == 1}
        found = {name for name, count in rows.items() if count in (1, self.batch)}  # a single row is one example
        return found if self.rows or all(rows[name] == 1 for name in found) else set()


def look(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Look]:
    """What a forward shows on this batch, and on one with an example more where the network takes such a batch.

    It is empty where the network takes not even this batch, which the forward proper says better.
    """
    restore, found = _remembered(bnn), list[Look]()
    token = LOOKING.set(True)
    try:
        with suppress(Exception):
            found.append(_forward(bnn, *copies(args, kwargs)))
            restore()
            larger = one_more(args, kwargs)
            if larger is not None:
                found.append(_forward(bnn, *larger))
    finally:
        LOOKING.reset(token)
        restore()
    return found


def dimensions(looks: list[Look]) -> dict[str, int | None]:
    """The dimension of the inputs of every layer that follows the size of the batch, by its weight; None for no one.

    What two looks do not tell is left out.
    """
    if len(looks) < 2:
        return {}
    small, large = looks
    found: dict[str, int | None] = {}
    for name, calls in small.calls.items():
        pairs = [(a, b) for a, b in zip(calls, large.calls[name], strict=False) if a is not None and b is not None]
        kinds = {_following(a, small.batch, b, large.batch) for a, b in pairs}
        if kinds:
            found[name] = kinds.pop() if len(kinds) == 1 else None
    return found


def run_examples(
    rule: Rule, bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, drawn: bool = False
) -> Any:
    """The network's output, every layer whose rows are examples drawing its own by the rule; others have one sample.

    Args:
        rule: the output of a layer.
        bnn: the network.
        args: of its forward.
        kwargs: of its forward.
        drawn: whether the rule draws nothing any more.
    """
    if torch.compiler.is_exporting():  # whose tensors cannot be met as weights; what is exported predicts
        return run(bnn, bnn.draw(), *args, **kwargs)
    if not bnn.tried and not torch.compiler.is_compiling() and plain(bnn):
        found = look(bnn, args, kwargs)
        others = {name for name, k in dimensions(found).items() if k != 0}
        bnn.examplewise = {tensor.name for tensor in random_tensors(bnn).values()} - others
        bnn.tried, bnn.unmet = bool(found), found[0].unmet if found else set()
    return run_layers(rule, bnn, args, kwargs, bnn.examplewise if bnn.tried else None, drawn=drawn)


def plain(bnn: BayesianModule) -> bool:
    """Whether parameters are ordinary tensors, as which a layer can meet them: no shards, nothing that is exported."""
    first: Any = next(iter(bnn.latents._modules.values()))
    return type(first.log_scale) in (Tensor, nn.Parameter)


def has_rows(out: Any, batch: int) -> bool:
    """Whether a tensor of the output has a row per example; an object that hides its tensors may have one."""
    leaves = pytree.tree_leaves(out)
    return any(not isinstance(leaf, Tensor) or (leaf.dim() > 0 and len(leaf) == batch) for leaf in leaves)


def _forward(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Look:
    calls: dict[str, list[Shape | None]] = {tensor.name: [] for tensor in random_tensors(bnn).values()}
    with torch.no_grad():
        weights = {
            name: NotedWeight.of(mean, calls[tensor.name])
            for names, tensor in random_tensors(bnn).items()
            for name, mean in dict.fromkeys(names, tensor.mean()).items()
        }
        batch = examples(args, kwargs)  # before the network may write to its input
        out = run(bnn, weights, *args, **kwargs)
    return Look(batch, calls, has_rows(out, batch))


def _rows(shape: Shape | None) -> int:
    """The rows of the input of a dense layer, 0 where they are not dimension 0 of two."""
    if shape is None or len(shape) > 2:
        return 0
    return shape[0] if len(shape) == 2 else 1


def _following(a: Shape, small: int, b: Shape, large: int) -> int | None:
    """The dimension whose size follows that of the batch."""
    different = [k for k, (m, n) in enumerate(zip(a, b, strict=False)) if m != n and m * large == n * small]
    return different[0] if different else None


def _remembered(bnn: BayesianModule) -> Callable[[], None]:
    """A function that puts buffers and random numbers back to what they are now."""
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for module in bnn.net.modules()
        for name, buffer in module._buffers.items()
    ]
    device = next(bnn.parameters()).device
    other = None if device.type == "cpu" else torch.get_device_module(device)
    states = torch.get_rng_state(), other and other.get_rng_state(device)

    def restore() -> None:
        for module, name, buffer, before in buffers:
            module._buffers[name] = buffer  # a forward may have put another tensor there
            if buffer is not None and before is not None:
                with torch.no_grad():
                    buffer.copy_(before)
        torch.set_rng_state(states[0])
        if other is not None:
            other.set_rng_state(states[1], device)

    return restore
