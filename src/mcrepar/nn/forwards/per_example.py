"""A sample of all weights of its own for every example: by vmap where it works, by a loop where not.

The examples are the tensors that are passed by position, all of one length in dimension 0; what is passed by keyword
beside them is shared by all examples. Where nothing is passed by position, the tensors passed by keyword hold the
examples. A tensor of no dimension is shared. No argument is taken for examples because its length happens to fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from mcrepar.distributions.posterior import Posterior
from mcrepar.errors import MethodError
from mcrepar.nn import swap
from mcrepar.nn.checkpointing import running
from mcrepar.nn.select import Place

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule


def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, its examples, in dimension 0 of the arguments, having a sample of the weights each."""
    with swap.alone(bnn):  # modes decide what is done
        _check_norms(bnn)
        data = _Data.of(args, kwargs)
        if not data.size:  # an empty batch has an empty output, whatever the sample
            return swap.run(bnn, bnn.draw(), *args, **kwargs)
        draws = [bnn.draw() for _ in range(data.size)]
        out = _by_vmap(bnn, data, draws) if _vmaps(bnn) else None
        return _joined(bnn, data, draws[0], _by_loop(bnn, data, draws) if out is None else out)


def check(q: Posterior, place: Place) -> None:
    """Refuse layers whose examples are not in dimension 0."""
    owner = place.owners[0]
    if any(isinstance(o, nn.RNNBase | nn.MultiheadAttention) and not o.batch_first for o in place.owners):
        why = f"the {type(owner).__name__} has its examples in dimension 1"
        raise MethodError("forward='per_example'", why, "batch_first=True")


def _check_norms(bnn: BayesianModule) -> None:
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in bnn.net.modules()):
        raise MethodError(
            "forward='per_example' with BatchNorm in training",
            "its statistics are those of a batch, and every example runs alone",
            "GroupNorm, another forward, or the norm layers in eval()",
        )


def _by_vmap(bnn: BayesianModule, data: _Data, draws: list[dict[str, Tensor]]) -> Any:
    """Outputs of single examples, (examples, ...); None where an operation has no batching rule."""
    stacked = {name: torch.stack([d[name] for d in draws]) for name in draws[0]}
    dims = (0, *(0 if is_batch else None for is_batch in data.batched))

    def one(weights: swap.Draw, *leaves: Any) -> Any:
        parts = zip(leaves, data.batched, strict=True)
        inside, named = data.arguments([p.unsqueeze(0) if is_batch else p for p, is_batch in parts])
        return swap.swapped(bnn, weights, inside, named)

    # a checkpointed region is run by the loop too: inside vmap it could not keep its weights
    with contextlib.suppress(RuntimeError, ValueError), running(None):
        return vmap(one, in_dims=dims, randomness="different")(stacked, *data.leaves)
    return None


def _by_loop(bnn: BayesianModule, data: _Data, draws: list[dict[str, Tensor]]) -> Any:
    """The same, one forward after the other."""
    rows = []
    for k, draw in enumerate(draws):
        args, kwargs = data.rows(slice(k, k + 1))
        try:
            rows.append(swap.run(bnn, draw, *args, **kwargs))
        except (RuntimeError, ValueError, IndexError) as error:
            if not k:
                _check_batch(bnn, data, draw, error)
            raise
    first, spec = pytree.tree_flatten(rows[0])
    columns = zip(*(pytree.tree_leaves(row) for row in rows), strict=True)
    leaves = [torch.stack(c) if isinstance(c[0], Tensor) else one for c, one in zip(columns, first, strict=True)]
    return pytree.tree_unflatten(leaves, spec)


def _check_batch(bnn: BayesianModule, data: _Data, draw: swap.Draw, error: Exception) -> None:
    """Say of what runs as a whole, and not row by row, that it is no batch of examples."""
    try:
        _aside(bnn, draw, data.arguments(data.leaves))
    except (RuntimeError, ValueError, IndexError):
        return  # nor as a whole: torch says what does not fit
    why = f"the network runs on its input as a whole and not on one row of it ({error})"
    instead = "examples in dimension 0, for one of them x.unsqueeze(0)"
    raise MethodError("forward='per_example'", why, instead) from error


@dataclass(frozen=True, eq=False)
class _Data:
    """The arguments of a forward as leaves, of which some hold the examples."""

    leaves: list[Any]  # all arguments
    spec: Any  # of their tree
    batched: list[bool]  # which of them have the examples in dimension 0
    size: int  # the number of examples

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Data:
        """The arguments: examples by position, or all of them by keyword."""
        paths, spec = pytree.tree_flatten_with_path((args, dict(kwargs)))
        tensors = [(path, leaf) for path, leaf in paths if isinstance(leaf, Tensor) and leaf.dim()]
        if not tensors:
            raise MethodError("forward='per_example'", "no argument has a batch", "a tensor as an argument")
        (first, *_), size = tensors[0][0], len(tensors[0][1])  # whether by position or by keyword
        for (kind, *path), leaf in tensors:
            if kind == first and len(leaf) != size:
                raise MethodError(
                    f"forward='per_example' with argument {pytree.keystr(tuple(path))}",
                    f"its length is {len(leaf)}, and there are {size} examples",
                    "examples by position, and what all of them share by keyword",
                )
        data = {id(leaf) for (kind, *_), leaf in tensors if kind == first}
        leaves = [leaf for _, leaf in paths]
        return cls(leaves, spec, [id(leaf) in data for leaf in leaves], size)

    def arguments(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the same form."""
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def rows(self, which: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of some examples."""
        return self.arguments([t[which] if b else t for t, b in zip(self.leaves, self.batched, strict=True)])


def _joined(bnn: BayesianModule, data: _Data, draw: swap.Draw, out: Any) -> Any:
    """Outputs of single examples, (examples, ...), put together in the dimension where the network has its examples."""
    leaves, spec = pytree.tree_flatten(out)
    recurrent = any(isinstance(m, nn.RNNBase) for m in bnn.net.modules())  # their last states have it in dimension 1
    device = next(bnn.parameters()).device.type
    if recurrent or torch.is_autocast_enabled(device):  # which vmap follows for some operations only
        pairs = pytree.tree_leaves(_of_two(bnn, data, draw))
    else:
        pairs = [None] * len(leaves)
    return pytree.tree_unflatten([_join(t, two) for t, two in zip(leaves, pairs, strict=True)], spec)


def _of_two(bnn: BayesianModule, data: _Data, draw: swap.Draw) -> Any:
    """The network's output for two equal examples, which tells dimensions and dtypes."""
    return _aside(bnn, draw, data.rows([0, 0]))


def _aside(bnn: BayesianModule, draw: swap.Draw, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The network's output without a graph; its buffers stay as they are."""
    args, kwargs = arguments
    buffers = {name: buffer.clone() for name, buffer in bnn.net.named_buffers()}
    with torch.no_grad():
        return swap.run(bnn, {**buffers, **draw}, *args, **kwargs)


def _join(rows: Any, two: Any) -> Any:
    """(examples, ..., 1, ...) -> (..., examples, ...)."""
    if not isinstance(rows, Tensor):
        return rows
    one = list(rows.shape[1:])
    if isinstance(two, Tensor):
        places = [k for k, (a, b) in enumerate(zip(one, two.shape, strict=True)) if (a, b) == (1, 2)]
        rows = rows.to(two.dtype)
    else:
        places = [0] if one[:1] == [1] else [k for k, length in enumerate(one) if length == 1]
    if len(places) != 1:
        why = f"the network's output for one example, of shape {tuple(one)}, does not tell where the examples are"
        raise MethodError("forward='per_example'", why, "outputs with the examples in dimension 0")
    return rows.squeeze(places[0] + 1).movedim(0, places[0])


def _vmaps(bnn: BayesianModule) -> bool:
    """Recurrent layers and attention in eval (its fast path) have no batching rule."""
    return not any(
        isinstance(m, nn.RNNBase) or (isinstance(m, nn.MultiheadAttention) and not m.training)
        for m in bnn.net.modules()
    )
