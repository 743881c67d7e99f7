import pytest

from experiments.experiment import Results
from experiments.fig8_right import ARMS, EXPERIMENT, judge
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny


def test_tiny(tmp_path):
    result = tiny("fig8-right", tmp_path)
    assert [row["key"] for row in result["measured"]] == [
        f"{study}-{m}-r{k}" for study in ("brain", "brain-beta1") for m in ("m1", "m100") for k in range(2)
    ]
    assert held(result) == [None] * 4
    assert "beta = 1" in (tmp_path / "fig8-right" / "README.md").read_text()
    assert all(row["simulated"] for row in result["measured"])


@pytest.mark.parametrize(("spread", "told"), [(0.1, True), (0.015, None), (0.009, None), (0.003, False)])
def test_a_spread_that_falls_with_m(spread, told):
    rows = [
        made_up(arm, m, k, 0.7, 0.6 + width * (k - 2))
        for arm in ARMS
        for m, width in ((1, spread), (100, 0.01))
        for k in range(5)
    ]
    similar, smaller, *again = judge(Results(EXPERIMENT.settings["cpu"], rows))
    assert similar.held is (None if spread == 0.1 else True), "noise does not make them similar"
    assert smaller.held is told
    assert [finding.held for finding in again] == [similar.held, smaller.held]


def test_sizes_that_differ_are_noticed():
    sizes = {"brain": (0.3, 0.8), "brain-beta1": (0.5, 0.51)}
    rows = [
        made_up(arm, m, k, 0.7, share + 0.01 * k)
        for arm in ARMS
        for m, share in zip((1, 100), sizes[arm], strict=True)
        for k in range(5)
    ]
    found = judge(Results(EXPERIMENT.settings["cpu"], rows))
    assert (found[0].held, found[2].held) == (False, True), "every arm has its own"


def test_what_is_not_known_is_said():
    rows = [
        {**made_up(arm, m, k, 0.7), "failed": "nan" if k else None} for arm in ARMS for m in (1, 100) for k in range(5)
    ]
    found = judge(Results(EXPERIMENT.settings["cpu"], rows))
    assert [finding.held for finding in found] == [None] * 4
    assert "difference in points not known" in found[0].measured
    assert not any("None" in finding.measured for finding in found)
