import pytest

from experiments.experiment import Results
from experiments.fig1 import EXPERIMENT, draw, judge, lines, ratios, tell
from experiments.training_step import MANY
from mcrepar.models import MODELS
from mcrepar.workbench.app.memory_budget import random_weights
from tests.experiments.tiny import tiny

LINES = {"accumulate": (1, 3), "repar": (1, 20)}


def row(network: str, pass_seconds: float = 1.0, draw_seconds: float = 0.01, busy: float | None = 0.0) -> dict:
    """A network whose forward and backward take a time, and whose draw of all weights takes another."""
    seconds = {f"accumulate {m}": m * pass_seconds for m in (1, 3)}
    seconds |= {f"repar {m}": pass_seconds + m * draw_seconds for m in (1, 20)}
    seconds |= {"stats 1000": pass_seconds + draw_seconds, f"stats {MANY}": pass_seconds + draw_seconds,
                "exact": pass_seconds}  # fmt: skip
    return {"key": network, "kind": "network", "network": network, "weights": 10, "lines": LINES, "seconds": seconds,
            "busy": busy}  # fmt: skip


def check(method: str, draws: int, seconds: float, busy: float) -> dict:
    found = {**row("resnet20"), "key": f"verify-{method}", "kind": "verify", "method": method, "draws": draws}
    return {**found, "busy": busy, "seconds": found["seconds"] | {f"{method} {draws}": seconds}}


def results(*rows: dict, accumulation: float = 100.0, repar: float = 3.0, busy: float = 0.0) -> Results:
    checks = check("accumulate", 100, accumulation, busy), check("repar", 200, repar, busy)
    return Results(EXPERIMENT.settings["cpu"], [*rows, *checks])


def test_tiny(tmp_path):
    result = tiny("fig1", tmp_path)
    small, dense, accumulation, repar = result["measured"]
    assert [found["network"] for found in (small, dense)] == ["small_conv", "fcnet"]
    for measured in (small, dense):
        assert set(measured["seconds"]) == {
            "accumulate 1", "accumulate 3", "repar 1", "repar 20", "stats 1000", f"stats {MANY}", "exact"
        }  # fmt: skip
    assert set(accumulation["seconds"]) == {"accumulate 1", "accumulate 3", "accumulate 10"}
    assert set(repar["seconds"]) == {"repar 1", "repar 20", "repar 60"}
    assert all("busy" in measured for measured in result["measured"])
    page = (tmp_path / "fig1" / "README.md").read_text()
    assert "averages the likelihood" in page
    assert "busy" in page


def test_ratios_are_of_the_same_m():
    found = ratios(row("a"))
    assert found["repar 100"] == pytest.approx(100 / 2)
    assert found["repar 1000"] == pytest.approx(1000 / 11)
    assert found["stats 1000"] == pytest.approx(1000 / 1.01)
    assert found["exact 1000"] == pytest.approx(1000)


def test_the_verdicts():
    assert [f.held for f in judge(results(row("preact_resnet18")))] == [True] * 6
    slow = judge(results(row("preact_resnet18", draw_seconds=1.5)))
    assert [f.held for f in slow] == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"accumulation": 200.0}, [None, None, None, True, False, True]),
        ({"repar": 9.0}, [None, None, True, True, True, False]),
        ({"busy": 0.3}, [None] * 6),
    ],
    ids=str,
)
def test_what_rests_on_a_line_that_fails_is_not_told(changed, told):
    found = judge(results(row("preact_resnet18"), **changed))
    assert [f.held for f in found] == told
    assert all("inconclusive" in f.measured for f in found[:2])


def test_a_busy_part_is_named():
    assert "at most 0.10 cores busy" in tell(results(row("a", busy=0.1)))
    busy = results(row("a", busy=0.26))
    assert "more than 0.25 during a." in tell(busy)
    assert {f.held for f in judge(busy)} == {None}
    assert "not known" in tell(Results(busy.settings, [row("a", busy=None)]))


@pytest.mark.parametrize("scale", ["tiny", "cpu", "paper"])
def test_every_line_is_tested_by_a_third_m(scale):
    settings = EXPERIMENT.settings[scale]
    assert {method for method, _, _ in settings.verified} == {"accumulate", "repar"}
    for method, network, draws in settings.verified:
        assert draws not in lines(settings, random_weights(network))[method]


def test_the_second_m_of_repar_is_as_large_as_cheap():
    settings = EXPERIMENT.settings["cpu"]
    second = {weights: lines(settings, weights)["repar"][1] for weights in (10**5, 10**6, 10**8)}
    assert second == {10**5: 1000, 10**6: 200, 10**8: 20}


def test_marks_that_rest_on_a_line_are_hollow():
    left, right = draw(results(row("a"), row("b"))).axes
    filled = [marks.get_label() for marks in left.lines if marks.get_markerfacecolor() != "none"]
    assert filled == ["gradient accumulation, M = 3", "stats, M = 10^6", "exact"]
    marks = {marks.get_label(): marks.get_markerfacecolor() for marks in right.lines[:-1]}
    assert set(marks.values()) == {"none"}
    assert "exact against M = 1000" in marks
    assert "hollow" in right.get_legend().get_title().get_text()


def test_all_networks_of_the_zoo_that_classify():
    assert set(EXPERIMENT.settings["cpu"].networks) == set(MODELS) - {"unet2d", "unet3d"}
