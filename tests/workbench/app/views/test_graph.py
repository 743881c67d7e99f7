"""The graph view counts what autograd counts."""

import pytest

import mcrepar
from mcrepar.errors import NoFiniteTupleError
from mcrepar.inspect.picture import single_weight
from mcrepar.workbench.app.views.graph import GRAPH


def answer(**texts: str):
    values, errors = GRAPH.read(GRAPH.texts(texts))
    assert errors == {}
    return GRAPH.compute(values)


@pytest.mark.parametrize("draws", [1, 3, 100])
def test_direct_grows_and_reparameterized_does_not(draws):
    found = answer(iterations=str(draws))
    direct, repar = found.tables[0].rows
    header = list(found.tables[0].header)
    assert direct[header.index("nodes")] == 2 + 6 * draws  # two parameters, six operations per draw
    assert direct[header.index("bytes saved")] == 8 * draws  # the noise and the weight of a draw, 4 bytes each
    plan = mcrepar.explain(single_weight("radial"), "normal")
    assert direct[header.index("d_P")] == plan.d_P_direct(draws)
    assert repar == answer(iterations="1").tables[0].rows[1]
    assert repar[header.index("d_P")] == plan.d_P


def test_the_picture_has_every_node_and_edge():
    found = answer(iterations="5")
    for figure, row in zip(found.figures, found.tables[0].rows, strict=True):
        edges, *kinds = figure.traces
        assert sum(len(kind["x"]) for kind in kinds) == row[1]
        assert len(edges["x"]) == 3 * row[2]  # two ends and a gap


def test_a_pair_without_a_tuple_is_refused_with_its_reason():
    with pytest.raises(NoFiniteTupleError, match="Theorem F"):
        answer(prior="laplace")


def test_too_many_draws_are_refused_by_the_field():
    _, errors = GRAPH.read(GRAPH.texts({"iterations": "101"}))
    assert "at most 100" in errors["iterations"]
