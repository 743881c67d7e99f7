import re

import pytest

from experiments.experiment import Results
from experiments.fig6 import EXPERIMENT, draw, fitting, judge, tell
from experiments.training_step import GIB
from mcrepar.models import MODELS
from tests.experiments.tiny import tiny


def row(network: str, share: float = 0.2, faster: float = 6.0, growth: float = 1.0, busy: float = 0.0) -> dict:
    ours = share * 4 * GIB
    return {
        "key": network, "kind": "network", "network": network, "weights": 1000, "draws": 10, "busy": busy,
        "bytes": {"direct": 4 * GIB, "repar": ours, "stats": ours, "exact": ours, "many": growth * ours},
        "seconds": {"direct": faster, "repar": 1.0, "stats": 0.5, "exact": 0.4},
    }  # fmt: skip


def results(*rows: dict, thousand: float = 1.0, scale: str = "paper") -> Results:
    more = {"key": "t", "kind": "thousand", "network": "preact_resnet18", "bytes": {"repar": thousand * GIB}}
    return Results(EXPERIMENT.settings[scale], [*rows, more])


def test_tiny(tmp_path):
    result = tiny("fig6", tmp_path)
    small, large, thousand = result["measured"]
    memory = EXPERIMENT.settings["tiny"].memory
    assert large["draws"] == 0, "not one draw of AlexNet fits"
    assert 0.8 * memory < small["bytes"]["direct"] <= memory
    assert max(small["bytes"][name] for name in ("repar", "stats", "exact", "many")) < 0.6 * small["bytes"]["direct"]
    assert thousand["bytes"]["repar"] == pytest.approx(small["bytes"]["repar"], rel=0.01)
    assert small["busy"] is None or small["busy"] >= 0
    page = (tmp_path / "fig6" / "README.md").read_text()
    assert "Not one direct draw fits for alexnet" in page
    assert "MiB" in page
    (line,) = re.findall(r"^\| small_conv .*$", page, re.MULTILINE)
    assert not re.search(r" 0\.0* ", line), "small numbers are not rounded away"
    assert result["findings"][0]["held"] is None, "there is no DenseNet at this scale"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, [True, True, True, True]),
        ({"share": 0.3}, [False, True, True, True]),
        ({"faster": 2.0}, [True, False, True, True]),
        ({"faster": 2.0, "busy": 0.3}, [True, None, True, True]),
        ({"growth": 1.1}, [True, True, True, False]),
    ],
    ids=str,
)
def test_the_verdicts(changed, told):
    found = results(row("densenet121", **changed), row("preact_resnet18", share=0.25, faster=1.5))
    assert [finding.held for finding in judge(found)] == told


def test_every_densenet_counts():
    assert not judge(results(row("densenet121", share=0.1), row("densenet201", share=0.3)))[0].held


@pytest.mark.parametrize(("faster", "told"), [(6.0, True), (4.3, None)])
def test_less_memory_than_the_papers_cannot_speak_against_its_speed(faster, told):
    found = judge(results(row("densenet121", faster=faster), scale="cpu"))[1]
    assert found.held is told
    assert ("in 4 GiB M is smaller" in found.measured) == (told is None)


def test_the_sentence_on_m_1000_is_judged_on_the_papers_estimate():
    third, ours = judge(results(row("preact_resnet18", share=0.25), thousand=1.1))[2:]
    assert third.held is False
    assert "`repar`" in third.measured
    assert ours.held
    assert ours.ours


def test_where_nothing_fits_nothing_is_told():
    found = results({"key": "a", "kind": "network", "network": "vgg19", "weights": 1, "draws": 0})
    assert [finding.held for finding in judge(found)] == [None] * 4
    assert "Not one direct draw fits for vgg19." in tell(found)
    assert draw(found).axes


def test_other_networks_say_nothing_about_densenet():
    assert judge(results(row("vgg16")))[0].held is None


def test_networks_of_which_nothing_fits_are_named():
    found = results(row("densenet121"), {"key": "v", "kind": "network", "network": "vgg19", "weights": 1, "draws": 0})
    assert [r["network"] for r in fitting(found)] == ["densenet121"]
    assert "Not one direct draw fits for vgg19." in tell(found)


def test_the_networks_exist():
    for settings in EXPERIMENT.settings.values():
        assert set(settings.networks) <= set(MODELS)
