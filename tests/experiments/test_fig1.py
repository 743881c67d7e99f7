import pytest
from tests.experiments.tiny import tiny

from mcrepar.experiments.experiment import Results
from mcrepar.experiments.fig1 import EXPERIMENT, MANY, judge, ratios
from mcrepar.models import MODELS


def row(network: str, pass_seconds: float = 1.0, draw_seconds: float = 0.01, kind: str = "network") -> dict:
    """A network whose forward and backward take a time, and whose draw of all weights takes another."""
    seconds = {f"accumulate {m}": m * pass_seconds for m in (1, 3)}
    seconds |= {f"repar {m}": pass_seconds + m * draw_seconds for m in (1, 20)}
    seconds |= {"stats 1000": pass_seconds + draw_seconds, f"stats {MANY}": pass_seconds + draw_seconds,
                "exact": pass_seconds}  # fmt: skip
    return {"kind": kind, "network": network, "weights": 10, "seconds": seconds}


def results(*rows: dict, verified: float = 100.0) -> Results:
    check = {**row("resnet20", kind="verify"), "draws": 100}
    check["seconds"]["accumulate 100"] = verified
    return Results(EXPERIMENT.settings["cpu"], [*rows, check])


def test_tiny(tmp_path):
    result = tiny("fig1", tmp_path)
    networks = [row["network"] for row in result["measured"]]
    assert networks == ["small_conv", "fcnet", "small_conv"]
    for measured in result["measured"][:2]:
        assert set(measured["seconds"]) == {
            "accumulate 1", "accumulate 3", "repar 1", "repar 10", "stats 1000", f"stats {MANY}", "exact"
        }  # fmt: skip
    assert "averages the likelihood" in (tmp_path / "fig1" / "README.md").read_text()


def test_ratios_are_of_the_same_m():
    found = ratios(results(), row("a"))
    assert found["repar 100"] == pytest.approx(100 / 2)
    assert found["repar 1000"] == pytest.approx(1000 / 11)
    assert found["stats 1000"] == pytest.approx(1000 / 1.01)
    assert found["exact 1000"] == pytest.approx(1000)
    assert found[f"stats {MANY}"] == pytest.approx(MANY / 1.01)


def test_the_verdicts():
    assert [f.held for f in judge(results(row("preact_resnet18")))] == [True] * 5
    slow = judge(results(row("preact_resnet18", draw_seconds=1.5), verified=200.0))
    assert [f.held for f in slow] == [False, False, False, True, False]


def test_all_networks_of_the_zoo_that_classify():
    assert set(EXPERIMENT.settings["cpu"].networks) == set(MODELS) - {"unet3d"}
