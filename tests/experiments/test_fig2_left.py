import math

import numpy as np
import pytest
from scipy import stats

from experiments.experiment import Results
from experiments.fig2_left import EXPERIMENT, judge, relative_errors, z_scores
from tests.experiments.tiny import held, tiny


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("fig2-left", tmp_path_factory.mktemp("results"))


def test_the_verdict(result):
    """Errors fall with M; with the variance only where the entropy is exact; and they have their distribution."""
    assert held(result) == [True, False, True, True]
    assert result["verdict"] == "held in part"


def test_deviations_have_the_error_of_their_distribution(result):
    """At M = 1 a squared error has a kurtosis of 15: of 100 its mean is off by 37 %, whatever their own spread."""
    settings, (row, *_) = EXPERIMENT.settings["tiny"], result["measured"]
    assert relative_errors(row, settings) == pytest.approx([14**0.5 / 10, 3.2**0.5 / 10, 2.12**0.5 / 10])
    twice = {**row, "rms": [2**0.5 * expected for expected in row["expected"]]}
    assert z_scores(twice, settings) == pytest.approx([1 / error for error in relative_errors(row, settings)])
    rows = [twice, *result["measured"][1:]]
    assert [finding.held for finding in judge(Results(settings, rows))] == [True, False, True, False]


def test_errors_against_draws_of_the_densities(result):
    """The same error from log q - log p of scipy; the rms of 100 and of 20,000 estimates differ by chance by 8 %."""
    rng = np.random.default_rng(0)
    for row in result["measured"]:
        s, m = math.sqrt(row["variance"]), 10
        w = rng.normal(0, s, (20_000, m))
        log_q = stats.norm(0, s).logpdf(w) if row["entropy"] == "mc" else -stats.norm(0, s).entropy()
        errors = (log_q - stats.norm().logpdf(w)).mean(1) - row["kl"]
        place = result["settings"]["draws"].index(m)
        assert row["expected"][place] == pytest.approx(errors.std(), rel=0.05)
        assert row["rms"][place] == pytest.approx(errors.std(), rel=0.5)
