"""Extreme parameters: a finite value and gradient, or an error that says why; never a silent NaN or infinity.

Derandomized examples by hypothesis, corners for every pair of the tables, and a million weights in float32.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mcrepar
from mcrepar import POSTERIORS, PRIORS, McreparError, explain, kl_divergence, posterior, prior
from tests.conftest import example_posterior, seeded

PAIRS = [(q, p) for q in POSTERIORS for p in PRIORS if explain(q, p).finite]
DTYPES = [torch.float32, torch.float64]


def extreme(q_name, log_scale, loc, size=1, dtype=torch.float64):
    learned = {"log_scale": log_scale, "loc": loc}
    if "loc" not in POSTERIORS[q_name].learned:
        del learned["loc"]
    leaves = {n: torch.full((size,), x, dtype=dtype, requires_grad=True) for n, x in learned.items()}
    return posterior(q_name, **leaves)


def evaluate(q, p, method):
    """The value, None where it was refused; where it was not, value and gradient are numbers that the dtype holds."""
    draws = None if method in ("auto", "exact", "quad") else 3
    try:
        with warnings.catch_warnings():
            for said in (mcrepar.InfiniteVarianceWarning, mcrepar.QuadratureWarning):
                warnings.simplefilter("ignore", said)
            value = kl_divergence(q, p, method, draws, force=True, generator=seeded(1))
    except McreparError:
        return None
    gradient = torch.autograd.grad(value, q.learned, materialize_grads=True)
    value = value.detach()
    assert bool(value.isfinite()), (q.name, p.name, method)
    if not all(bool(g.isfinite().all()) for g in gradient):
        assert beyond_its_dtype(q, p, method), (q.name, p.name, method, gradient)
    return value


def beyond_its_dtype(q, p, method):
    """Whether the float64 gradient of a float32 posterior is finite and over float32's largest number."""
    if q.learned[0].dtype == torch.float64:
        return False
    learned = [x.detach().double().requires_grad_() for x in q.learned]
    draws = None if method in ("auto", "exact", "quad") else 3
    names = ["log_scale" if name == "scale" else name for name in POSTERIORS[q.name].learned]
    wide = posterior(q.name, **dict(zip(names, learned, strict=True)))
    value = kl_divergence(wide, p, method, draws, force=True, generator=seeded(1))
    largest = max(float(g.abs().max()) for g in torch.autograd.grad(value, learned, materialize_grads=True))
    return torch.finfo(torch.float32).max < largest < math.inf


def test_a_gradient_beyond_float32_is_told_from_a_wrong_one():
    """The mean of lognormal(0, 13) is 3.3e36, and its derivative by log_scale 5.6e38."""
    q = extreme("lognormal", 2.5625, 0.0, 1, torch.float32)
    assert evaluate(q, prior("laplace"), "exact") is not None
    assert beyond_its_dtype(q, prior("laplace"), "exact")
    assert not beyond_its_dtype(extreme("lognormal", 2.0, 0.0, 1, torch.float32), prior("laplace"), "exact")


@given(
    pair=st.sampled_from(PAIRS),
    log_scale=st.floats(-15, 10),
    loc=st.floats(-100, 100),
    size=st.sampled_from([1, 5]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=150)
def test_every_method_is_finite_or_refuses(pair, log_scale, loc, size, dtype):
    q, p = extreme(pair[0], log_scale, loc, size, dtype), prior(pair[1])
    for method in ("auto", *explain(q, p).methods):
        if method != "taylor":
            evaluate(q, p, method)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("q_name", POSTERIORS)
def test_corners(q_name, dtype):
    """By `auto`, all priors; float32 refuses only what float64 refuses too, or what float32 cannot hold."""
    seen = 0
    for p_name in [p for q, p in PAIRS if q == q_name]:
        for log_scale in (-15.0, 10.0):
            for loc in (-100.0, 0.0, 100.0) if "loc" in POSTERIORS[q_name].learned else (0.0,):
                q, p = extreme(q_name, log_scale, loc, 1, dtype), prior(p_name)
                value = evaluate(q, p, "auto")
                seen += value is not None
                if value is None and dtype == torch.float32:
                    wide = evaluate(extreme(q_name, log_scale, loc), p, "auto")
                    beyond = q_name == "lognormal" and abs(loc) == 100 and explain(q, p).method == "stream"  # e^100
                    assert wide is None or abs(float(wide)) > 1e37 or beyond, (p_name, log_scale, loc, wide)
    assert seen


@pytest.mark.parametrize(
    ("q_name", "p_name", "method", "log_scale", "loc"),
    [
        ("lognormal", "gamma", "stream", -5.0, -100.0),
        ("lognormal", "gamma", "quad", -5.0, -100.0),
        ("lognormal", "lognormal", "direct", -5.0, -100.0),
        ("weibull", "inverse_gamma", "quad", -5.0, 0.0),
        ("rayleigh", "wald", "quad", -15.0, 0.0),
    ],
)
def test_tiny_weights_in_float32(q_name, p_name, method, log_scale, loc):
    evaluate(extreme(q_name, log_scale, loc, 1, torch.float32), prior(p_name), method)


@pytest.mark.parametrize(
    ("p_name", "others"), [("horseshoe", ("quad",)), ("logistic", ("quad",)), ("gamma", ("exact", "quad"))]
)
def test_refusals_of_draws_that_vanish(p_name, others):
    """The error names the methods that hold such weights, and no others."""
    q = extreme("lognormal", -5.0, -100.0, 1, torch.float32)
    with pytest.raises(mcrepar.ParameterError, match="holds exp") as caught:
        kl_divergence(q, prior(p_name), "stream", 3)
    assert caught.value.instead == "float64 tensors" + "".join(f" or method={m!r}" for m in others)
    assert all(evaluate(q, prior(p_name), m) is not None for m in others)


def test_refusals_of_what_is_infinite():
    """Where the true value exceeds the dtype the error says so; in float64 the same is a number."""
    tight = extreme("lognormal", math.log(14.0), 0.0, 1, torch.float32)
    assert evaluate(tight, prior("gamma"), "exact") is None
    assert evaluate(extreme("lognormal", math.log(14.0), 0.0), prior("gamma"), "exact") > 1e40
    assert evaluate(extreme("lognormal", 10.0, 0.0), prior("gamma"), "exact") is None  # e^(2.4e8)
    assert evaluate(extreme("expgamma", 1.0, 0.0), prior("gamma"), "exact") is None


@given(log_scale=st.floats(-15, 10), loc=st.floats(-100, 100))
@settings(max_examples=60)
def test_exact_keeps_its_digits(log_scale, loc):
    """Normal x normal and laplace x laplace in float32 against float64: 1e-5 of the largest part."""
    for name in ("normal", "laplace", "logistic"):
        p = prior("normal" if name == "normal" else "laplace")
        values = [float(evaluate(extreme(name, log_scale, loc, 1, d), p, "exact")) for d in DTYPES]
        assert abs(values[0] - values[1]) <= 1e-5 * max(abs(values[1]), abs(log_scale), 1.0)


# ---- a million weights in float32

MILLION = 10**6


@pytest.mark.parametrize("q_name", POSTERIORS)
def test_a_million_weights(q_name):
    """exact and stats in float32 are finite and agree with float64 to 1e-5 and to the noise of the sum."""
    p_name = next(p for q, p in PAIRS if q == q_name and {"exact", "stats"} <= set(explain(q, p).methods))
    narrow = example_posterior(q_name, MILLION, torch.float32, requires_grad=True)
    if explain(narrow, p_name).infinite_variance:
        p_name = "exponential"
    wide = POSTERIORS[q_name]
    learned = {n: x.detach().double() for n, x in zip(wide.learned, narrow.learned, strict=True)}
    p = prior(p_name)
    expected = float(kl_divergence(posterior(q_name, **learned), p, "exact"))
    value = kl_divergence(narrow, p, "exact")
    gradient = torch.autograd.grad(value, narrow.learned)
    assert all(bool(g.isfinite().all()) for g in gradient)
    assert abs(value.item() - expected) <= 1e-5 * abs(expected)
    drawn = kl_divergence(narrow, p, "stats", 10**6, generator=seeded(1))
    gradient = torch.autograd.grad(drawn, narrow.learned)
    assert all(bool(g.isfinite().all()) for g in gradient)
    assert abs(drawn.item() - expected) <= 1e-3 * abs(expected)


@pytest.mark.parametrize(("q_name", "p_name"), [("radial", "normal"), ("radial", "laplace"), ("normal", "radial")])
@pytest.mark.parametrize("method", ["repar", "stream", "regen"])
def test_a_million_weights_drawn(q_name, p_name, method):
    """The joint distributions over a million float32 weights: finite, and near float64 although its noise is another.

    Of a radial posterior the sum has a standard deviation of order 1; of a radial prior of order sqrt(d).
    """
    if method not in explain(q_name, p_name).methods:
        return
    values = []
    for dtype in DTYPES:
        q = example_posterior(q_name, MILLION, dtype, requires_grad=True)
        value = kl_divergence(q, prior(p_name), method, 1, generator=seeded(1))
        gradient = torch.autograd.grad(value, q.learned)
        assert all(bool(g.isfinite().all()) for g in gradient)
        values.append(value.item())
    noise = 10.0 if q_name == "radial" else 5 * math.sqrt(MILLION)
    assert abs(values[0] - values[1]) <= noise + 1e-5 * abs(values[1])
