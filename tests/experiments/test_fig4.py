import pytest
import torch

from experiments.experiment import Results
from experiments.fig4 import EXPERIMENT, judge, line, looped, tupled
from tests.experiments.tiny import held, tiny


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("fig4", tmp_path_factory.mktemp("results"))


def test_the_verdict(result):
    """All but "vectorising does not change the graph", which it does."""
    assert held(result) == [True, True, True, True, False, True, True]


def test_nodes_and_sizes(result):
    for row in result["measured"]:
        assert row["nodes_loop"] == 6 * row["draws"] + 2
        assert (row["nodes_vectorised"], row["nodes_tuple"]) == (6, 10)
        assert row["bytes_loop"] == row["bytes_vectorised"] == 8 * row["draws"]
        assert (row["d_P_direct"], row["d_P"]) == (3 * row["draws"], 3)


def test_numbers_stand_by_their_names(result):
    """The library's count is not the tuple's, and each is printed beside its own name."""
    row = result["measured"][0]
    sizes = {row[f"{kind}_{form}"] for kind in ("nodes", "bytes") for form in ("tuple", "library")}
    assert len(sizes) >= 3
    said = result["findings"][2]["measured"]
    assert f"written out {row['nodes_tuple']} nodes and {row['bytes_tuple']} bytes" in said
    assert f"whole KL {row['nodes_library']} nodes and {row['bytes_library']} bytes" in said


def test_a_formula_is_only_told_of_what_follows_it(result):
    assert line(result["measured"][:3]) == "6 M + 2"
    bent = [{**row, "nodes_loop": row["nodes_loop"] + (row["draws"] == 10)} for row in result["measured"]]
    growing = [{**row, "bytes_library": row["draws"]} for row in bent]
    assert not line(bent[:3])
    findings = judge(Results(EXPERIMENT.settings["tiny"], growing))
    assert [finding.held for finding in findings[1:4]] == [False, False, False]
    assert "that is" not in findings[1].measured


def test_both_forms_are_the_same_number():
    mu, sigma = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.4, 0.3))
    xi = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = looped(mu, sigma, xi), tupled(mu, sigma, xi)
    torch.testing.assert_close(one, other)
    for a, b in zip(torch.autograd.grad(one, [mu, sigma]), torch.autograd.grad(other, [mu, sigma]), strict=True):
        torch.testing.assert_close(a, b)
