import numpy as np
import pytest
import torch

import mcrepar
from experiments.experiment import Results
from experiments.variance import DISTANCE, EXPERIMENT, judge
from mcrepar.workbench.app.estimate_distribution import variances
from tests.experiments.tiny import tiny


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("variance", tmp_path_factory.mktemp("results"))


def test_the_formulas_hold_for_all_methods(result):
    assert result["findings"][-1]["held"]
    assert result["findings"][-1]["ours"]
    found = {(row["posterior"], row["method"], row["entropy"]) for row in result["measured"] if row["kind"] == "method"}
    assert len(found) == 17
    for row in result["measured"]:
        if row.get("method") in ("exact", "quad"):
            assert row["cases"][0]["value"] < 1e-18


def test_the_paper_on_size_and_variance(result):
    """More weights need more draws for one std in nats, as the paper says; by our criteria they do not."""
    judged = [(finding["held"], finding["ours"]) for finding in result["findings"]]
    assert judged[1:5] == [(False, False), (True, False), (True, False), (True, False)]
    assert judged[5:] == [(True, True)] * 3


def test_the_draws_of_one_nat(result):
    """log q sampled: D/2 draws, within 5 standard errors of a variance of 1,000 estimates."""
    (large,) = (row for row in result["measured"] if row["kind"] == "large")
    for case in (case for case in large["cases"] if case["draws"] == 1):
        assert case["mc"] ** 2 == pytest.approx(case["size"] / 2, rel=5 * (2 / 1000) ** 0.5)


def test_a_gradient_that_knows_the_size_is_noticed(result):
    """Were the gradient's variance that of the KL, it would grow with D."""
    rows = [{**row, "cases": [{**case, "loc": case.get("value")} for case in row["cases"]]}
            for row in result["measured"]]  # fmt: skip
    findings = judge(Results(EXPERIMENT.settings["tiny"], rows))
    assert findings[6].held is False


@pytest.mark.parametrize("name", ["normal", "radial"])
def test_formulas_against_brute_force(name):
    """log p of 40,000 sets of draws in numpy; the standard error of a variance here is about 2 %, five of them 10 %."""
    rng, size, draws, s, count = np.random.default_rng(0), 6, 3, 0.4, 40_000
    z = rng.standard_normal((count, draws, size))
    xi = (
        z if name == "normal" else z / np.linalg.norm(z, axis=2, keepdims=True) * rng.standard_normal((count, draws, 1))
    )
    sigma = s if name == "normal" else s * np.sqrt(size)
    w = DISTANCE + sigma * xi
    value, loc, scale = (w**2 / 2).sum(2).mean(1), w.mean(1), (w * xi).mean(1)
    q = mcrepar.posterior(name, loc=torch.zeros(size), scale=torch.ones(size))
    expected = variances(q, DISTANCE, s, draws, "exact")
    for level, sample in (("value", value), ("loc", loc[:, 0]), ("scale", scale[:, 0])):
        assert expected[level] == pytest.approx(sample.var(), rel=0.1)


def test_every_case_changes_one_thing():
    for settings in EXPERIMENT.settings.values():
        assert settings.base[0] in settings.draws
        assert settings.base[1] in settings.stds
        assert settings.base[2] in settings.sizes
