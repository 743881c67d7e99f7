"""The schedules of beta: their values, and every refusal."""

import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from mcrepar.errors import MethodError, ParameterError
from mcrepar.kl_schedules import kl_weight


def test_graves_paper_and_constant_do_not_change():
    for schedule, value in (
        (kl_weight("graves"), 1.0),
        (kl_weight("paper", batch_size=128), 128.0),
        (kl_weight("constant", beta=0.02), 0.02),
    ):
        assert [schedule(step) for step in (0, 1, 10**6)] == [value] * 3


@pytest.mark.parametrize("batches", [1, 2, 7, 100, 10_000])
def test_blundell_has_the_mean_1_and_halves(batches):
    schedule = kl_weight("blundell", batches=batches)
    values = [schedule(step) for step in range(batches)]
    assert math.isclose(math.fsum(values) / batches, 1.0, rel_tol=1e-12)
    assert all(second == first / 2 for first, second in itertools.pairwise(values[:30]))
    assert schedule(batches) == values[0]
    if batches <= 100:
        assert math.isclose(values[-1], batches / (2**batches - 1), rel_tol=1e-12)


def test_linear_and_cyclic():
    assert [kl_weight("linear", steps=4, beta=0.8)(step) for step in range(6)] == [
        0.0,
        0.2,
        0.4,
        0.6000000000000001,
        0.8,
        0.8,
    ]
    cyclic = kl_weight("cyclic", period=8, ratio=0.5, beta=2.0)
    assert [cyclic(step) for step in range(10)] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 0.0, 0.5]
    assert kl_weight("cyclic", period=4, ratio=1)(3) == 0.75


def test_a_schedule_is_a_value():
    schedule = kl_weight("cyclic", period=8)
    assert pickle.loads(pickle.dumps(schedule)) == schedule  # noqa: S301
    assert hash(schedule) == hash(kl_weight("cyclic", period=8))
    assert repr(schedule) == "KLWeight(name='cyclic', options={'period': 8})"


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: kl_weight("grave"), "kl_weight\\('grave'\\): no schedule has this name. Use 'graves'"),
    (lambda: kl_weight("?"), "'graves' or 'blundell' or 'paper' or 'constant' or 'linear' or 'cyclic'"),
    (lambda: kl_weight(3), "no schedule has this name"),
    (lambda: kl_weight("graves", beta=1.0), "it has no such option. Use no options"),
    (lambda: kl_weight("blundell", steps=3), "it has no such option. Use batches="),
    (lambda: kl_weight("blundell"), "it needs batches"),
    (lambda: kl_weight("blundell", batches=0), "batches=0: it is too small"),
    (lambda: kl_weight("linear", steps=2.5), "steps=2.5: it is a float"),
    (lambda: kl_weight("linear", steps=2, beta=-1), "beta=-1"),
    (lambda: kl_weight("cyclic", period=4, ratio=0), "ratio=0: it is no share of a period"),
    (lambda: kl_weight("cyclic", period=4, ratio=1.5), "ratio=1.5"),
    (lambda: kl_weight("graves")(-1), "step=-1: it is too small"),
    (lambda: kl_weight("graves")(0.5), "step=0.5: it is a float"),
]


@pytest.mark.parametrize(("ask", "message"), BAD, ids=[b[1][:30] for b in BAD])
def test_bad_schedules(ask, message):
    with pytest.raises((ParameterError, MethodError), match=message):
        ask()
