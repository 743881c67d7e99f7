"""Every family as a torch distribution, against scipy and torch's own; |z| > 5 by chance: 6e-7."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.distributions as td

import mcrepar
from mcrepar import POSTERIORS, distributions
from mcrepar.distributions.torch_families import FAMILIES, Family
from tests.conftest import example_posterior, scipy_posterior, scipy_prior, z_score

OURS = {cls.row.name: cls for cls in FAMILIES.values() if issubclass(cls, Family)}
ELEMENTWISE = [name for name in OURS if not mcrepar.posterior(name).noise.joint]
TORCH = {  # the same distributions as torch writes them
    "normal": lambda q: td.Normal(q.loc, q.scale),
    "laplace": lambda q: td.Laplace(q.loc, q.scale),
    "lognormal": lambda q: td.LogNormal(q.loc, q.scale),
    "student_t": lambda q: td.StudentT(q.df, q.loc, q.scale),
    "exponential": lambda q: td.Exponential(1 / q.scale),
    "gamma": lambda q: td.Gamma(q.concentration, 1 / q.scale),
    "inverse_gamma": lambda q: td.InverseGamma(q.concentration, q.scale),
    "weibull": lambda q: td.Weibull(q.scale, q.concentration),
}


def example(name: str, shape=(2, 3), requires_grad: bool = False) -> Family:
    return Family.of(example_posterior(name, shape, seed=3, requires_grad=requires_grad))


def test_every_posterior_has_its_class_and_every_name_is_found():
    assert OURS.keys() == POSTERIORS.keys()
    assert {"Radial", "LogNormal", "InverseGamma", "StudentT", "ExpGamma", "Cauchy", "Chi2"} <= FAMILIES.keys()
    assert distributions.Cauchy is td.Cauchy
    with pytest.raises(AttributeError, match=r"no family 'Radiel'; it has .*Radial"):
        _ = distributions.Radiel
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = distributions.nothing


@pytest.mark.parametrize("name", OURS)
def test_it_is_made_by_its_parameters_positional_or_named(name):
    cls, given = OURS[name], {"loc": 0.3, "scale": torch.full((2,), 0.5)}
    learned = {n: given[n] for n in POSTERIORS[name].learned}
    q = cls(**learned)
    assert q.batch_shape + q.event_shape == (2,)
    assert repr(cls(*learned.values()).posterior) == repr(q.posterior)
    assert getattr(distributions, cls.__name__) is cls
    assert cls.__name__ in (cls.__doc__ or "")


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if scipy_posterior(example_posterior(n))])
def test_density_moments_and_entropy_are_those_of_scipy(name):
    q = example(name)
    scipys = scipy_posterior(q.posterior)
    w = q.sample((4,))
    expected = np.stack([own.logpdf(x) for own, x in zip(scipys, w.reshape(4, -1).T.numpy(), strict=True)], 1)
    np.testing.assert_allclose(q.log_prob(w).reshape(4, -1), expected, rtol=1e-9, atol=1e-9)
    for ours, theirs in ((q.mean, "mean"), (q.variance, "var"), (q.entropy(), "entropy")):
        if hasattr(scipys[0], theirs):
            np.testing.assert_allclose(ours.flatten(), [float(getattr(own, theirs)()) for own in scipys], rtol=1e-7)


@pytest.mark.parametrize("name", TORCH)
def test_it_is_the_distribution_of_torch(name):
    q = example(name)
    p, w = TORCH[name](q), q.sample((5,))
    torch.testing.assert_close(q.log_prob(w), p.log_prob(w), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.entropy(), p.entropy(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.mean, p.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(q.variance, p.variance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", OURS)
def test_entropy_is_the_mean_of_minus_log_prob(name):
    torch.manual_seed(0)
    q = example(name, (3,))
    values = -q.log_prob(q.sample((4000,)))
    assert values.shape == (4000, *q.batch_shape)
    assert q.entropy().shape == q.batch_shape
    spread = values.std(0) if values.std(0).max() > 1e-6 else torch.ones(())
    assert ((values.mean(0) - q.entropy()).abs() < 5 * spread / math.sqrt(4000) + 1e-9).all()


@pytest.mark.parametrize("name", OURS)
def test_rsample_has_shape_support_and_gradients(name):
    torch.manual_seed(1)
    q = example(name, requires_grad=True)
    w = q.rsample((7, 2))
    assert w.shape == (7, 2, 2, 3)
    assert bool(q.support.check(w).all())
    grads = torch.autograd.grad(w.sum(), q.posterior.learned)
    assert all(bool(g.isfinite().all()) and bool((g != 0).any()) for g in grads)
    assert q.rsample().shape == (2, 3)
    assert not q.sample().requires_grad


@pytest.mark.parametrize("name", OURS)
def test_expand_copy_and_pickle(name):
    torch.manual_seed(2)
    q = example(name, (3,))
    joint = bool(q.event_shape)
    wide = q.expand((4,) if joint else (4, 3))
    assert type(wide) is type(q)
    assert wide.rsample((2,)).shape == (2, 4, 3)
    assert wide.mean.shape == wide.variance.shape == (4, 3)
    w = wide.sample()
    torch.testing.assert_close(wide.log_prob(w), q.log_prob(w))
    torch.testing.assert_close(wide.entropy(), q.entropy().expand(wide.batch_shape))
    for twin in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):  # noqa: S301
        torch.testing.assert_close(twin.log_prob(w), q.log_prob(w))
    rows = wide.sample((3000,))
    if joint:  # the copies are drawn apart from each other
        radius = (rows[:, :2] - q.loc).norm(dim=-1).log()
        assert abs(torch.corrcoef(radius.T)[0, 1]) < 5 / math.sqrt(3000)


def test_radial_is_one_event_of_its_whole_tensor():
    q = distributions.Radial(torch.zeros(3, 4), 1.0)
    assert (q.batch_shape, q.event_shape) == ((), (3, 4))
    assert q.log_prob(torch.ones(5, 3, 4)).shape == (5,)
    assert q.support.event_dim == 2
    torch.testing.assert_close(q.variance, torch.full((3, 4), 1 / 12))
    one = distributions.Radial(torch.zeros(1), 2.0)
    torch.testing.assert_close(
        one.log_prob(torch.tensor([1.0])).float(), td.Normal(0.0, 2.0).log_prob(torch.tensor(1.0))
    )


def test_numbers_broadcast_and_moments_follow():
    q = distributions.Laplace(0.0, torch.ones(4))
    assert q.loc.shape == (4,)
    assert q.log_prob(torch.tensor(0.5)).shape == (4,)
    torch.manual_seed(0)
    assert (z_score(distributions.StudentT(1.0, 2.0, df=9.0).sample((5000,)), 1.0)).abs() < 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: distributions.Radial(0.0), "missing a required argument: 'scale'"),
        (lambda: distributions.Radial(0.0, 1.0, size=3), "unexpected keyword argument 'size'"),
        (lambda: distributions.Laplace(torch.zeros(2), torch.tensor([1.0, -1.0])), "scale must be positive"),
        (lambda: distributions.Gamma(1.0, concentration=-2.0), "concentration must be positive"),
    ],
)
def test_wrong_parameters_are_refused(make, words):
    with pytest.raises(mcrepar.ParameterError, match=words):
        make()


def test_a_value_outside_the_support_is_refused_as_torch_does():
    with pytest.raises(ValueError, match="within the support"):
        distributions.Gamma(torch.ones(2)).log_prob(torch.tensor([1.0, -1.0]))
    assert distributions.Gamma(torch.ones(2), validate_args=False).log_prob(torch.tensor([1.0, -1.0]))[1] == -math.inf


def test_a_network_takes_it_as_a_prior():
    p = mcrepar.distributions.Logistic(0.0, 0.3)
    bnn = mcrepar.bayesian(torch.nn.Linear(2, 1), "normal", p)
    torch.manual_seed(0)
    same = mcrepar.bayesian(copy.deepcopy(bnn.to_module()), "normal", mcrepar.prior("logistic", scale=0.3))
    torch.testing.assert_close(mcrepar.kl(bnn), mcrepar.kl(same))


def test_an_inverse_gaussian_is_a_wald():
    """IG(mean m, shape c) = m IG(1, c / m), as the documentation says."""
    q = distributions.Wald(torch.tensor(1.7, dtype=torch.float64), concentration=2.4 / 1.7)
    w = np.array([0.3, 1.0, 4.0])
    expected = scipy_prior(mcrepar.prior("inverse_gaussian", loc=1.7, concentration=2.4)).logpdf(w)
    np.testing.assert_allclose(q.log_prob(torch.tensor(w)), expected, rtol=1e-10)
