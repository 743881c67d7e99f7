import pytest

from experiments.experiment import Results, verdict
from experiments.fig8_left import EXPERIMENT, judge, tell
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny


def results(accuracy: dict, wide: dict | None = None) -> Results:
    """Three replications of each M."""
    wide = wide or {}
    rows = [made_up("resnet8", m, k, a + wide.get(m, 0.001) * (k - 1)) for m, a in accuracy.items() for k in range(3)]
    return Results(EXPERIMENT.settings["cpu"], rows)


def test_tiny(tmp_path):
    result = tiny("fig8-left", tmp_path)
    assert len(result["measured"]) == 8
    assert held(result)[1:] == [None] * 3, "two replications judge nothing"
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
    assert verdict(found) == "held (2 of 3 judged)"


def only(found: Results, changed) -> Results:
    """The runs of M = 17, changed."""
    return Results(found.settings, [changed(row) if row["variant"] == "M = 17" else row for row in found.rows])


def until(tau: float, turn: float = 1.0):
    """The sets up to a threshold; the last of them are right more often, or less with a turn of -1."""

    def changed(row: dict) -> dict:
        low = row["scores"]["accuracy"]
        sets = [{**s, "accuracy": low + turn * (s["accuracy"] - low)} if s["tau"] <= tau else
                {**s, "count": 0, "share": 0.0, "accuracy": None} for s in row["sets"]]  # fmt: skip
        return {**row, "sets": sets}

    return changed


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda row: {**row, "failed": "nan"}, None),
        (until(0.5), None),
        (until(0.9), True),
        (until(1.0, -1), False),
        (until(1.0, 0.1), None),
    ],
    ids=["all diverged", "one set", "some sets", "falls", "rises by chance"],
)
def test_a_rise_for_every_m(changed, told):
    found = only(results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.8}), changed)
    assert judge(found)[0].held is told


def test_runs_that_ended_are_counted():
    found = results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.8}, {1: 0.1, 100: 0.02})
    lost = [
        {**row, "failed": "nan" if row["replication"] == 0 and row["variant"] == "M = 1" else None}
        for row in found.rows
    ]
    lost = Results(found.settings, lost)
    assert "(inconclusive with 2 replications)" in judge(lost)[2].measured
    assert "2 of 3 with M = 1" in tell(lost)


def test_exact_that_differs_is_noticed():
    assert judge(results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.9}))[3].held is False


def test_noise_does_not_make_exact_the_same():
    wide = {100: 0.1, None: 0.1}
    assert judge(results({1: 0.8, 17: 0.8, 100: 0.8, None: 0.8}, wide))[3].held is None
