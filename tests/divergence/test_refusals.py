"""What is refused, why, and that it is refused before any tensor work (math.md F9 and H).

"Before any tensor work" means that no operation of torch sees a tensor of the weights' size.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcrepar import (
    POSTERIORS,
    PRIORS,
    InfiniteKLError,
    InfiniteVarianceError,
    InfiniteVarianceWarning,
    McreparError,
    MethodError,
    NoFiniteTupleError,
    ParameterError,
    SupportMismatchError,
    bayesian,
    explain,
    kl_divergence,
    posterior,
    prior,
)
from mcrepar.divergence import kl as divergence
from mcrepar.divergence.methods import METHODS, wide_dtype
from tests.conftest import example_posterior, example_prior, seeded

INF, NAN = math.inf, math.nan
SIZE = 5000


class Idle(TorchDispatchMode):
    """Forbids operations on, or results of, the weights' size."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            assert not isinstance(leaf, torch.Tensor) or leaf.numel() < SIZE, f"{func} worked on the weights"
        return out


def large(q_name, **fixed):
    """A posterior of SIZE weights."""
    learned = dict.fromkeys(POSTERIORS[q_name].learned, torch.full((SIZE,), 0.5, dtype=torch.float64))
    return posterior(q_name, **learned, **fixed)


def refused(error, q, p, method="auto", draws=None, **options):
    """The error, after its three parts, its kind and that no random number was drawn."""
    state = torch.random.get_rng_state()
    with pytest.raises(error) as caught, Idle():
        kl_divergence(q, p, method, draws, **options)
    assert type(caught.value) is error
    assert torch.equal(torch.random.get_rng_state(), state)
    found = caught.value
    assert all((found.asked, found.why, found.instead))
    assert str(found) == f"{found.asked}: {found.why}. Use {found.instead}."
    return found


def pairs(condition):
    """Pairs of the two tables, by name and with defaults, whose plan satisfies `condition`."""
    return [(q, p) for q in POSTERIORS for p in PRIORS if condition(explain(q, p))]


def over(found):
    assert found
    return pytest.mark.parametrize(("q_name", "p_name"), found, ids=[f"{q}-{p}" for q, p in found])


def test_the_probe_sees_tensor_work():
    for method in ("exact", "stream", "stats"):
        with pytest.raises(AssertionError, match="worked on the weights"), Idle():
            kl_divergence(large("normal"), prior("normal"), method)


# ---- the pair


@over(pairs(lambda plan: plan.verdict == "INF-S"))
def test_support_mismatch(q_name, p_name):
    """Every INF-S pair names both supports, whatever the method."""
    q, p = large(q_name), example_prior(p_name)
    for method in ("auto", "exact", "stream"):
        found = refused(SupportMismatchError, q, p, method, force=True)
        assert found.asked == f"KL({q_name} || {p_name})"
        assert str(POSTERIORS[q_name].support) in found.why
        assert ("simplex" if PRIORS[p_name].simplex else str(p.support)) in found.why


@over(pairs(lambda plan: plan.verdict == "INF-M"))
def test_infinite_kl_by_the_table(q_name, p_name):
    found = refused(InfiniteKLError, large(q_name), prior(p_name), force=True)
    assert "E |xi|^" in found.why
    assert "infinite" in found.why


@pytest.mark.parametrize(
    ("q_name", "fixed", "p_name", "condition"),
    [
        ("gamma", {"concentration": 0.8}, "inverse_gaussian", "concentration > 1"),
        ("gamma", {"concentration": 1.0}, "inverse_gamma", "concentration > 1"),
        ("erlang", {"concentration": 1}, "wald", "concentration > 1"),
        ("weibull", {"concentration": 0.9}, "inverse_gamma", "concentration > 1"),
        ("inverse_gamma", {"concentration": 1.0}, "exponential", "concentration > 1"),
        ("inverse_gamma", {"concentration": 2.0}, "normal", "concentration > 2"),
        ("inverse_gamma", {"concentration": 1.9}, "rayleigh", "concentration > 2"),
        ("inverse_gamma", {"concentration": 1.5}, "error", "concentration > 1.5"),
        ("inverse_gamma", {"concentration": 1.5}, "weibull", "concentration > 1.5"),
        ("horseshoe", {"slab": None}, "normal", "finite slab"),
        ("horseshoe", {"slab": None}, "laplace", "finite slab"),
        ("horseshoe", {"slab": None}, "logistic", "finite slab"),
        ("horseshoe", {"slab": None}, "radial", "finite slab"),
        ("exponential", {}, "inverse_gamma", "which no exponential has"),
    ],
)
def test_infinite_kl_states_its_condition(q_name, fixed, p_name, condition):
    found = refused(InfiniteKLError, large(q_name, **fixed), prior(p_name))
    assert condition in found.why


@pytest.mark.parametrize(
    ("q_name", "fixed", "p_name"),
    [
        ("gamma", {"concentration": 1.01}, "inverse_gaussian"),
        ("inverse_gamma", {"concentration": 2.01}, "normal"),
        ("horseshoe", {"slab": 100.0}, "normal"),
        ("horseshoe", {"slab": None}, "cauchy"),
        ("horseshoe", {"slab": None}, "student_t"),
        ("horseshoe", {"slab": None}, "horseshoe"),
    ],
)
def test_finite_just_beyond_the_condition(q_name, fixed, p_name):
    """The refusals above are not too wide."""
    assert math.isfinite(kl_divergence(example_posterior(q_name, **fixed), prior(p_name)))


@over(pairs(lambda plan: bool(plan.finite and plan.infinite_variance)))
def test_infinite_variance(q_name, p_name):
    """Monte Carlo methods raise, run with a warning under force, and auto takes exact or quad, with M too."""
    p, q = prior(p_name), example_posterior(q_name, 3, requires_grad=True)
    usable = explain(q, p).methods
    safe = [m for m in ("exact", "quad") if m in usable]
    for method in [m for m in usable if METHODS[m].samples and m != "taylor"]:
        found = refused(InfiniteVarianceError, large(q_name), p, method)
        assert "force=True" in found.instead
        assert all(f"'{m}'" in found.instead for m in safe)
        ran = "stats|repar" if method == "stats" else method  # stats of 5 draws, too few for a distribution, is repar
        with pytest.warns(InfiniteVarianceWarning, match=ran):
            value = kl_divergence(q, p, method, 5, force=True, generator=seeded(1))
        assert bool(value.isfinite())
    if not safe:
        refused(InfiniteVarianceError, q, p)
        return
    expected = kl_divergence(q, p, safe[0])
    assert kl_divergence(q, p) == kl_divergence(q, p, n_mc_iter=50) == expected


@pytest.mark.parametrize(
    ("q_name", "fixed", "p_name", "infinite"),
    [
        ("gamma", {"concentration": 2.0}, "inverse_gamma", True),
        ("gamma", {"concentration": 2.01}, "inverse_gamma", False),
        ("erlang", {"concentration": 2}, "wald", True),
        ("weibull", {"concentration": 2.0}, "inverse_gaussian", True),
        ("weibull", {"concentration": 2.01}, "inverse_gaussian", False),
        ("inverse_gamma", {"concentration": 4.0}, "normal", True),
        ("inverse_gamma", {"concentration": 4.01}, "normal", False),
        ("inverse_gamma", {"concentration": 2.0}, "gamma", True),
        ("inverse_gamma", {"concentration": 3.0}, "weibull", True),
    ],
)
def test_where_the_variance_ends(q_name, fixed, p_name, infinite):
    """math.md C.1 (v): computed from the moments, at the boundary too."""
    assert bool(explain(posterior(q_name, **fixed), p_name).infinite_variance) is infinite


@over(pairs(lambda plan: plan.verdict == "N"))
def test_no_finite_tuple(q_name, p_name):
    """repar and stats say Theorem F and name a method that works."""
    for method in ("repar", "stats"):
        found = refused(NoFiniteTupleError, large(q_name), prior(p_name), method, 10)
        assert "Theorem F" in found.why
        assert any(f"'{m}'" in found.instead for m in explain(q_name, p_name).methods)


@over(pairs(lambda plan: plan.finite and len(plan.methods) < len(METHODS)))
def test_methods_that_do_not_apply(q_name, p_name):
    """Each refusal of the plan is what the call raises, and what it recommends applies."""
    plan = explain(q_name, p_name)
    for method in METHODS:
        if method not in plan.methods:
            found = refused(type(plan.refusals[method]), large(q_name), prior(p_name), method)
            named = [m for m in METHODS if f"'{m}'" in found.instead]
            assert named
            assert all(m in plan.methods for m in named)


@pytest.mark.parametrize("p_name", [p for p, row in PRIORS.items() if row.kernel])
def test_kernels_only_when_asked_for(p_name):
    """Pareto and Dirichlet: refused as densities, computed as kernels of positive posteriors, never on the line."""
    found = refused(SupportMismatchError, large("gamma"), prior(p_name))
    assert "improper=True" in found.instead
    for q_name, row in POSTERIORS.items():
        q, kernel = example_posterior(q_name), prior(p_name, improper=True)
        if row.support.lower >= 0:
            assert math.isfinite(kl_divergence(q, kernel))
        else:
            refused(SupportMismatchError, large(q_name), kernel)
    with pytest.raises(MethodError, match="improper"):
        prior("gamma", improper=True)


def test_expgamma_is_checked_per_call():
    """p * scale < 1 on the largest learned value, which the message gives; auto leaves Monte Carlo at half of it."""
    scale = torch.tensor([0.1, 0.3], dtype=torch.float64)
    q, p = posterior("expgamma", scale=scale), prior("gamma")
    assert math.isfinite(kl_divergence(q, p, "stream", 10))
    scale[1] = 0.6
    found = refused(InfiniteVarianceError, q, p, "stream")
    assert "1.2" in found.why
    assert kl_divergence(q, p, n_mc_iter=10) == kl_divergence(q, p, "exact")
    with pytest.warns(InfiniteVarianceWarning):
        kl_divergence(q, p, "stream", 10, force=True)
    scale[1] = 1.25
    for method in ("auto", "exact", "stream", "quad"):
        found = refused(InfiniteKLError, q, p, method, force=True)
        assert "1.25" in found.why
    found = refused(InfiniteKLError, posterior("expgamma", scale=scale / 2), prior("normal"))
    assert "1.25" in found.why  # 2 * 0.625
    assert math.isfinite(kl_divergence(q, prior("lognormal")))  # no power, no condition


def test_closed_forms_with_a_condition():
    """Logistic x logistic is closed for equal scales only, radial x radial for equal locations."""
    q = example_posterior("logistic", 3)
    found = refused(MethodError, q, prior("logistic", scale=0.123), "exact")
    assert "equal scales" in found.why
    assert math.isfinite(kl_divergence(q, prior("logistic", scale=q.scale), "exact"))
    q = example_posterior("radial", 3)
    found = refused(MethodError, q, prior("radial"), "exact")
    assert "equal locations" in found.why
    assert math.isfinite(kl_divergence(q, prior("radial", loc=q.loc, scale=2 * q.scale), "exact"))


def test_taylor_of_the_default_degree_needs_its_moments():
    """Degree 4 needs E xi^4, and E xi^8 for its variance; the KL is finite all the same, and other methods have it."""
    q, p = posterior("inverse_gamma", concentration=3.5, scale=torch.ones(2)), prior("cauchy")
    for options in ({"degree": 4}, {}):
        found = refused(MethodError, q, p, "taylor", **options)
        assert "a smaller degree, or method='quad' or 'stream'" in found.instead


@pytest.mark.parametrize(("name", "fixed"), [("horseshoe", {"slab": None}), ("inverse_gamma", {"concentration": 0.5})])
def test_taylor_is_not_listed_where_no_polynomial_has_a_mean(name, fixed):
    q = example_posterior(name, **fixed)
    plan = explain(q, prior("cauchy"))
    assert plan.finite
    assert "taylor" not in plan.methods
    found = refused(MethodError, q, prior("cauchy"), "taylor", degree=1)
    assert all(m in plan.methods for m in METHODS if f"'{m}'" in found.instead)
    assert math.isfinite(kl_divergence(q, prior("cauchy"), "quad"))


# ---- values


BAD = {"scale": (NAN, INF, -1.0, 0.0), "log_scale": (NAN, INF, -INF), "loc": (NAN, INF, -INF)}


@pytest.mark.parametrize("q_name", POSTERIORS)
def test_bad_values_at_construction(q_name):
    """Which parameter, which constraint, the first offender, its place and how many there are."""
    for name in (*POSTERIORS[q_name].learned, "log_scale"):
        for value in BAD[name]:
            learned = dict.fromkeys(POSTERIORS[q_name].learned, torch.ones(2, 3))
            if name == "log_scale":
                del learned["scale"]
            learned[name] = torch.ones(2, 3)
            learned[name][1, 1] = learned[name][1, 2] = value
            with pytest.raises(ParameterError) as caught:
                posterior(q_name, **learned)
            why = caught.value.why
            assert why.startswith(f"{name} must be ")
            assert f"but is {value:g} at (1, 1) (2 of 6 values)" in why
            assert q_name in caught.value.asked


@pytest.mark.parametrize("q_name", POSTERIORS)
def test_values_that_went_bad_in_place(q_name):
    """A step of an optimiser may break a parameter after construction: every method says which one."""
    p_name = next(p for p in PRIORS if (plan := explain(q_name, p)).finite and not plan.infinite_variance)
    for log_scale in (False, True):
        names = [n for n in POSTERIORS[q_name].learned if n == "loc"] + ["log_scale" if log_scale else "scale"]
        for name in names:
            for value in BAD[name]:
                q = example_posterior(q_name, 3, log_scale=log_scale)
                tensor = getattr(q, f"free_{name}")
                tensor[1] = value
                for method in explain(q, p_name).methods:
                    if method == "taylor":
                        continue
                    with pytest.raises((ParameterError, InfiniteKLError)) as caught:
                        kl_divergence(q, prior(p_name), method)
                    if isinstance(caught.value, ParameterError) and value != -INF:
                        assert f"{name} must be" in caught.value.why
                        assert f"is {value:g} at (1,) (1 of 3 values)" in caught.value.why
                    elif isinstance(caught.value, InfiniteKLError):
                        assert value == INF  # E exp(w) is infinite: as true


PARAMETERS = [
    (p, x.name, value)
    for p, row in PRIORS.items()
    for x in row.parameters
    for value in (NAN, INF, -0.7)
    if value != -0.7 or x.constraint.text != "a finite number"
]


@pytest.mark.parametrize(("p_name", "name", "value"), PARAMETERS)
def test_learned_prior_parameters_that_went_bad_in_place(p_name, name, value):
    """Empirical Bayes: a step out of the constraint is noticed, never a number for what is no distribution."""
    improper = {"improper": True} if PRIORS[p_name].simplex else {}
    p = example_prior(p_name, learned=True, **improper)
    q_name = next(q for q in ("normal", "gamma", "expgamma") if explain(q, p).finite)
    with torch.no_grad():
        p.tensors[name].fill_(value)
    for method in ("auto", "stream"):
        with pytest.raises(McreparError):
            kl_divergence(example_posterior(q_name), p, method)


@pytest.mark.parametrize("p_name", PRIORS)
def test_bad_prior_values_at_construction(p_name):
    for parameter in PRIORS[p_name].parameters:
        for value in (NAN, torch.tensor([NAN, 0.5])):
            with pytest.raises(ParameterError, match=f"{parameter.name} must be") as caught:
                prior(p_name, **{parameter.name: value})
            assert "nan" in caught.value.why
        for value in (True, "1", None, torch.ones(2, dtype=torch.long)):
            with pytest.raises(ParameterError, match=parameter.name):
                prior(p_name, **{parameter.name: value})


# ---- shapes, dtypes, devices


@pytest.mark.parametrize("q_name", [q for q in POSTERIORS if "loc" in POSTERIORS[q].learned])
def test_mismatched_parameters(q_name):
    for other, aspect in (
        (torch.ones(4), "shape"),
        (torch.ones(3, 1), "shape"),
        (torch.ones(3, dtype=torch.float64), "dtype"),
    ):
        with pytest.raises(ParameterError, match=f"loc has {aspect} .* and scale has") as caught:
            posterior(q_name, loc=torch.zeros(3), scale=other)
        assert caught.value.instead == f"one {aspect} for both"


def test_parameters_on_two_devices():
    on_meta = torch.ones(3, device="meta")
    template = posterior("normal")
    with pytest.raises(ParameterError, match="loc has device cpu and scale has meta"):
        template.bind(validate=False, loc=torch.zeros(3), scale=on_meta)


def test_parameters_on_two_devices_by_name():
    with pytest.raises(ParameterError, match="device"):
        posterior("normal", loc=torch.zeros(3), scale=torch.ones(3, device="meta"))


def test_prior_tensors_that_do_not_fit():
    """Shape, dtype and device of a prior's tensors against those of the weights."""
    q = example_posterior("normal", (2, 3))
    for shape in ((2,), (3, 3), (1, 2, 3), (6,)):
        found = refused(ParameterError, q, prior("normal", scale=torch.ones(shape, dtype=torch.float64)))
        assert "prior's scale" in found.asked
        assert str(tuple(shape)) in found.why
        assert "(2, 3)" in found.why
    found = refused(ParameterError, q, prior("normal", loc=torch.ones(3)))
    assert "torch.float32" in found.why
    assert "torch.float64" in found.why
    elsewhere = posterior("normal").bind(
        validate=False, **dict.fromkeys(("loc", "scale"), torch.ones(2, 3, dtype=torch.float64, device="meta"))
    )
    found = refused(ParameterError, elsewhere, prior("normal", loc=torch.ones(3, dtype=torch.float64)))
    assert "it is on cpu, the weights on meta" in found.why


def test_things_that_are_no_distributions():
    q, p = example_posterior("normal"), prior("normal")
    refused(ParameterError, "normal", p)
    refused(ParameterError, q, "normal")
    refused(ParameterError, q, q)
    refused(MethodError, posterior("normal"), p)


# ---- results


def test_a_value_beyond_the_dtype_is_said():
    """exp(mu + s^2/2) overflows float32, not float64: the message says the range and the scales."""
    learned = {"loc": torch.zeros(2), "scale": torch.tensor([1.0, 14.0])}
    found = refused(ParameterError, posterior("lognormal", **learned), prior("gamma"), "exact")
    assert "range of torch.float32" in found.why
    assert "14" in found.why
    wide = {n: x.double() for n, x in learned.items()}
    assert math.isfinite(kl_divergence(posterior("lognormal", **wide), prior("gamma"), "exact"))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_wide_dtype(dtype, wide):
    assert wide_dtype(dtype) is wide


@pytest.mark.parametrize("name", ["logistic", "radial"])
def test_auto_takes_a_closed_form_whose_condition_holds(name):
    q = posterior(name, loc=torch.tensor([0.1, 0.2]), log_scale=torch.full((2,), 0.3).log().requires_grad_())
    same, values = POSTERIORS[name].same_prior(q)
    p = prior(same, **{n: v.detach() for n, v in values.items()})
    value = kl_divergence(q, p)
    assert abs(value.item()) < 1e-6
    with pytest.raises(MethodError, match="second derivatives"):
        torch.autograd.grad(value, q.learned[-1], create_graph=True)


@pytest.mark.parametrize(
    ("q", "p"),
    [
        (("gamma", {}), ("normal", {"scale": 1e-200})),
        (("gamma", {}), ("weibull", {"concentration": 300.0})),
        (("gamma", {}), ("gamma", {"concentration": 1e308})),
        (("error", {"power": 0.01}), ("normal", {})),
        (("gamma", {"concentration": 1e200}), ("normal", {})),
    ],
)
def test_parameters_beyond_float64_are_refused(q, p):
    bound = posterior(q[0], scale=torch.ones(2, dtype=torch.float64), **q[1])
    with pytest.raises(ParameterError):
        kl_divergence(bound, prior(p[0], **p[1]))


@pytest.mark.parametrize(
    ("q", "p", "why"),
    [
        ("normal", ("normal", {"scale": 1e-200}), "division by zero"),
        ("gamma", ("weibull", {"concentration": 300.0}), "a moment of the noise is out of range"),
    ],
)
def test_a_network_refuses_what_a_tensor_refuses(q, p, why):
    """The same words, with the name of the tensor."""
    learned = {n: torch.ones(2, 3) for n in POSTERIORS[q].learned}
    plain = refused(ParameterError, posterior(q, **learned), prior(p[0], **p[1]))
    with pytest.raises(ParameterError) as caught:
        bayesian(nn.Linear(3, 2, bias=False), q, prior(p[0], **p[1]), signs="keep" if q == "gamma" else "").kl()
    assert plain.why == caught.value.why
    assert why in plain.why
    assert caught.value.asked.startswith("weight: KL(")


@pytest.mark.parametrize("error", [ValueError("a bug of ours"), TypeError("another")])
def test_errors_that_are_no_overflow_stay_what_they_are(error, monkeypatch):
    """Only numbers beyond float64 are a parameter's fault."""

    def broken(*arguments):
        raise error

    monkeypatch.setattr(divergence, "_apply", broken)
    with pytest.raises(type(error), match=str(error)) as caught:
        kl_divergence(example_posterior("normal"), prior("normal"))
    assert not isinstance(caught.value, McreparError)


def test_a_refused_call_leaves_the_generator_alone():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    q = posterior("normal", loc=torch.zeros(2), scale=torch.ones(2))
    for options in ({"degree": 9}, {"degree": 4, "n_mc_iter": 0}):
        with pytest.raises((MethodError, ParameterError)):
            kl_divergence(q, prior("logistic"), "taylor", generator=generator, **options)
    assert torch.equal(generator.get_state(), before)


def test_wrong_types_are_refused_in_three_parts():
    q = posterior("normal", loc=torch.zeros(2), scale=torch.ones(2))
    with pytest.raises(ParameterError, match=r"a torch\.Generator"):
        kl_divergence(q, prior("normal"), generator=42)
    with pytest.raises(ParameterError, match="center='a'"):
        kl_divergence(q, prior("normal"), "taylor", center="a")
    with pytest.raises(ParameterError, match="no posterior"):
        explain(3, "normal")
