"""KL(q || p) of torch distributions: per weight, against torch's own and against the sums of the library."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributions as td

import mcrepar
from mcrepar import POSTERIORS, distributions
from mcrepar.distributions.torch_families import Family
from tests.conftest import example_posterior
from tests.distributions.test_torch_families import TORCH, example

PRIORS = {  # torch's own and ours; a table, closed forms, a quadrature, an external density
    "normal": lambda t: td.Normal(t(0.1), t(0.7)),
    "laplace": lambda t: td.Laplace(t(0.1), t(0.7)),
    "student_t": lambda t: td.StudentT(t(4.0), t(0.1), t(0.7)),
    "logistic": lambda t: distributions.Logistic(t(0.1), t(0.7)),
    "gamma": lambda t: td.Gamma(t(1.5), t(0.7)),
    "half_normal": lambda t: td.HalfNormal(t(0.7)),
}


def number(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def learned(x: float) -> torch.Tensor:
    return torch.full((3,), x, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", POSTERIORS)
def test_the_sum_over_weights_is_the_kl_of_the_library(name, prior):
    """Value and gradient; of an external density by the same quadrature, on request."""
    if prior == "half_normal" and POSTERIORS[name].support.lower < 0:
        pytest.skip("an infinite KL, tested below")
    q, p = example(name, (3,), requires_grad=True), PRIORS[prior](number)
    found = td.kl_divergence(q, p)
    assert found.shape == q.batch_shape
    if not bool(found.isfinite().all()):
        with pytest.raises(mcrepar.McreparError):
            mcrepar.kl_divergence(q.posterior, p)
        return
    method = "quad" if prior == "half_normal" and not q.event_shape else "auto"
    if q.event_shape and "quad" not in mcrepar.explain(q.posterior, p).methods:
        return
    total = mcrepar.kl_divergence(q.posterior, p, method=method)
    torch.testing.assert_close(found.sum(), total, rtol=1e-7, atol=1e-9)
    ours, theirs = (torch.autograd.grad(x, q.posterior.learned) for x in (found.sum(), total))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [n for n in TORCH if n not in ("student_t", "inverse_gamma")])
def test_it_is_what_torch_computes_where_torch_can(name):
    q, other = (Family.of(example_posterior(name, (2, 3), seed=s)) for s in (0, 1))
    mine, p = TORCH[name](q), TORCH[name](other)
    try:
        expected = td.kl_divergence(mine, p)
    except NotImplementedError:
        pytest.skip("torch has no KL of this pair")
    torch.testing.assert_close(td.kl_divergence(q, p), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(td.kl_divergence(q, other), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", POSTERIORS)
def test_to_itself_it_is_zero(name):
    q = example(name, (3,))
    if name == "horseshoe":  # the prior of this name is another distribution, so that it is an external density here
        assert td.kl_divergence(q, q).abs().max() < 1e-2
    elif q.event_shape or q.posterior.row.same_prior:
        torch.testing.assert_close(td.kl_divergence(q, q), torch.zeros(q.batch_shape).double(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("prior", ["normal", "laplace", "student_t", "logistic"])
def test_gradients_by_the_prior(prior):
    """Of a closed form and of a quadrature, weight by weight, against finite differences."""
    loc, scale = learned(0.1), learned(0.7)
    q = distributions.Logistic(torch.tensor([-0.5, 0.0, 0.8]).double(), 0.4)
    make = {
        "normal": lambda m, s: td.Normal(m, s),
        "laplace": lambda m, s: td.Laplace(m, s),
        "student_t": lambda m, s: td.StudentT(number(4.0), m, s),
        "logistic": lambda m, s: distributions.Logistic(m, s),
    }[prior]
    assert torch.autograd.gradcheck(lambda m, s: td.kl_divergence(q, make(m, s)), (loc, scale), atol=1e-6)
    shared = number(0.7).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: td.kl_divergence(q, make(number(0.0), s)), shared, atol=1e-6)


def test_an_external_density_with_a_batch():
    q = distributions.Normal(torch.tensor([0.0, 1.0]).double(), 0.5)
    p = td.Gumbel(torch.tensor([0.0, 0.3]).double(), torch.tensor([1.0, 2.0]).double())
    each = [
        mcrepar.kl_divergence(distributions.Normal(m, 0.5).posterior, td.Gumbel(loc, scale), "quad")
        for m, loc, scale in zip(q.loc, p.loc, p.scale, strict=True)
    ]
    torch.testing.assert_close(td.kl_divergence(q, p), torch.stack(each), rtol=1e-8, atol=1e-8)


def test_shapes_broadcast_and_independent_sums():
    q, p = distributions.Laplace(torch.zeros(3), 1.0), td.Normal(torch.zeros(2, 1), torch.ones(2, 1))
    assert td.kl_divergence(q, p).shape == (2, 3)
    summed = td.kl_divergence(td.Independent(q, 1), td.Independent(td.Normal(torch.zeros(3), torch.ones(3)), 1))
    torch.testing.assert_close(summed, td.kl_divergence(q, td.Normal(0.0, 1.0)).sum())


def test_a_joint_family_has_one_number_per_event():
    q = distributions.Radial(torch.zeros(2, 3).double(), 0.5)
    p = td.Normal(number(0.0), number(1.0))
    one = td.kl_divergence(q, p)
    assert one.shape == ()
    torch.testing.assert_close(one, mcrepar.kl_divergence(q.posterior, p))
    torch.testing.assert_close(td.kl_divergence(q.expand((4,)), p), one.expand(4))
    same = td.kl_divergence(q, distributions.Radial(torch.zeros(2, 3).double(), 0.5))
    assert same.item() == pytest.approx(0, abs=1e-9)


def test_without_support_it_is_infinite_as_torch_has_it():
    found = td.kl_divergence(distributions.Laplace(torch.zeros(2), 1.0), td.Gamma(1.0, 1.0))
    assert found.tolist() == [math.inf, math.inf]
    assert td.kl_divergence(distributions.StudentT(torch.zeros(2), 1.0, df=1.5), td.Normal(0.0, 1.0))[0] == math.inf


@pytest.mark.parametrize("trained", [False, True])
def test_a_mixture_shares_its_numbers_among_all_weights(trained):
    """Against the trapezoid rule, for more weights than components: values, and gradients by what is shared."""
    double = torch.float64
    logits, locs = torch.tensor([0.3, -0.2, 0.5], dtype=double), torch.tensor([-1.0, 0.2, 1.5], dtype=double)
    locs.requires_grad_(trained)
    p = td.MixtureSameFamily(td.Categorical(logits=logits), td.Normal(locs, torch.ones(3, dtype=double)))
    q = distributions.Normal(torch.arange(5, dtype=double), 0.7)
    w = torch.linspace(-12, 16, 20_001, dtype=double)[:, None]
    density = q.log_prob(w).exp()
    expected = torch.trapezoid(density * (q.log_prob(w) - p.log_prob(w)), w, dim=0)
    found = td.kl_divergence(q, p)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    if trained:
        weights = torch.arange(1, 6, dtype=double)
        (slope,) = torch.autograd.grad(found @ weights, locs)
        torch.testing.assert_close(slope, torch.autograd.grad(expected @ weights, locs)[0], rtol=1e-8, atol=1e-8)
