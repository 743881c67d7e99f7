import pytest
from tests.experiments.tiny import tiny

from mcrepar.experiments.experiment import Results
from mcrepar.experiments.fig6 import EXPERIMENT, fitting, judge, tell
from mcrepar.experiments.fitting import GIB
from mcrepar.models import MODELS


def row(network: str, share: float = 0.2, faster: float = 6.0, growth: float = 1.0, draws: int = 10) -> dict:
    ours = share * 4 * GIB
    return {
        "kind": "network", "network": network, "weights": 1000, "draws": draws,
        "bytes": {"direct": 4 * GIB, "repar": ours, "stats": ours, "exact": ours, "many": growth * ours},
        "seconds": {"direct": faster, "repar": 1.0, "stats": 0.5, "exact": 0.4},
    }  # fmt: skip


def results(*rows: dict) -> Results:
    return Results(EXPERIMENT.settings["cpu"], list(rows))


def test_tiny(tmp_path):
    result = tiny("fig6", tmp_path)
    small, large = result["measured"]
    memory = EXPERIMENT.settings["tiny"].memory
    assert large["draws"] == 0, "not one draw of AlexNet fits"
    assert 0.8 * memory < small["bytes"]["direct"] <= memory
    assert max(small["bytes"][name] for name in ("repar", "stats", "exact", "many")) < 0.6 * small["bytes"]["direct"]
    assert "Not one direct draw fits for alexnet" in (tmp_path / "fig6" / "README.md").read_text()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, [True, True, True]),
        ({"share": 0.3}, [False, True, True]),
        ({"faster": 2.0}, [True, False, True]),
        ({"growth": 1.1}, [True, True, False]),
    ],
)
def test_the_verdicts(changed, told):
    found = results(row("densenet121", **changed), row("vgg16", share=0.8, faster=1.5))
    assert [finding.held for finding in judge(found)] == told


def test_networks_of_which_nothing_fits_are_named():
    found = results(row("densenet121"), {"kind": "network", "network": "vgg19", "weights": 1, "draws": 0})
    assert [r["network"] for r in fitting(found)] == ["densenet121"]
    assert "Not one direct draw fits for vgg19." in tell(found)


def test_the_networks_exist():
    for settings in EXPERIMENT.settings.values():
        assert set(settings.networks) <= set(MODELS)
