"""The computation graph of the direct and of the reparameterized estimate, from the real autograd graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mcrepar.distributions.posteriors import POSTERIORS
from mcrepar.distributions.priors import PRIORS, prior
from mcrepar.inspect.picture import GraphPanel, graph_panels, node_places, single_weight
from mcrepar.workbench.app.answer import Answer, Figure, Table
from mcrepar.workbench.app.controls import Number
from mcrepar.workbench.app.view import View
from mcrepar.workbench.app.views.distributions import pair_controls

_MOST = 100  # draws: more would only make the picture blacker
_KINDS = {
    "parameter": ("@series1", "square", "learned parameter"),
    "product": ("@series2", "circle", "product"),
    "sum": ("@series3", "diamond", "sum"),
    "function": ("@series4", "triangle-up", "function"),
}


def _compute(values: Mapping[str, Any]) -> Answer:
    q, p = single_weight(values["posterior"]), prior(values["prior"])
    draws = values["iterations"]
    direct, repar = graph_panels(q, p, [draws])
    return Answer(
        f"For one weight and M = {draws:,} the direct estimate builds {len(direct.graph):,} nodes and saves "
        f"{direct.saved:,} bytes; the reparameterized one {len(repar.graph):,} nodes and {repar.saved:,} bytes, for "
        "any M.",
        notes=[
            f"Both graphs are read from autograd after the estimate of E log p(W), {q.name} posterior and {p.name} "
            "prior, was built. A node is an operation that the backward will visit; bytes are what it saves for that. "
            "Multiply the bytes by the number of weights of a network."
        ],
        figures=[_figure("direct", direct), _figure("reparameterized", repar)],
        tables=[_table(direct, repar)],
        code=f"mcrepar graph {q.name} {p.name} --n-mc-iter {draws} --out graph.svg",
    )


def _figure(name: str, panel: GraphPanel) -> Figure:
    places = node_places(panel.graph)
    few = len(panel.graph) <= 60
    edges: dict[str, list[float | None]] = {"x": [], "y": []}
    for a, b in panel.graph.edges:
        edges["x"] += [places[a][0], places[b][0], None]
        edges["y"] += [places[a][1], places[b][1], None]
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False,
         "line": {"color": "@edge", "width": 1.4 if few else 0.5}, **edges}
    ]  # fmt: skip
    for kind, (colour, symbol, label) in _KINDS.items():
        nodes = [node for node, data in panel.graph.nodes.items() if data["kind"] == kind]
        if nodes:
            texts = [panel.graph.nodes[node]["label"] for node in nodes]
            written = few or kind == "parameter"
            traces.append(
                {"type": "scatter", "mode": "markers+text" if written else "markers", "name": label, "text": texts,
                 "textposition": "bottom center" if kind == "parameter" else "middle right", "hoverinfo": "text",
                 "textfont": {"shadow": "auto"},  # an edge behind a label must not strike it out
                 "x": [places[node][0] for node in nodes], "y": [places[node][1] for node in nodes],
                 "marker": {"color": colour, "symbol": symbol, "size": 13 if few else 6,
                            "line": {"color": "@edge", "width": 0.6 if few else 0}}}
            )  # fmt: skip
    hidden = {"visible": False}
    alt = f"{panel.title}: {len(panel.graph):,} nodes and {panel.graph.number_of_edges():,} edges, {_counts(panel)}."
    top = max(height for _, height in places.values())
    layout = {
        "height": 460,
        "xaxis": {**hidden, "range": [-0.08, 1.08]},
        "yaxis": {**hidden, "range": [-1.0, top + 0.6]},
    }
    return Figure(name, panel.title[:1].upper() + panel.title[1:], alt, traces, layout=layout)


def _kinds(panel: GraphPanel) -> Counter[str]:
    return Counter(data["kind"] for _, data in panel.graph.nodes.items())


def _counts(panel: GraphPanel) -> str:
    return ", ".join(f"{count:,} of kind {kind}" for kind, count in _kinds(panel).items())


def _table(direct: GraphPanel, repar: GraphPanel) -> Table:
    header = ("estimate", "nodes", "edges", "bytes saved", "d_P", *(label for _, _, label in _KINDS.values()))
    rows = [
        (panel.title, len(panel.graph), panel.graph.number_of_edges(), panel.saved, panel.d_P,
         *(_kinds(panel)[kind] for kind in _KINDS))
        for panel in (direct, repar)
    ]  # fmt: skip
    return Table("graph", "What autograd holds for one weight", header, rows)


GRAPH = View(
    "graph",
    "Graph",
    "The computation graph, direct and reparameterized",
    (
        "Autograd remembers every operation until the backward. The direct estimate repeats its operations for each of "
        "the M draws, so its graph grows with M. Reparameterized, the draws are averaged first, where nothing is "
        "remembered, and the graph stays as it is for M = 1.",
    ),
    (*pair_controls(), Number("iterations", "Monte Carlo iterations M", "3", least=1, most=_MOST, whole=True)),
    _compute,
    group="The paper",
    stored=lambda: {
        "posterior": [*dict.fromkeys(["radial", *POSTERIORS])],
        "prior": tuple(PRIORS),
        "iterations": ("3", "1", "10", "30"),
    },
)
