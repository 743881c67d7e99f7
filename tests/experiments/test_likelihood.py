import pytest
from tests.experiments.tiny import tiny

from mcrepar.experiments.likelihood import deviations, split


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("likelihood", tmp_path_factory.mktemp("results"))


def test_the_verdict(result):
    """The laws hold; the two printed formulas do not. (40 draws do not tell what a shared draw does to the batch.)"""
    assert [finding["held"] for finding in result["findings"][2:]] == [True, True, False, False]
    assert result["verdict"] == "held in part"


def test_batches(result):
    """With a draw per datum the variance of a batch is that of a datum over B; 40 draws tell it within a factor 2."""
    rows = {row["forward"]: row for row in result["measured"] if row["kind"] == "batch"}
    batches = result["settings"]["batches"]
    for forward in ("per_example", "local", "flipout"):
        assert rows[forward]["variance"][-1] * batches[-1] == pytest.approx(rows[forward]["own"], rel=0.6)


def test_the_printed_formulas(result):
    (row,) = (row for row in result["measured"] if row["kind"] == "printed")
    assert row["gauss_right"] < 1e-12
    assert row["bernoulli_right"] == pytest.approx(0.5**4 / 192, rel=0.1)
    assert row["gauss_printed"] > 0.5
    assert row["bernoulli_printed"] == pytest.approx(0.5**2 / 8, rel=0.1)


def test_the_split_of_a_variance():
    row = {"variance": [1.0, 0.55, 0.9], "error": [0.01, 0.01, 0.01], "limit": 0.1, "limit_error": 0.01}
    assert split(row, [1, 2, 10]) == pytest.approx([1.0, 0.55, 0.19])
    fine, off = deviations(row, [1, 2, 10])
    assert abs(fine) < 1
    assert off > 5
