"""What autograd really holds: nodes, saved bytes, peak bytes.

A vectorised estimate hides its cost: it has a handful of nodes for any M, yet keeps O(M) bytes. So the node
count and the saved bytes are both measured, from the `grad_fn` graph and by torch's saved-tensor hooks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def count_nodes(output: Tensor) -> int:
    """The number of distinct `grad_fn` nodes that a backward from `output` visits, AccumulateGrad included.

    >>> mu, sigma = torch.tensor(0.4, requires_grad=True), torch.tensor(0.6, requires_grad=True)
    >>> count_nodes((mu + sigma * torch.randn(1000)).square().mean())
    6
    """
    return len(post_order(output))


class _Saved:
    """One tensor packed for backward; it dies with the graph that holds it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


def saved_bytes(fn: Callable[[], Tensor], *, leaves: bool = False) -> int:
    """The bytes that the graph of `fn()` keeps for its backward, every storage counted once and whole.

    Counted is what is still held when `fn` has returned: a graph that was built and freed on the way (as
    `stream` does) costs nothing afterwards. `ctx.save_for_backward` is seen; a tensor put on `ctx` is not.

    Args:
        fn: builds and returns the output; what it draws must be drawn inside.
        leaves: count the storages of the leaf parameters too. They exist with or without a graph, so by
            default they are left out.

    >>> mu, sigma = torch.tensor(0.4, requires_grad=True), torch.tensor(0.6, requires_grad=True)
    >>> saved_bytes(lambda: (mu + sigma * torch.randn(1000)).square().mean())  # xi and w, 4 bytes each
    8000
    """
    packed: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        packed.add(saved)
        return saved

    with saved_tensors_hooks(pack, lambda saved: saved.tensor):
        output = fn()
    sizes = {_address(saved.tensor): saved.tensor.untyped_storage().nbytes() for saved in packed}
    if not leaves:
        for node in post_order(output):
            if (leaf := leaf_of(node)) is not None:
                sizes.pop(_address(leaf), None)
    return sum(sizes.values())


def peak_bytes(fn: Callable[[], object]) -> int:
    """The peak of the bytes of CPU tensors that are allocated and alive at once while `fn` runs.

    Tensors that exist before the call are not counted, nor is scratch memory inside an operator. The measure
    is a dispatch mode, and those are local to a thread: what worker threads of `fn` allocate is not seen, so
    measure such a function with one worker and multiply.

    >>> peak_bytes(lambda: sum(torch.ones(1000).sum() for _ in range(5))) < 2 * 4000
    True
    """
    allocations = _Allocations()
    with allocations:
        fn()
    return allocations.peak


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operators return, and forgets each when it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[weakref.ref[torch.UntypedStorage], int] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        known = {_address(tensor) for tensor in _cpu_tensors((args, kwargs))}
        out = func(*args, **kwargs)
        for tensor in _cpu_tensors(out):
            if _address(tensor) not in known:  # neither a view nor an in-place result
                known.add(_address(tensor))
                storage = tensor.untyped_storage()
                self.alive[weakref.ref(storage, self._freed)] = storage.nbytes()
        # Summed anew rather than kept as a running total: storages may be freed by any thread.
        self.peak = max(self.peak, sum(list(self.alive.values())))
        return out

    def _freed(self, storage: weakref.ref[torch.UntypedStorage]) -> None:
        self.alive.pop(storage, None)


def _cpu_tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.device.type == "cpu")


def _address(tensor: Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def leaf_of(node: Node) -> Tensor | None:
    """The parameter whose gradient this node accumulates, if it is such a node."""
    variable = getattr(node, "variable", None)
    return variable if isinstance(variable, Tensor) else None


def post_order(output: Tensor) -> list[Node]:
    """Every node below `output`, after all nodes that it depends on (a stack: loops make deep graphs)."""
    done: dict[Node, None] = {}
    stack = [(output.grad_fn, False)]
    while stack:
        node, below_is_done = stack.pop()
        if node is None or node in done:
            continue
        if below_is_done:
            done[node] = None
        else:
            stack.append((node, True))
            stack.extend((child, False) for child, _ in reversed(node.next_functions))
    return list(done)
