"""What autograd really holds: nodes, saved bytes, peak bytes, and a picture of the graph.

A vectorised estimate hides its cost: it has a handful of nodes for any M, yet keeps O(M) bytes. So the node
count and the saved bytes are both measured, from the `grad_fn` graph and by torch's saved-tensor hooks.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcrepar.errors import ParameterError

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mcrepar.families.posterior import Posterior
    from mcrepar.families.prior import Prior
    from mcrepar.kl.plan import Plan


def count_nodes(output: Tensor) -> int:
    """The number of distinct `grad_fn` nodes that a backward from `output` visits, AccumulateGrad included.

    >>> mu, sigma = torch.tensor(0.4, requires_grad=True), torch.tensor(0.6, requires_grad=True)
    >>> count_nodes((mu + sigma * torch.randn(1000)).square().mean())
    6
    """
    return len(_post_order(output))


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
        for node in _post_order(output):
            if (leaf := _leaf(node)) is not None:
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


def _leaf(node: Node) -> Tensor | None:
    """The parameter whose gradient this node accumulates, if it is such a node."""
    variable = getattr(node, "variable", None)
    return variable if isinstance(variable, Tensor) else None


def _post_order(output: Tensor) -> list[Node]:
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


# --- the picture -----------------------------------------------------------------------------------------

# Kinds of node, in the colours of Okabe and Ito and each with a marker of its own, so that hue is not needed.
_STYLE = {
    "parameter": ("#0072B2", "s"),
    "product": ("#E69F00", "o"),
    "sum": ("#009E73", "D"),
    "function": ("#CC79A7", "^"),
}
_OPERATIONS = {
    "product": ("Mul", "Div", "Pow", "Square", "Mv", "Dot"),
    "sum": ("Add", "Sub", "Rsub", "Sum", "Mean", "Neg"),
}
_LABELLED = 60  # above this number of nodes labels would only cover each other
_LEGIBLE = 1000  # draws of a loop that a picture can still show


def autograd_graph(output: Tensor, names: Mapping[str, Tensor] | None = None) -> nx.DiGraph:
    """The `grad_fn` graph of `output` as a networkx graph, edges pointing from parameters to the output.

    Nodes are numbered in the order of evaluation. Each has a `label` (its operation, or the name of its
    parameter), a `kind` (parameter, product, sum or function) and a `depth` (longest path from a parameter).

    Args:
        output: the tensor that backward would be called on.
        names: the leaf tensors by name; a leaf that is missing here is labelled "leaf".

    >>> mu = torch.tensor(0.4, requires_grad=True)
    >>> graph = autograd_graph(3 * mu + 1, {"mu": mu})
    >>> [graph.nodes[node]["label"] for node in graph]
    ['mu', 'Mul', 'Add']
    """
    import networkx as nx

    known = {id(tensor): name for name, tensor in (names or {}).items()}
    numbers: dict[Node, int] = {}
    graph = nx.DiGraph()
    for node in _post_order(output):
        number = numbers[node] = len(numbers)
        if (leaf := _leaf(node)) is not None:
            label, kind = known.get(id(leaf), "leaf"), "parameter"
        else:
            label = re.sub(r"Backward\d*$", "", node.name())
            kind = next((kind for kind, heads in _OPERATIONS.items() if label.startswith(heads)), "function")
        children = [numbers[child] for child, _ in node.next_functions if child is not None]
        depth = max((graph.nodes[child]["depth"] + 1 for child in children), default=0)
        graph.add_node(number, label=label, kind=kind, depth=depth)
        graph.add_edges_from((child, number) for child in children)
    return graph


def single_weight(name: str, **parameters: Any) -> Posterior:
    """A posterior of one weight whose learned parameters require grad: the smallest that can be drawn.

    Args:
        name: a key of `POSTERIORS`.
        parameters: start values of the learned parameters and values of the fixed ones.

    >>> single_weight("radial", scale=0.2).scale
    tensor(0.2000, requires_grad=True)
    """
    from mcrepar.families.posteriors import posterior

    start = {"loc": 0.4, "scale": 0.3}
    for learned in posterior(name).row.learned:
        value = parameters.get(learned, start[learned])
        parameters[learned] = torch.tensor(value, requires_grad=True) if isinstance(value, float) else value
    return posterior(name, **parameters)


def draw_graphs(
    q: Posterior,
    p: Prior,
    n_mc_iter: Sequence[int] = (1, 3, 100),
    out: str | Path | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draw the autograd graphs of the direct estimate, one per M, and of the reparameterized one, for any M.

    Both estimate the cross-entropy -E log p(W), as the paper draws it: the direct one loops over the draws.
    Under each graph stand its nodes, the bytes it saves for the backward, and d_P.

    Args:
        q: the posterior, with parameters that require grad (a single weight makes the clearest picture).
        p: the prior.
        n_mc_iter: the numbers M of draws of the direct panels, each at most 1,000.
        out: a file whose suffix (.svg, .png, .pdf) says the format; None only returns the figure.
        title: a heading; None writes none.
    """
    from matplotlib.figure import Figure

    panels = _panels(q, p, n_mc_iter)
    widths = [3.4 if len(panel.graph) <= _LABELLED else 5.0 for panel in panels]
    figure = Figure(figsize=(sum(widths), 4.6), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)
    for axes, panel in zip(grid[0], panels, strict=True):
        _draw(axes, panel)
    if title:
        figure.suptitle(title)
    handles = [
        axes.scatter([], [], c=colour, marker=marker, label=kind, edgecolors="black", linewidths=0.5)
        for kind, (colour, marker) in _STYLE.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    if out is not None:
        figure.savefig(out, dpi=200)
    return figure


@dataclass(frozen=True)
class _Panel:
    title: str
    graph: nx.DiGraph
    saved: int
    d_P: int | None

    @property
    def caption(self) -> str:
        d_p = "no finite tuple" if self.d_P is None else f"$d_P$ = {self.d_P:,}"
        return f"{len(self.graph):,} nodes, {self.saved:,} bytes saved\n{d_p}"


def _panels(q: Posterior, p: Prior, n_mc_iter: Sequence[int]) -> list[_Panel]:
    """One panel per M of the direct estimate, then one of the reparameterized estimate."""
    from mcrepar.kl.estimator import Estimator
    from mcrepar.kl.plan import explain

    for draws in n_mc_iter:
        if not 1 <= draws <= _LEGIBLE:
            raise ParameterError(
                f"a graph of {draws} draws",
                f"a loop is drawn for 1 to {_LEGIBLE:,} draws",
                f"n_mc_iter between 1 and {_LEGIBLE:,}",
            )
    plan, names = explain(q, p), _names(q, p)
    plan.choose(Estimator(method="repar", n_mc_iter=max(n_mc_iter), force=True))  # raises where there is no tuple
    direct, repar = _estimates(q, p, plan)
    return [
        _panel(f"direct, M = {draws:,}", partial(direct, draws), names, plan.d_P_direct(draws)) for draws in n_mc_iter
    ] + [_panel("reparameterized, any M", partial(repar, max(n_mc_iter)), names, plan.d_P)]


def _panel(title: str, fn: Callable[[], Tensor], names: Mapping[str, Tensor], d_P: int | None) -> _Panel:
    return _Panel(title, autograd_graph(fn(), names), saved_bytes(fn), d_P)


_Estimate = Callable[[int], Tensor]


def _estimates(q: Posterior, p: Prior, plan: Plan) -> tuple[_Estimate, _Estimate]:
    """The cross-entropy from M draws: in a loop as the paper prints it, and as the sum of n(theta) t."""
    from mcrepar.kl.contract import Product, contract

    def noise(draws: int) -> Tensor:
        xi = q.noise.draw(draws, q.numel, dtype=q.dtype, device=q.device, generator=None)
        return xi.reshape(draws, *q.shape)  # (draws, *shape)

    def direct(draws: int) -> Tensor:
        loss = torch.zeros((), dtype=q.dtype, device=q.device)
        for _ in range(draws):
            loss = loss + (-p.log_prob(q.weights(noise(1)))).sum() / draws
        return loss

    def repar(draws: int) -> Tensor:
        xi = noise(draws)
        products = [
            Product(-term.coefficient, entry, term.center, entry.tau(xi).mean(0).reshape(-1))
            for term, term_plan in zip(p.density.terms, plan.terms, strict=True)
            for entry in term_plan.entries or ()
        ]
        return contract(q, products, eager=True)

    return direct, repar


def _names(q: Posterior, p: Prior) -> dict[str, Tensor]:
    """The learned parameters by name: the posterior's as they are, the prior's marked as such."""
    learned = {"loc": q.free_loc, "scale": q.free_scale, "log_scale": q.free_log_scale}
    named = {name: value for name, value in learned.items() if value is not None}
    return named | {f"prior {name}": value for name, value in p.tensors.items()}


def _draw(axes: Axes, panel: _Panel) -> None:
    from matplotlib.collections import LineCollection

    graph, places = panel.graph, _places(panel.graph)
    size = min(120.0, 5000 / len(graph))
    width = min(1.0, 25 / len(graph) ** 0.75)
    edges = [(places[a], places[b]) for a, b in graph.edges]
    axes.add_collection(LineCollection(edges, colors="0.55", linewidths=width, zorder=1))
    for kind, (colour, marker) in _STYLE.items():
        points = [places[node] for node in graph if graph.nodes[node]["kind"] == kind]
        x, y = zip(*points, strict=True) if points else ((), ())
        axes.scatter(x, y, s=size, c=colour, marker=marker, edgecolors="black", linewidths=width / 2, zorder=2)
    for node, data in graph.nodes.items():
        if len(graph) <= _LABELLED or data["kind"] == "parameter":
            axes.annotate(data["label"], places[node], (5, 3), textcoords="offset points", fontsize=7)
    axes.set(title=panel.title, xlabel=panel.caption, xticks=[], yticks=[])
    axes.margins(0.15, 0.06)
    axes.spines[:].set_visible(False)


def _places(graph: nx.DiGraph) -> dict[int, tuple[float, float]]:
    """Parameters at the bottom, every other node one layer above its highest input, in order of evaluation.

    The order of evaluation keeps what belongs to one draw side by side. A node that is alone in its layer
    stands above the middle of its inputs, so the running sum of a loop climbs along its draws; the layers of
    such a climb share the height of a few, so that the draws below it stay visible.
    """
    layers: dict[int, list[int]] = {}
    for node, data in graph.nodes.items():
        layers.setdefault(data["depth"], []).append(node)
    alone = sum(len(nodes) == 1 for nodes in layers.values())
    places: dict[int, tuple[float, float]] = {}
    height = 0.0
    for _, nodes in sorted(layers.items()):
        height += 1.0 if len(nodes) > 1 else min(1.0, 8 / alone)
        for rank, node in enumerate(nodes):
            below = [places[child][0] for child in graph.predecessors(node)]
            middle = sum(below) / len(below) if below and len(nodes) == 1 else (rank + 0.5) / len(nodes)
            places[node] = (middle, height)
    return places
