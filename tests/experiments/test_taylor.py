import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from experiments.experiment import Results
from experiments.taylor import (
    EXPERIMENT,
    best,
    diverges,
    judge,
    log_series,
    normal_moments,
    rises,
    softplus_series,
)
from tests.experiments.tiny import held, tiny


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("taylor", tmp_path_factory.mktemp("results"))


def test_the_verdict(result):
    """Wrong coefficients, right size, a fair trade; ours: an undefined logarithm, divergence and bias as predicted."""
    assert held(result) == [False, True, True, True, True, True]
    assert [finding["ours"] for finding in result["findings"]] == [False] * 3 + [True] * 3


def test_only_a_rise_that_is_seen_is_judged(result):
    """At 0.05 the error is one of rounding, at any degree."""
    small, large = rows(result, "log")[0.05]["right"], rows(result, "log")[0.3]["right"]
    assert not rises(small)
    assert rises(large)
    assert diverges(large)
    assert not diverges([*large[:-2], large[-4], large[-4]])  # which comes down again
    divergence = result["findings"][4]["measured"]
    assert "no rise up to degree 24 for log at 0.05" in divergence
    assert "log at 0.05: best" not in divergence
    same = [{**row, "right": small} if "right" in row else row for row in result["measured"]]
    assert judge(Results(EXPERIMENT.settings["tiny"], same))[4].held is None


def test_what_does_not_win_is_named(result):
    def trade(scale: float) -> str:
        measured = [{**row, "direct": scale} if "direct" in row else row for row in result["measured"]]
        return judge(Results(EXPERIMENT.settings["tiny"], measured))[2].measured

    assert trade(1e9).endswith("in 4 of 4 cases")
    assert trade(0.01).endswith("in 2 of 4 cases, but not for softplus at 1, softplus at 2")


@pytest.mark.parametrize(
    ("series", "fn", "point"),
    [(log_series, torch.log, 1.0), (softplus_series, lambda w: torch.nn.functional.softplus(-w), 0.0)],
    ids=["log", "softplus"],
)
def test_coefficients_are_the_derivatives(series, fn, point):
    x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    value, expected = fn(x), []
    for k in range(7):
        expected.append(value.item() / math.factorial(k))
        (value,) = torch.autograd.grad(value, x, create_graph=True)
    assert series(6) == pytest.approx(expected, abs=1e-12)


def test_moments_of_the_noise():
    assert normal_moments(0.7, 8) == pytest.approx([stats.norm(0, 0.7).moment(k) if k else 1.0 for k in range(9)])


def rows(result, kind):
    return {row["scale"]: row for row in result["measured"] if row["kind"] == kind}


def test_expectations_against_scipy(result):
    for scale, row in rows(result, "softplus").items():
        true, _ = integrate.quad(lambda z, s=scale: np.logaddexp(0, -s * z) * stats.norm.pdf(z), -12, 12)
        assert row["true"] == pytest.approx(true, rel=1e-9)
    for scale, row in rows(result, "log").items():
        edge = -1 / scale
        whole, _ = integrate.quad(lambda z, s=scale: np.log1p(s * z) * stats.norm.pdf(z), max(edge + 1e-12, -12), 12)
        assert row["true"] == pytest.approx(whole / stats.norm.sf(edge), rel=1e-4)
        assert row["undefined"] == pytest.approx(stats.norm.cdf(edge))


def test_where_it_diverges(result):
    """At a standard deviation of 1 the best degree is 10 with 9e-4 nats; at 2 no degree is better than 0.12."""
    soft = rows(result, "softplus")
    assert best(soft[1.0]["right"]) in (10, 11)
    assert min(soft[1.0]["right"]) == pytest.approx(9e-4, rel=0.05)
    assert min(soft[2.0]["right"]) == pytest.approx(0.12, rel=0.05)
    assert soft[2.0]["right"][-1] > 1000


def test_the_printed_coefficients_are_those_of_another_function(result):
    """sum (w - 1)^k / k! is exp(w - 1), whose mean is near 1 where that of log w is near 0."""
    row = rows(result, "log")[0.05]
    assert row["printed"][10] == pytest.approx(math.exp(0.05**2 / 2) - row["true"], rel=1e-6)


def test_the_bias_of_the_library(result):
    for row in (r for r in result["measured"] if r["kind"] == "library"):
        assert abs(row["z"]) < 5
        assert row["predicted"] != 0
