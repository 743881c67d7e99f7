"""The statistics: values, derivatives, and what they say of themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mcrepar.distributions.statistics import General, Monomial
from tests.conftest import seeded

POSITIVE = [Monomial(p, log) for p in (-1.5, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0) for log in (0, 1, 2)]
SIGNED = [Monomial(float(p)) for p in range(5)] + [Monomial(p, absolute=True) for p in (1.0, 1.5, 2.0, 3.0)]


@pytest.mark.parametrize("statistic", POSITIVE, ids=str)
def test_powers_and_logs_of_positive_numbers(statistic):
    x = 0.05 + 3 * torch.rand(40, generator=seeded(0), dtype=torch.float64)
    expected = x.numpy() ** statistic.power * np.log(x.numpy()) ** statistic.log
    np.testing.assert_allclose(statistic(x), expected, rtol=1e-14)


@pytest.mark.parametrize("statistic", SIGNED, ids=str)
def test_powers_of_numbers_of_both_signs(statistic):
    x = torch.randn(40, generator=seeded(1), dtype=torch.float64)
    base = np.abs(x.numpy()) if statistic.absolute else x.numpy()
    np.testing.assert_allclose(statistic(x), base**statistic.power, rtol=1e-13)


@pytest.mark.parametrize("statistic", [s for s in (*POSITIVE, *SIGNED) if not s.constant], ids=str)
def test_gradients(statistic):
    x = (0.2 + torch.rand(5, generator=seeded(2), dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(statistic, x)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_powers_at_zero_and_below_have_finite_gradients(power):
    x = torch.tensor([0.0, -2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Monomial(power)(x).sum(), x)
    torch.testing.assert_close(gradient, power * torch.tensor([0.0, -2.0]).double() ** (power - 1))


def test_what_a_monomial_says_of_itself():
    assert [Monomial(p).even for p in (0.0, 1.0, 2.0, 3.0, 4.0, 2.5, -2.0)] == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    assert [Monomial(p).polynomial for p in (0.0, 1.0, 2.0, 2.5, -1.0)] == [True, True, True, False, False]
    assert not Monomial(1.0, absolute=True).polynomial
    assert Monomial(2.0, absolute=True).polynomial, "|x|^2 = x^2"
    assert not Monomial(2.0, 1).polynomial
    assert not Monomial(2.0, 1).even
    assert Monomial().constant
    assert not Monomial(0.0, 1).constant
    assert Monomial(2.5, 2).growth == 2.5


def test_constant_keeps_the_shape():
    x = torch.randn(2, 3)
    assert torch.equal(Monomial()(x), torch.ones(2, 3))


def test_statistics_read_as_formulas():
    texts = {
        Monomial(): "1",
        Monomial(1.0): "w",
        Monomial(-1.0): "w^-1",
        Monomial(1.5, absolute=True): "|w|^1.5",
        Monomial(0.0, 1): "log w",
        Monomial(0.0, 2): "(log w)^2",
        Monomial(2.0, 1): "w^2 log w",
    }
    assert {m: m.text() for m in texts} == texts
    assert Monomial(2.0).text("xi") == "xi^2"
    assert General(torch.sin, "sin(u)", 0.0).text("w") == "sin(w)"


@pytest.mark.parametrize("name", ["Gumbel", "Uniform-Gauss"])
def test_the_name_in_a_label_is_not_the_variable(name):
    assert General(torch.sin, f"log p of {name}", 0.0).text("w") == f"log p of {name}"


def test_general_statistics_are_told_apart_by_their_labels():
    """Plans are cached on them, so the function itself must not count."""
    one, other = (General(lambda x, k=k: k * x, "f(u)", 1.0, length=k) for k in (1.0, 2.0))
    assert one == other
    assert hash(one) == hash(other)
    assert one != General(torch.sin, "g(u)", 1.0)
    assert math.isclose(float(other(torch.tensor(3.0))), 6.0)
