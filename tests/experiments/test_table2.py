import pytest
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny

from mcrepar.cli import main
from mcrepar.experiments.experiment import Results
from mcrepar.experiments.table2 import EXPERIMENT, draw, judge, tell


def results(gain: float) -> Results:
    rows = [
        made_up(study, m, k, 0.6 + 0.01 * k + (gain if m == 100 else 0.0))
        for study in ("brain", "adrenal")
        for m in (1, 100)
        for k in range(3)
    ]
    return Results(EXPERIMENT.settings["cpu"], rows)


def test_tiny(tmp_path):
    result = tiny("table2", tmp_path)
    assert held(result) == [None, None]
    page = (tmp_path / "table2" / "README.md").read_text()
    assert "| M = 100 | 64.39 | 66.23 | 66.05 | 67.77 | 66.82 | 87.50 |" in page
    assert "simulated" in page


@pytest.mark.parametrize(("gain", "told"), [(0.3, [True, True]), (-0.1, [False, False]), (0.05, [True, False])])
def test_a_gain_with_m(gain, told):
    assert [finding.held for finding in judge(results(gain))] == told * 2


def test_both_data_sets_are_shown():
    assert len(draw(results(0.1)).axes) == 2
    assert "AdrenalMNIST3D" in tell(results(0.1))


def test_missing_data_are_named_before_any_computing(tmp_path, capsys):
    assert main(["reproduce", "table2", "--out", str(tmp_path)]) == 2
    assert "adrenalmnist3d.npz" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
