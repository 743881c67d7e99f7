import networkx as nx
import pytest
import torch

from mcrepar import explain, prior
from mcrepar.errors import NoFiniteTupleError, ParameterError
from mcrepar.inspect.graph import count_nodes
from mcrepar.inspect.picture import autograd_graph, draw_graphs, single_weight

DRAWS = (1, 3, 10, 100)


def test_graph_has_the_nodes_and_names_of_autograd():
    mu, sigma = torch.tensor(0.4, requires_grad=True), torch.tensor(0.6, requires_grad=True)
    output = torch.zeros(())
    for _ in range(3):
        output = output + (mu * 1 + sigma * torch.randn(())) ** 2 / 3
    graph = autograd_graph(output, {"mu": mu, "sigma": sigma})
    assert len(graph) == count_nodes(output)
    assert nx.is_directed_acyclic_graph(graph)
    parameters = [data["label"] for _, data in graph.nodes.items() if data["kind"] == "parameter"]
    assert sorted(parameters) == ["mu", "sigma"]
    kinds = [data["kind"] for _, data in graph.nodes.items()]
    assert (kinds.count("product"), kinds.count("sum"), kinds.count("function")) == (12, 6, 0)
    assert [node for node in graph if graph.out_degree(node) == 0] == [len(graph) - 1]  # the output comes last
    assert all(graph.nodes[a]["depth"] < graph.nodes[b]["depth"] for a, b in graph.edges)


def test_single_weight_takes_start_values():
    q = single_weight("Normal", loc=0.25)
    assert q.shape == ()
    assert q.loc.item() == 0.25
    assert q.loc.requires_grad
    assert q.scale.requires_grad


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_drawing_writes_the_format_of_the_suffix(tmp_path, suffix):
    out = tmp_path / f"graph.{suffix}"
    draw_graphs(single_weight("radial"), prior("normal"), (1, 3), out)
    heads = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert out.read_bytes().startswith(heads[suffix])


def test_drawing_writes_what_was_measured():
    q, p = single_weight("radial"), prior("normal")
    figure = draw_graphs(q, p, DRAWS)
    titles = [axes.get_title() for axes in figure.axes]
    captions = [axes.get_xlabel() for axes in figure.axes]
    assert titles == [f"direct, M = {m}" for m in DRAWS] + ["reparameterized, any M"]
    nodes = [int(caption.split()[0].replace(",", "")) for caption in captions]
    saved = [int(caption.split()[2].replace(",", "")) for caption in captions]
    assert nodes[1] - nodes[0] == 2 * (nodes[2] - nodes[1]) / 7  # linear in M
    assert saved[3] > saved[0]
    assert nodes[-1] < nodes[2]
    d_P = explain(q, p).d_P
    assert [caption.split()[-1] for caption in captions] == [f"{m * d_P}" for m in DRAWS] + [f"{d_P}"]


def test_many_nodes_are_drawn_without_labels():
    small, large, _ = draw_graphs(single_weight("normal"), prior("normal"), (1, 100)).axes
    assert len(small.texts) > 2
    assert len(large.texts) == 2  # the two parameters


@pytest.mark.parametrize("draws", [0, -1, 1001])
def test_drawing_refuses_illegible_numbers_of_draws(draws):
    with pytest.raises(ParameterError, match="between 1 and 1,000"):
        draw_graphs(single_weight("normal"), prior("normal"), (1, draws))


def test_drawing_refuses_a_pair_without_finite_tuple():
    with pytest.raises(NoFiniteTupleError):
        draw_graphs(single_weight("normal"), prior("logistic"), (1,))


def test_the_reparameterized_graph_has_no_needless_nodes():
    figure = draw_graphs(single_weight("radial"), prior("normal"), DRAWS)
    nodes = [int(axes.get_xlabel().split()[0].replace(",", "")) for axes in figure.axes]
    assert nodes == [6 * m + 2 for m in DRAWS] + [11]  # the paper's loop; ten nodes and a sum over weights
