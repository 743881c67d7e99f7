import dataclasses

import pytest

from experiments import table1 as experiment
from experiments.experiment import Bench, Part, Results
from mcrepar.divergence.reasons import VERDICTS
from mcrepar.errors import NoFiniteTupleError
from mcrepar.inspect.table1 import table1
from tests.experiments.test_pair_checks import without_log
from tests.experiments.tiny import held, tiny

TINY = experiment.EXPERIMENT.settings["tiny"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("table1", tmp_path_factory.mktemp("results"))


def test_the_verdict(result):
    assert held(result) == [False, False, True, True]
    cells = [cell for row in result["measured"] for cell in row["cells"]]
    assert {cell["verdict"] for cell in cells} == {"T1", "T2", "X", "N", "INF-S", "INF-M"}
    assert all(cell["agrees"] for cell in cells)
    assert all({"rank", "ratio", "outside"} & set(cell) for cell in cells), "a verdict without a number"


def test_the_whole_table_is_covered():
    settings = experiment.EXPERIMENT.settings["cpu"]
    names = [part.given["posterior"] for part in experiment.parts(settings)]
    assert sorted(names) == sorted({cell.posterior.partition("(")[0] for cell in table1()})
    assert set(experiment.COLOURS) == set(VERDICTS)


WRONG = pytest.mark.parametrize(
    ("pair", "claimed"),
    [
        (("normal", "laplace"), "T2"),  # no tuple
        (("exponential", "gamma"), "INF-S"),  # the supports are the same
        (("gamma", "inverse_gamma"), "INF-M"),  # every moment exists
        (("gamma", "gamma"), "N"),  # a kernel of rank 3
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)


def test_a_wrong_verdict_on_a_joint_prior_is_contradicted(monkeypatch, tmp_path):
    """ "No tuple" of a Radial prior whose log density is a square, so that it has one."""
    cell = next(c for c in table1() if (c.posterior, c.prior) == ("normal", "radial"))
    monkeypatch.setattr(experiment, "table1", lambda: [cell])
    part, bench = Part("normal", {"posterior": "normal"}), Bench(TINY, 0, None, tmp_path)
    assert experiment.measure(part, bench)["cells"][0]["agrees"]
    made = experiment.prior
    monkeypatch.setattr(experiment, "prior", lambda *args, **values: without_log(made(*args, **values)))
    (checked,) = experiment.measure(part, bench)["cells"]
    assert (checked["rank"], checked["agrees"]) == (5, False)


def test_the_figure_says_what_it_shows(result):
    rows = [{key: row[key] for key in ("posterior", "cells")} for row in result["measured"]]
    figure = experiment.draw(Results(TINY, rows))
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("prior", "posterior")
    legend = " ".join(text.get_text() for text in figure.legends[0].texts)
    marks = {text.get_text()[-1] for text in axes.texts if text.get_text()[-1] in "v*+"}
    assert marks
    assert all(f"{mark}  " in legend for mark in marks)


@WRONG
def test_a_wrong_verdict_is_contradicted(pair, claimed, monkeypatch, tmp_path):
    cell = next(c for c in table1() if (c.posterior.partition("(")[0], c.prior) == pair)
    assert cell.verdict != claimed
    has_tuple = cell.has_tuple if claimed.startswith("INF") else VERDICTS[claimed].right
    wrong = dataclasses.replace(cell, verdict=claimed, has_tuple=has_tuple)
    monkeypatch.setattr(experiment, "table1", lambda: [wrong])
    bench = Bench(TINY, 0, None, tmp_path)
    part = Part(pair[0], {"posterior": pair[0]})
    if VERDICTS[claimed].right:  # the library itself refuses
        with pytest.raises(NoFiniteTupleError):
            experiment.measure(part, bench)
    else:
        (checked,) = experiment.measure(part, bench)["cells"]
        assert not checked["agrees"]


@pytest.mark.parametrize(
    "pair", [("gamma", "pareto"), ("horseshoe", "laplace"), ("error", "gamma"), ("normal", "exponential")]
)
def test_a_wrong_word_on_the_tuple_of_an_infinite_kl_is_contradicted(pair, monkeypatch, tmp_path):
    cell = next(c for c in table1() if (c.posterior.partition("(")[0], c.prior) == pair)
    part, bench = Part(pair[0], {"posterior": pair[0]}), Bench(TINY, 0, None, tmp_path)
    for said, agrees in ((cell.has_tuple, True), (not cell.has_tuple, False)):
        monkeypatch.setattr(experiment, "table1", lambda said=said: [dataclasses.replace(cell, has_tuple=said)])
        (checked,) = experiment.measure(part, bench)["cells"]
        assert checked["agrees"] == agrees
