from dataclasses import replace

import pytest
from tests.experiments.replications import made_up
from tests.experiments.tiny import tiny

from mcrepar.experiments.experiment import Results
from mcrepar.experiments.fig7 import EXPERIMENT, VARIANTS, drops, judge, tell
from mcrepar.models import MODELS, model

RIGHT = {"deterministic": 0.87, "radial": 0.86, "normal": 0.86, "radial-whole": 0.86, "normal-whole": 0.1,
         "published": 0.86}  # fmt: skip


def results(changed: dict | None = None, failed: tuple = (), share: float = 0.9) -> Results:
    """ResNet-20 alone, by the accuracy of each variant."""
    settings = EXPERIMENT.settings["cpu"]
    rows = []
    for name, accuracy in {**RIGHT, **(changed or {})}.items():
        row = made_up("run", 100, 0, accuracy, share)
        row["scores"]["mutual_information"] = 1e-5 if name == "published" else 0.1
        rows.append({**row, "network": "resnet20", "variant": name, "failed": "nan" if name in failed else None})
    return Results(replace(settings, networks=settings.networks[:1]), rows)


def holds(found: list, word: str) -> bool | None:
    (finding,) = (f for f in found if word in f.claim)
    return finding.held


def test_tiny(tmp_path):
    result = tiny("fig7", tmp_path)
    rows = {row["variant"]: row for row in result["measured"]}
    assert list(rows) == list(VARIANTS)
    assert all(rows[name]["scores"]["accuracy"] > 0.5 for name in ("deterministic", "radial", "normal", "published"))
    assert rows["deterministic"]["scores"]["mutual_information"] < 1e-6
    judged = [finding["held"] for finding in result["findings"] if "data of confidence 1" in finding["claim"]]
    assert judged == [None], "digits tell nothing about CIFAR-10"


def test_the_paper_would_hold():
    found = judge(results())
    assert all(f.held for f in found), [f.claim for f in found if not f.held]


@pytest.mark.parametrize(
    ("changed", "failed", "share", "word"),
    [
        ({"radial": 0.8}, (), 0.9, "2 points (Radial, tempered)"),
        ({"radial-whole": 0.3}, (), 0.9, "2 points (Radial, whole KL)"),
        ({"radial-whole": 0.3}, (), 0.9, "Without fixes"),
        ({"normal-whole": 0.8}, (), 0.9, "Without fixes"),
        ({"radial": 0.8}, (), 0.9, "of the data of confidence 1"),
        ({"published": 0.5}, (), 0.9, "2 points (published noise, whole KL)"),
    ],
)
def test_what_differs_is_noticed(changed, failed, share, word):
    assert holds(judge(results(changed, failed, share)), word) is False


def test_a_run_that_diverged_is_told():
    found = results(failed=("normal-whole",))
    assert holds(judge(found), "Without fixes") is True
    assert "diverged" in tell(found)
    assert drops(found, "normal-whole") == {}


def test_noise_that_does_not_vanish_is_noticed():
    found = results()
    next(row for row in found.rows if row["variant"] == "published")["scores"]["mutual_information"] = 0.2
    assert holds(judge(found), "nearly none") is False


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_the_networks_exist(scale):
    for net in EXPERIMENT.settings[scale].networks:
        assert net.model in MODELS
        assert set(net.variants) <= set(VARIANTS)
        if net.options:
            model(net.model, size=(32, 32), **net.options)
