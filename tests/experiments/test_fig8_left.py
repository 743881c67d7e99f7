import pytest
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny

from mcrepar.experiments.experiment import Results, verdict
from mcrepar.experiments.fig8_left import EXPERIMENT, judge


def results(accuracy: dict, wide: dict | None = None) -> Results:
    """Three replications of each M."""
    wide = wide or {}
    rows = [made_up("resnet8", m, k, a + wide.get(m, 0.001) * (k - 1)) for m, a in accuracy.items() for k in range(3)]
    return Results(EXPERIMENT.settings["cpu"], rows)


def test_tiny(tmp_path):
    result = tiny("fig8-left", tmp_path)
    assert len(result["measured"]) == 8
    assert held(result)[1:] == [None, None, None], "two replications judge nothing"
    assert min(row["scores"]["accuracy"] for row in result["measured"]) > 0.25, "of ten classes"


@pytest.mark.parametrize(("many", "told"), [(0.85, True), (0.75, False), (0.8003, None)])
def test_a_gain_with_m(many, told):
    found = judge(results({1: 0.8, 17: 0.8, 100: many, None: many}))
    assert found[0].held
    assert found[1].held is told
    assert found[3].held


def test_a_spread_that_falls_with_m():
    found = judge(results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.8}, {1: 0.1, 17: 0.01, 100: 0.01}))
    assert found[2].held
    assert verdict(found) == "held in part"


def test_exact_that_differs_is_noticed():
    assert judge(results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.9}))[3].held is False
