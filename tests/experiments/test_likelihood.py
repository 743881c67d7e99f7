import dataclasses

import pytest

from experiments.experiment import Results
from experiments.likelihood import EXPERIMENT, judge, split, z_scores
from tests.experiments.tiny import held, tiny


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("likelihood", tmp_path_factory.mktemp("results"))


def test_the_verdict(result):
    """The formulas for the variances hold, the two printed ones do not. 40 draws determine no power of the batch."""
    assert held(result) == [None, None, True, True, False, False, True]
    assert [finding["ours"] for finding in result["findings"]] == [False, True, False, False, False, False, True]
    assert result["verdict"].startswith("held in part")


@pytest.mark.parametrize(("exponent", "alone", "shared"), [(-1.0, True, None), (-0.86, False, True)])
def test_powers_are_judged_by_their_errors(result, exponent, alone, shared):
    settings = dataclasses.replace(EXPERIMENT.settings["tiny"], estimates=10_000)
    rows = [{**row, "variance": [b**exponent for b in settings.batches]} if row["kind"] == "batch" else row
            for row in result["measured"]]  # fmt: skip
    first, second, *_ = judge(Results(settings, rows))
    assert (first.held, second.held) == (alone, shared)


def test_the_noise_of_the_gradients(result):
    """That of the KL in loc is the posterior's variance (docs/math.md, D4): the spread of a tensor U(-1/n, 1/n), n its
    inputs, is 1/(3n), and start_std a half of it; 40 draws of 121 weights tell it within a third."""
    (row,) = (row for row in result["measured"] if row["kind"] == "gradient")
    inputs, width = 8, EXPERIMENT.settings["tiny"].width
    weights = {inputs: (inputs + 1) * width, width: (width + 1) * (width + 1)}
    expected = sum(count / (12 * n) for n, count in weights.items()) / sum(weights.values())
    assert row["kl_loc"] == pytest.approx(expected, rel=0.33)
    noisy = [{**r, "kl_loc": 1e6 * r["nll_loc"]} if r is row else r for r in result["measured"]]
    assert judge(Results(EXPERIMENT.settings["tiny"], noisy))[-1].held is False


def test_the_legend_names_all_lines(result):
    right = EXPERIMENT.draw(Results(EXPERIMENT.settings["tiny"], result["measured"])).axes[1]
    named = [text.get_text() for text in right.get_legend().texts]
    assert {"limit + (V(1) - limit) / M", "limit, M -> infinity"} < set(named)


def test_batches(result):
    """With a draw per example the variance of a batch is that of an example over B; 40 draws: within a factor 2."""
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
    fine, off = z_scores(row, [1, 2, 10])
    assert abs(fine) < 1
    assert off > 5
