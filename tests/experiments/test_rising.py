import math

import numpy as np
import pytest

from experiments.rising import SURELY, rises, step_error
from experiments.trained import TAUS

SHELLS = (1000, 1500, 1500, 1500, 1500, 1500, 800, 400, 300)  # images between two thresholds; the last are above all


def row(hits) -> dict:
    """The nested sets of a run, from the right answers in every shell."""
    counts = np.cumsum(SHELLS[::-1])[::-1]
    right = np.cumsum(np.asarray(hits)[::-1])[::-1]
    sets = [{"tau": t, "count": int(n), "accuracy": r / n} for t, n, r in zip(TAUS, counts, right, strict=True)]
    return {"sets": sets}


def drawn(rates, seed: int) -> dict:
    return row(np.random.default_rng(seed).binomial(SHELLS, rates))


def test_the_error_is_that_of_the_sampled_images():
    rng = np.random.default_rng(0)
    inner, shell = 300, 500
    hits = rng.binomial((inner, shell), (0.8, 0.7), (4000, 2))
    steps = hits[:, 0] / inner - hits.sum(1) / (inner + shell)
    outer = {"count": inner + shell, "accuracy": (0.8 * inner + 0.7 * shell) / (inner + shell)}
    error = step_error(outer, {"count": inner, "accuracy": 0.8})
    assert error == pytest.approx(steps.std(), rel=0.05)  # four errors of a deviation over 4000


def test_a_few_images_that_are_all_right_are_no_fall():
    outer, inner = {"count": 1000, "accuracy": 990 / 1000}, {"count": 999, "accuracy": 989 / 999}
    assert 0 < outer["accuracy"] - inner["accuracy"] < step_error(outer, inner)


def test_chance_is_not_called_a_fall():
    """True accuracies that hardly rise: eight steps of SURELY errors are a false alarm in 1 % of runs at most."""
    slow = np.linspace(0.80, 0.83, len(SHELLS))
    told = [rises([drawn(slow, seed)]) for seed in range(300)]
    limit = 300 * 0.01 + 4 * math.sqrt(300 * 0.01)
    assert told.count(False) <= limit
    assert None in told, "a rise as small as chance is inconclusive"
    assert SURELY == 3


def test_a_rise_and_a_fall_are_told():
    up = np.linspace(0.6, 0.98, len(SHELLS))
    assert all(rises([drawn(up, seed)]) is True for seed in range(20))
    assert all(rises([drawn(up[::-1], seed)]) is False for seed in range(20))
    dent = up.copy()
    dent[-2:] = 0.5
    assert all(rises([drawn(dent, seed)]) is False for seed in range(20)), "only the last sets fall"


def test_replications_share_their_images():
    slow = drawn(np.linspace(0.80, 0.83, len(SHELLS)), 1)
    assert rises([slow] * 100) is rises([slow]), "the same run a hundred times tells no more"


def test_empty_sets_are_left_out():
    full = drawn(np.linspace(0.6, 0.98, len(SHELLS)), 0)
    cut = {"sets": [s if k < 5 else {**s, "count": 0, "accuracy": None} for k, s in enumerate(full["sets"])]}
    assert rises([full, cut]) is True
    alone = {"sets": [s if k < 1 else {**s, "count": 0, "accuracy": None} for k, s in enumerate(full["sets"])]}
    assert rises([full, alone]) is None
    assert rises([]) is None
