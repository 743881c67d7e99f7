"""E g(W) of statistics and functions (the paper's Equation 3), and the tuple as functions G, n and t."""

from __future__ import annotations

import math
import re
from itertools import product

import pytest
import torch

import mcrepar
from mcrepar import (
    POSTERIORS,
    PRIORS,
    McreparError,
    ParameterError,
    SupportMismatchError,
    expectation,
    explain,
    posterior,
)
from mcrepar.distributions.statistics import General, Monomial
from mcrepar.divergence.methods import METHODS
from tests.conftest import example_posterior, example_prior, seeded

ONE, TWO = Monomial(1.0), Monomial(2.0)
TUPLES = [(q, p) for q, p in product(POSTERIORS, PRIORS) if explain(q, p).right]


@pytest.mark.parametrize(("q_name", "p_name"), TUPLES)
def test_the_tuple_is_the_direct_sum_on_the_same_noise(q_name, p_name):
    """G(n(theta) * t(xi)) = mean_i sum_d [log p(w_i) - constant], in value and in gradient."""
    q, p = example_posterior(q_name, 4, requires_grad=True), example_prior(p_name)
    parts = explain(q, p).tuple
    xi = q.noise.draw(5, 4, dtype=torch.float64, device="cpu", generator=seeded(1))
    assert not parts.t(xi).requires_grad
    ours = parts.G(parts.n(q.learned) * parts.t(xi))
    w = q.weights(xi)
    direct = sum((term(w).sum() / 5 for term in p.density.terms), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(ours, direct, rtol=1e-9, atol=1e-9)
    for a, b in zip(*(torch.autograd.grad(x, q.learned) for x in (ours, direct)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_a_plan_by_names_has_the_tuple_of_the_defaults():
    parts = explain("normal", "normal").tuple
    loc, scale, xi = torch.tensor([0.3]), torch.tensor([0.5]), torch.tensor([[1.0], [-2.0]])
    w = loc + scale * xi
    torch.testing.assert_close(parts.G(parts.n((loc, scale)) * parts.t(xi)), (-(w**2) / 2).mean())
    assert len(parts.n((loc, scale))) == len(explain("normal", "normal").statistics)
    assert explain("normal", "cauchy").tuple is None


@pytest.mark.parametrize("name", [n for n, row in POSTERIORS.items() if row.form.outer.name == "identity"])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_moments_of_weights(name, power):
    q = example_posterior(name, 3, requires_grad=True)
    found = expectation(q, Monomial(power))
    expected = q.mean if power == 1 else q.variance + q.mean**2
    torch.testing.assert_close(found, expected.sum(), rtol=1e-9, atol=1e-9)
    if not found.requires_grad:  # a mean of 0, whatever the scale
        return
    slopes = torch.autograd.grad(found, q.learned, allow_unused=True, materialize_grads=True)
    expected = torch.autograd.grad(expected.sum(), q.learned, allow_unused=True, materialize_grads=True)
    for a, b in zip(slopes, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_methods_on_the_same_noise_agree():
    q = example_posterior("normal", 5)
    values = [expectation(q, TWO, 50, m, seeded(3)) for m, row in METHODS.items() if row.replays and m != "taylor"]
    assert len(values) == 4
    for value in values:
        torch.testing.assert_close(value, values[0], rtol=1e-12, atol=1e-12)


def test_a_function_of_single_weights():
    """E cos W = cos(loc) exp(-scale^2 / 2) under a Normal posterior, by quadrature and by draws."""
    q = example_posterior("normal", 4, requires_grad=True)
    exact = (torch.cos(q.loc) * torch.exp(-(q.scale**2) / 2)).sum()
    quad = expectation(q, torch.cos, method="quad")
    torch.testing.assert_close(quad, exact, rtol=1e-9, atol=1e-9)
    for a, b in zip(*(torch.autograd.grad(x, q.learned, retain_graph=True) for x in (quad, exact)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    drawn = expectation(q, torch.cos, 20_000, generator=seeded(0))  # std of one weight at most 1: 4 / sqrt(20,000)
    assert abs(drawn - exact) < 5 * 4 / math.sqrt(20_000)
    plan = explain(q, torch.cos)
    assert (plan.pair, plan.verdict, plan.method) == ("E cos(w) under normal", "N", "stream")


def test_a_function_of_the_whole_tensor():
    """One number per draw: E |W|^2 = sum of E w^2."""
    q = example_posterior("radial", (2, 3))
    value = expectation(q, lambda w: w.square().sum((1, 2)), 20_000, generator=seeded(0))
    assert abs(value / expectation(q, TWO) - 1) < 0.1
    assert "quad" not in explain(q, lambda w: w.square().sum((1, 2))).methods


def test_a_statistic_with_a_label():
    q = example_posterior("normal", 2)
    g = General(lambda u: torch.log1p(u * u), "log(1 + u^2)", 0.0)
    assert explain(q, g).method == "quad"
    torch.testing.assert_close(expectation(q, g), expectation(q, lambda w: torch.log1p(w * w), method="quad"))


def test_what_has_no_expectation():
    q = example_posterior("normal", 2)
    with pytest.raises(SupportMismatchError, match="log w"):
        expectation(q, Monomial(0.0, 1))
    with pytest.raises(McreparError, match="infinite"):
        expectation(example_posterior("horseshoe", 2, slab=None), ONE)
    with pytest.raises(ParameterError, match="no function"):
        expectation(q, "w^2")
    with pytest.raises(ParameterError, match="one number per weight"):
        expectation(q, lambda w: w.sum())
    with pytest.raises(ParameterError, match="no noise"):
        expectation("normal", TWO)


def test_its_errors_speak_of_an_expectation():
    """Every message names E g, none a KL, a prior or an option that `expectation` has not."""
    q, heavy = example_posterior("normal", 2), example_posterior("student_t", 2, df=3.0)
    large = posterior("lognormal", loc=torch.zeros(2), scale=torch.full((2,), 14.0))
    cases = [
        (lambda: expectation(q, lambda w: w.sqrt(), 50, "stream"), "not a number"),
        (lambda: expectation(large, ONE), r"exceeds the range of torch\.float32"),
        (lambda: expectation(heavy, TWO, 5, "repar"), "infinite variance"),
        (lambda: expectation(example_posterior("gamma", 2), Monomial(1000.0)), "too extreme"),
    ]
    for call, why in cases:
        with pytest.raises(McreparError, match=why) as caught:
            call()
        assert caught.value.asked.startswith("E ")
        assert not re.search(r"KL|prior|force", str(caught.value))
    assert "force" not in str(explain(heavy, lambda w: w.square().sum((1,))))
    with pytest.raises(ParameterError, match="generator=42: it is of type int"):
        expectation(q, TWO, 5, "repar", generator=42)


def test_it_is_public():
    assert mcrepar.expectation is expectation
    assert "expectation" in mcrepar.__all__
