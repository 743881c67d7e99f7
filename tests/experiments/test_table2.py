import pytest

from experiments.experiment import Results
from experiments.table2 import DATA, EXPERIMENT, draw, judge, tell
from mcrepar.workbench.cli import main
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny


def results(gain: float, wide: float = 0.01) -> Results:
    rows = [
        made_up(study, m, k, 0.6 + wide * k + (gain if m == 100 else 0.0))
        for study in DATA
        for m in (1, 100)
        for k in range(3)
    ]
    return Results(EXPERIMENT.settings["cpu"], rows)


def test_tiny(tmp_path):
    result = tiny("table2", tmp_path)
    assert held(result) == [None] * 4
    page = (tmp_path / "table2" / "README.md").read_text()
    assert "| M = 100 | 64.39 | 66.23 | 66.05 | 67.77 | 66.82 | 87.50 |" in page
    assert "simulated brain volumes, runs that ended: 2 of 2 with M = 1" in page
    assert "simulated brain volumes, beta = 1, runs that ended: 2 of 2 with M = 1" in page


@pytest.mark.parametrize(
    ("gain", "wide", "told"),
    [
        (0.28, 0.01, [True, True]),
        (0.5, 0.01, [True, True]),
        (0.15, 0.01, [True, False]),
        (0.05, 0.01, [True, False]),
        (-0.1, 0.01, [False, False]),
        (-0.01, 0.01, [None, False]),
        (0.2, 0.1, [None, None]),
    ],
)
def test_a_gain_with_m(gain, wide, told):
    assert [finding.held for finding in judge(results(gain, wide))] == told * 3


def test_all_arms_are_shown():
    assert len(draw(results(0.1)).axes) == 3
    assert "AdrenalMNIST3D" in tell(results(0.1))


def test_missing_data_are_named_before_any_computing(tmp_path, capsys):
    assert main(["reproduce", "table2", "--out", str(tmp_path)]) == 2
    assert "adrenalmnist3d.npz" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
