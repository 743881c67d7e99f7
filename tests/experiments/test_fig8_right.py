import pytest

from experiments.experiment import Results
from experiments.fig8_right import EXPERIMENT, judge
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny


def test_tiny(tmp_path):
    result = tiny("fig8-right", tmp_path)
    assert [row["key"] for row in result["measured"]] == [
        "brain-m1-r0",
        "brain-m1-r1",
        "brain-m100-r0",
        "brain-m100-r1",
    ]
    assert held(result) == [None, None]
    assert all(row["simulated"] for row in result["measured"])


@pytest.mark.parametrize(("spread", "told"), [(0.1, True), (0.015, None), (0.009, None), (0.003, False)])
def test_a_spread_that_falls_with_m(spread, told):
    rows = [
        made_up("brain", m, k, 0.7, 0.6 + width * (k - 2)) for m, width in ((1, spread), (100, 0.01)) for k in range(5)
    ]
    similar, smaller = judge(Results(EXPERIMENT.settings["cpu"], rows))
    assert similar.held is (None if spread == 0.1 else True), "noise does not make them similar"
    assert smaller.held is told


def test_sizes_that_differ_are_noticed():
    rows = [made_up("brain", m, k, 0.7, share + 0.01 * k) for m, share in ((1, 0.3), (100, 0.8)) for k in range(5)]
    assert judge(Results(EXPERIMENT.settings["cpu"], rows))[0].held is False


def test_what_is_not_known_is_said():
    rows = [{**made_up("brain", m, k, 0.7), "failed": "nan" if k else None} for m in (1, 100) for k in range(5)]
    found = judge(Results(EXPERIMENT.settings["cpu"], rows))
    assert [finding.held for finding in found] == [None, None]
    assert "difference in points not known" in found[0].measured
    assert not any("None" in finding.measured for finding in found)
