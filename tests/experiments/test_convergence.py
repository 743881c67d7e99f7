import pytest

from experiments.convergence import EXPERIMENT, curve, draw, judge, tell
from experiments.experiment import Results
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny


def results(accuracies: dict, wide: float = 0.001) -> Results:
    rows = [
        made_up(study, m, k, accuracy + (wide if m == 1 else 0.001) * (k - 1))
        for study in ("resnet8", "resnet8-whole")
        for m, accuracy in accuracies.items()
        for k in range(3)
    ]
    return Results(EXPERIMENT.settings["cpu"], rows)


def test_tiny(tmp_path):
    result = tiny("convergence", tmp_path)
    assert held(result) == [None] * 6
    for row in result["measured"]:
        assert row["curves"]["nll"][1] < row["curves"]["nll"][0]


@pytest.mark.parametrize(("many", "told"), [(0.9, True), (0.7, False), (0.7999, None)])
def test_a_gain_with_m(many, told):
    found = judge(results({1: 0.8, 17: 0.8, 100: many, None: many}))
    assert [finding.held for finding in found[:2]] == [told, told]
    assert [finding.held for finding in found[:3]] == [finding.held for finding in found[3:]]


def test_a_spread_that_falls_with_m():
    assert judge(results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.8}, wide=0.02))[2].held


def test_curves_are_over_replications():
    rows = [made_up("a", 1, k, accuracy) for k, accuracy in enumerate((0.4, 0.6))]
    first, last = curve(rows, "nll")
    assert (first.mean, last.mean) == (2.0, pytest.approx(1.5))
    assert curve([], "nll") == []


def test_runs_that_diverged_are_drawn_by_none():
    found = results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.8})
    rows = [{**row, "failed": "nan" if row["variant"] == "M = 1" else None} for row in found.rows]
    lost = Results(found.settings, rows)
    assert {finding.held for finding in judge(lost)} == {None}
    assert not any("None" in finding.measured for finding in judge(lost))
    assert "difference in points not known" in judge(lost)[0].measured
    assert len(draw(lost).axes) == 4
    assert "M = 100" in tell(lost)
