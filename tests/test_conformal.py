"""Conformal sets: their guarantee by simulation, and every score against a loop.

Over R splits with n calibration and m test examples the coverage has mean k / (n + 1), k = ceil((n + 1) level), and the
variance of a mean of R beta-binomial shares; |z| < 5, a false alarm having probability 6e-7.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import mcrepar
from mcrepar.conformal import SCORES, calibrate
from mcrepar.errors import MethodError
from mcrepar.likelihoods import Categorical, Normal
from mcrepar.prediction import Classes, Prediction
from tests.conftest import seeded

SPLITS, CALIBRATION, TEST = 200, 60, 100


def classes(probs: torch.Tensor) -> Prediction:
    votes = torch.nn.functional.one_hot(probs.argmax(1), probs.shape[1])
    found = Classes(probs, votes, torch.special.entr(probs).sum(1))
    return Prediction(1, probs, probs * (1 - probs), torch.zeros_like(probs), Categorical(), probs[None], None, found)


def regression(mean: torch.Tensor, std: torch.Tensor) -> Prediction:
    zero = torch.zeros_like(mean)
    return Prediction(1, mean, std.square(), zero, Normal("heteroscedastic"), mean[None], std.square()[None], None)


def wrong_classes(n: int, rng: torch.Generator) -> tuple[Prediction, torch.Tensor]:
    """Six classes, and a network that is overconfident and often wrong."""
    logits = 1.5 * torch.randn(n, 6, generator=rng, dtype=torch.float64)
    y = torch.multinomial((0.5 * logits).softmax(1), 1, generator=rng)[:, 0]
    return classes((1.3 * logits).softmax(1)), y


def wrong_regression(n: int, rng: torch.Generator) -> tuple[Prediction, torch.Tensor]:
    """A network with too small a noise, which it misjudges."""
    x = torch.rand(n, 1, generator=rng, dtype=torch.float64)
    y = x.sin() + (0.2 + x) * torch.randn(n, 1, generator=rng, dtype=torch.float64)
    return regression(0.8 * x, 0.3 + 0 * x), y


CASES = [("aps", wrong_classes), ("raps", wrong_classes), ("split", wrong_classes)]
CASES += [("cqr", wrong_regression), ("split", wrong_regression)]


@pytest.mark.parametrize("level", [0.8, 0.9])
@pytest.mark.parametrize(("method", "simulate"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_coverage_is_what_is_promised(method, simulate, level):
    rng = seeded(7)
    shares = []
    for _ in range(SPLITS):
        rule = simulate_rule(simulate, rng, level, method)
        p, y = simulate(TEST, rng)
        shares.append(float(rule.covered(p, y).double().mean()))
    k = math.ceil((CALIBRATION + 1) * level)
    a, b = k, CALIBRATION + 1 - k  # given the calibration, the coverage is Beta(a, b)
    mean, between = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    variance = between + (mean * (1 - mean) - between) / TEST
    z = (np.mean(shares) - mean) / math.sqrt(variance / SPLITS)
    assert abs(z) < 5
    assert level <= mean <= level + 1 / (CALIBRATION + 1)


def simulate_rule(simulate, rng, level, method):
    p, y = simulate(CALIBRATION, rng)
    return calibrate(p, y, level, method)


def test_the_network_alone_covers_less():
    """So that the tests above can fail: the nominal 90 % interval of this network holds about half."""
    p, y = wrong_regression(2000, seeded(1))
    lower, upper = p.interval(0.9)
    assert ((lower <= y) & (y <= upper)).double().mean() < 0.7


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_aps_and_raps_by_a_loop(penalty):
    p, _ = wrong_classes(20, seeded(2))
    scores = SCORES["raps"].classes(p.probs, torch.ones(len(p.probs), 1), penalty=penalty, free=1)
    for row, found in zip(p.probs.numpy(), scores.numpy(), strict=True):
        for c in range(6):
            above = [d for d in range(6) if row[d] >= row[c]]
            assert found[c] == pytest.approx(row[above].sum() + penalty * max(0, len(above) - 1))


def test_raps_makes_smaller_sets_than_aps_where_the_tail_is_noise():
    p, y = wrong_classes(2000, seeded(3))
    size = {m: calibrate(p, y, 0.9, m)(p).sum(1).double().max() for m in ("aps", "raps")}
    assert size["raps"] <= size["aps"]


def test_confident_examples_of_two_classes_have_small_adaptive_sets():
    """Every least probable class has the mass 1 with its own: without random shares rounding would decide."""
    probs = torch.rand(2000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4 / 2
    p = classes(torch.cat([1 - probs, probs], 1))
    y = torch.bernoulli(probs[:, 0], generator=torch.Generator().manual_seed(1)).long()
    sets = calibrate(p, y, 0.95, "aps")(p)
    confident, unsure = (probs[:, 0] < 0.001), (probs[:, 0] > 0.4)
    assert sets[confident].sum(1).double().mean() < 1.1
    assert sets[unsure].sum(1).double().mean() > 1.7


def test_a_rule_is_for_predictions_of_its_own_kind():
    numbers, (p, y) = wrong_regression(60, seeded(7)), wrong_classes(60, seeded(8))
    with pytest.raises(MethodError, match="calibrated on a prediction of classes"):
        calibrate(p, y)(numbers[0])
    with pytest.raises(MethodError, match="calibrated on a prediction of numbers"):
        calibrate(*numbers)(p)


def test_a_set_is_never_empty_and_grows_with_the_level():
    p, y = wrong_classes(300, seeded(4))
    sizes = [calibrate(p, y, level)(p).sum(1) for level in (0.05, 0.5, 0.9, 0.99)]
    assert sizes[0].min() == 1
    assert all(bool((a <= b).all()) for a, b in itertools.pairwise(sizes))
    assert bool(calibrate(p, y, 0.5)(p).gather(1, p.probs.argmax(1)[:, None]).all())


def test_too_few_examples_give_everything():
    p, y = wrong_classes(5, seeded(5))
    assert bool(calibrate(p, y, 0.9)(p).all())
    lower, upper = calibrate(*wrong_regression(5, seeded(5)), 0.9)(wrong_regression(3, seeded(6))[0])
    assert bool(lower.isinf().all() and upper.isinf().all())


def test_outputs_of_a_regression_have_thresholds_of_their_own():
    rng = seeded(6)
    y = torch.randn(500, 2, generator=rng) * torch.tensor([1.0, 10.0])
    rule = calibrate(regression(torch.zeros(500, 2), torch.ones(500, 2)), y, 0.9, "split")
    assert rule.threshold.shape == (2,)
    assert rule.threshold[1] > 5 * rule.threshold[0]


def test_on_a_network_end_to_end():
    torch.manual_seed(0)
    bnn = mcrepar.bayesian(torch.nn.Linear(2, 3))
    p = mcrepar.predict(bnn, torch.randn(40, 2), draws=5, likelihood="categorical")
    rule = p.conformal(torch.randint(3, (40,)), level=0.8, method="raps", penalty=0.2)
    assert rule(p).shape == (40, 3)
    binary = mcrepar.predict(mcrepar.bayesian(torch.nn.Linear(2, 1)), torch.randn(40, 2), 5, likelihood="bernoulli")
    assert binary.conformal(torch.randint(2, (40, 1)).float())(binary).shape == (40, 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, y: p.conformal(y, level=90), "between 0 and 1"),
        (lambda p, y: p.conformal(y, level="90 %"), "between 0 and 1"),
        (lambda p, y: p.conformal(y, level=1.0), "between 0 and 1"),
        (lambda p, y: p.conformal(y, method="cqr"), "no method for classes"),
        (lambda p, y: p.conformal(y, method="aspe"), "no method has this name. Use 'aps'"),
        (lambda p, y: p.conformal(y, penalty=0.1), "no such option"),
        (lambda p, y: p.conformal(y[:3]), r"shape \(3,\) for 20 examples"),
        (lambda p, y: p.conformal(y + 9), "classes from 0 to 5"),
    ],
)
def test_wrong_requests_are_refused(call, words):
    p, y = wrong_classes(20, seeded(8))
    with pytest.raises(mcrepar.McreparError, match=words):
        call(p, y)


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_the_set_of_an_example_does_not_depend_on_its_row(method):
    """Otherwise a service that predicts one example at a time would use one random share for all of them."""
    rule = simulate_rule(wrong_classes, seeded(4), 0.6, method)
    p, _ = wrong_classes(300, seeded(5))
    alone = torch.cat([rule(classes(row[None])) for row in p.probs])
    assert torch.equal(rule(p), alone)
    assert torch.equal(rule(classes(p.probs.flip(0))).flip(0), alone)
