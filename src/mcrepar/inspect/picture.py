"""The autograd graphs of the direct and of the reparameterized estimate, drawn from the real `grad_fn` nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from mcrepar.distributions.posterior import Posterior, free_tensors
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.divergence.contraction import Product, contract
from mcrepar.divergence.methods import Estimator
from mcrepar.divergence.plan import Plan, explain
from mcrepar.errors import ParameterError
from mcrepar.inspect.graph import leaf_of, post_order, saved_bytes

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Kinds of node, in the colours of Okabe and Ito and each with a marker of its own, so that hue is not needed.
_STYLE = {
    "parameter": ("#56B4E9", "s"),
    "product": ("#E69F00", "o"),
    "sum": ("#009E73", "D"),
    "function": ("#CC79A7", "^"),
}
_OPERATIONS = {
    "product": ("Mul", "Div", "Pow", "Square", "Mv", "Dot"),
    "sum": ("Add", "Sub", "Rsub", "Sum", "Mean", "Neg"),
}
_SIGNS = {"Mul": "×", "Div": "÷", "Add": "+", "Sub": "−", "Rsub": "−", "Neg": "−", "Sum": "Σ", "Pow": "^"}  # noqa: RUF001
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
    for node in post_order(output):
        number = numbers[node] = len(numbers)
        if (leaf := leaf_of(node)) is not None:
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
        parameters: initial values of the learned parameters and values of the fixed ones.

    >>> single_weight("radial", scale=0.2).scale
    tensor(0.2000, requires_grad=True)
    """
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

    Both estimate -E log p(W) up to its constant, as the paper draws it: the direct one loops over the draws.
    Under each graph stand its nodes, the bytes it saves for the backward, and d_P.

    Args:
        q: the posterior, with parameters that require grad (a single weight makes the clearest picture).
        p: the prior.
        n_mc_iter: the numbers M of draws of the direct panels, each at most 1,000.
        out: a file whose suffix (.svg, .png, .pdf) says the format; None only returns the figure.
        title: a heading; None writes none.
    """
    from matplotlib.figure import Figure

    panels = graph_panels(q, p, n_mc_iter)
    widths = [min(5.0, 1.6 + 0.8 * panel.width) for panel in panels]
    figure = Figure(figsize=(sum(widths), 4.8), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)
    for axes, panel in zip(grid[0], panels, strict=True):
        _draw(axes, panel)
    if title:
        figure.suptitle(title)
    present = {data["kind"] for panel in panels for _, data in panel.graph.nodes.items()}
    handles = [
        axes.scatter([], [], s=70, c=colour, marker=marker, label=kind, edgecolors="black", linewidths=0.6)
        for kind, (colour, marker) in _STYLE.items()
        if kind in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    if out is not None:
        figure.savefig(out, dpi=200)
    return figure


@dataclass(frozen=True)
class GraphPanel:
    """The graph of one estimate, the bytes that it keeps for the backward, and its d_P."""

    title: str
    graph: nx.DiGraph
    saved: int
    d_P: int | None

    @property
    def caption(self) -> str:
        d_p = "no finite tuple" if self.d_P is None else f"$d_P$ = {self.d_P:,}"
        return f"{len(self.graph):,} nodes, {self.saved:,} bytes saved\n{d_p}"

    @property
    def width(self) -> int:
        """The number of nodes side by side in the widest layer."""
        depths = [data["depth"] for _, data in self.graph.nodes.items()]
        return max(depths.count(depth) for depth in set(depths))


def graph_panels(q: Posterior, p: Prior, n_mc_iter: Sequence[int]) -> list[GraphPanel]:
    """One panel per M of the direct estimate, then one of the reparameterized estimate."""
    for draws in n_mc_iter:
        if not 1 <= draws <= _LEGIBLE:
            raise ParameterError(
                f"a graph of {draws} draws",
                f"a loop is drawn for 1 to {_LEGIBLE:,} draws",
                f"n_mc_iter between 1 and {_LEGIBLE:,}",
            )
    plan, p = explain(q, p), p.over(q.numel)
    names = free_tensors(q) | {f"prior {name}": value for name, value in p.tensors.items()}
    plan.decide(Estimator(method="repar", n_mc_iter=max(n_mc_iter), force=True))  # raises where there is no tuple
    direct, repar = _estimates(q, p, plan)
    return [
        _panel(f"direct, M = {draws:,}", partial(direct, draws), names, plan.d_P_direct(draws)) for draws in n_mc_iter
    ] + [_panel("reparameterized, any M", partial(repar, max(n_mc_iter)), names, plan.d_P)]


def _panel(title: str, fn: Callable[[], Tensor], names: Mapping[str, Tensor], d_P: int | None) -> GraphPanel:
    return GraphPanel(title, autograd_graph(fn(), names), saved_bytes(fn), d_P)


_Estimate = Callable[[int], Tensor]


def _estimates(q: Posterior, p: Prior, plan: Plan) -> tuple[_Estimate, _Estimate]:
    """The cross-entropy from M draws: in a loop as the paper prints it, and as the sum of n(theta) t."""

    def noise(draws: int) -> Tensor:
        xi = q.noise.draw(draws, q.numel, dtype=q.dtype, device=q.device, generator=None)
        return xi.reshape(draws, *q.shape)  # (draws, *shape)

    def direct(draws: int) -> Tensor:
        loss = torch.zeros((), dtype=q.dtype, device=q.device)
        for _ in range(draws):
            w = q.weights(noise(1)[0])
            for term in p.density.terms:
                g = term(w)
                loss = loss - (g.sum() if g.dim() else g) / draws
        return loss

    def repar(draws: int) -> Tensor:
        xi = noise(draws)
        products = [
            Product(-term.coefficient, entry, term.center, 1.0 if entry.tau.constant else entry.tau(xi).mean(0))
            for term, term_plan in zip(p.density.terms, plan.terms, strict=True)
            for entry in term_plan.entries or ()
        ]
        return contract(q, products, eager=True)

    return direct, repar


def _draw(axes: Axes, panel: GraphPanel) -> None:
    from matplotlib.collections import LineCollection

    graph, places = panel.graph, node_places(panel.graph)
    labelled = len(graph) <= _LABELLED
    size = 170.0 if labelled else min(60.0, 9000 / len(graph))
    width = 1.0 if labelled else min(0.5, 25 / len(graph) ** 0.75)
    edges = [(places[a], places[b]) for a, b in graph.edges]
    axes.add_collection(LineCollection(edges, colors="0.55", linewidths=width, zorder=1))
    for kind, (colour, marker) in _STYLE.items():
        points = [places[node] for node in graph if graph.nodes[node]["kind"] == kind]
        x, y = zip(*points, strict=True) if points else ((), ())
        area = 90.0 if kind == "parameter" else size
        axes.scatter(x, y, s=area, c=colour, marker=marker, edgecolors="black", linewidths=width / 2, zorder=2)
    for node, data in graph.nodes.items():
        if data["kind"] == "parameter":
            _write(axes, data["label"], places[node], (0, -8), va="top", size=9)
        elif labelled and data["label"] in _SIGNS:
            _write(axes, _SIGNS[data["label"]], places[node], (0, 0), va="center_baseline", size=10)
        elif labelled:
            _write(axes, data["label"], places[node], (9, 0), va="center_baseline", size=8, ha="left")
    heights = [height for _, height in places.values()]
    axes.set(title=panel.title, xlabel=panel.caption, xticks=[], yticks=[])
    axes.set(xlim=(0, 1), ylim=(-0.9, max(heights) + 0.5))
    axes.spines[:].set_visible(False)


def _write(
    axes: Axes, text: str, place: tuple[float, float], offset: tuple[int, int], va: str, size: int, ha: str = "center"
) -> None:
    axes.annotate(text, place, offset, textcoords="offset points", fontsize=size, ha=ha, va=va, zorder=3)


def node_places(graph: nx.DiGraph) -> dict[int, tuple[float, float]]:
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
    height = -1.0
    for _, nodes in sorted(layers.items()):
        height += 1.0 if len(nodes) > 1 else min(1.0, 8 / alone)
        for rank, node in enumerate(nodes):
            below = [places[child][0] for child in graph.predecessors(node)]
            middle = sum(below) / len(below) if below and len(nodes) == 1 else (rank + 0.5) / len(nodes)
            places[node] = (middle, height)
    return places
