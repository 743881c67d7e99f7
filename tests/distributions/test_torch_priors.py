"""Any torch.distributions object as a prior: ours where it is recognised, averaged with its gradients where it is not.

|z| < 5 raises a false alarm with probability 6e-7 for another seed.
"""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
import torch.distributions as td
from scipy import stats

import mcrepar
from mcrepar import PRIORS, InfiniteKLError, McreparError, MethodError, ParameterError, SupportMismatchError
from mcrepar.distributions.torch_priors import as_prior
from tests.conftest import example_posterior, example_prior, integral, scipy_posterior, seeded

D = torch.float64
RECOGNISED = [name for name, row in PRIORS.items() if row.like]


def tensor(value, grad: bool = True) -> torch.Tensor:
    return torch.tensor(value, dtype=D, requires_grad=grad)


def torch_distribution(p: mcrepar.Prior) -> td.Distribution:
    return PRIORS[p.name].like(**{n: torch.as_tensor(v, dtype=D) for n, v in p.values.items()})


# ---- recognised


@pytest.mark.parametrize("name", RECOGNISED)
def test_recognised_distributions_are_ours(name):
    """The same name, parameters, density and KL as prior(name, ...)."""
    ours = example_prior(name, seed=1)
    p = as_prior(torch_distribution(ours))
    assert p.name == name
    assert {n: float(v) for n, v in p.values.items()} == pytest.approx(ours.values)
    w = ours.support.lower + 0.7 if math.isfinite(ours.support.lower) else -0.7
    assert p.log_prob(tensor(w)).item() == pytest.approx(torch_distribution(ours).log_prob(tensor(w)).item(), rel=1e-9)


@pytest.mark.parametrize("name", RECOGNISED)
def test_recognised_distributions_have_our_divergence(name):
    ours = example_prior(name, seed=1, **({"loc": 0.0} if name == "laplace" else {}))
    q = example_posterior("expgamma" if name == "pareto" else "normal" if ours.support.lower < 0 else "lognormal")
    distribution = torch_distribution(ours)
    for p in (distribution, td.Independent(distribution.expand(q.shape), 1)):
        found, expected = (mcrepar.kl_divergence(q, x, "stream", 20, generator=seeded(1)) for x in (p, ours))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if "exact" in mcrepar.explain(q, ours).methods:
        torch.testing.assert_close(
            mcrepar.kl_divergence(q, distribution, "exact"), mcrepar.kl_divergence(q, ours, "exact")
        )


def test_subclasses_are_not_taken_for_their_parents():
    """A distribution that inherits from Normal may have another density."""

    class Shifted(td.Normal):
        def log_prob(self, value):
            return super().log_prob(value) - 1.0

    q = example_posterior("normal", 2)
    shifted = mcrepar.kl_divergence(q, Shifted(tensor(0.0), tensor(1.0)), "quad")
    plain = mcrepar.kl_divergence(q, mcrepar.prior("normal"))
    torch.testing.assert_close(shifted, plain + 2.0, rtol=1e-9, atol=1e-9)


# ---- foreign: each is made from two learned numbers


class Plain(td.Normal):
    """A Normal that is not recognised."""


def plain(a, b):
    return Plain(a, b)


def rows(a, b):
    """A distribution per weight."""
    return td.Independent(Plain(a.expand(3), b * torch.tensor([1.0, 2.0, 3.0], dtype=D)), 1)


def joint(a, b):
    return td.MultivariateNormal(a.expand(3), b * torch.eye(3, dtype=D) + 0.3 * b)


def gumbel(a, b):
    return td.Gumbel(a, b)


def gumbels(a, b):
    return td.Independent(td.Gumbel(a.expand(3), b * torch.tensor([1.0, 2.0, 3.0], dtype=D)), 1)


def mixture(a, b):
    weights = td.Categorical(logits=torch.stack([a, -a]))
    return td.MixtureSameFamily(weights, td.Normal(torch.stack([a, b]), torch.stack([b, 2 * b])))


def transformed(a, b):
    """A chain of transforms with tensors inside."""
    maps = [td.transforms.AffineTransform(a, b), td.transforms.AffineTransform(tensor(0.1, False), b + 1)]
    return td.TransformedDistribution(td.StudentT(tensor(5.0, False), 0 * a, b.exp()), maps)


DISTRIBUTIONS = {make.__name__: make for make in (plain, rows, joint, gumbel, gumbels, mixture, transformed)}
WHOLE = ("joint", "rows", "gumbels")


def distributions(*names: str):
    return pytest.mark.parametrize("name", names or DISTRIBUTIONS)


def leaves() -> list[torch.Tensor]:
    return [tensor(0.4), tensor(0.8)]


def raw(given: list[torch.Tensor], leaf: bool) -> list[torch.Tensor]:
    """The parameters themselves, or functions of them."""
    return given if leaf else [given[0] * 2 - 0.4, given[1].exp() / math.exp(0.8) * 0.8]


@distributions()
@pytest.mark.parametrize("q_name", ["normal", "laplace", "radial"])
def test_values_are_those_of_direct_computing(name, q_name):
    """-H - mean log p over the very noise that `direct` draws: by hand from `draw` with its own log_prob."""
    q = example_posterior(q_name, 3, seed=2)
    distribution = DISTRIBUTIONS[name](*leaves())
    p = as_prior(distribution)
    w = q.draw(50, generator=seeded(1))
    by_hand = distribution.log_prob(w).reshape(50, -1).sum(-1)
    found = p.log_prob(w)
    torch.testing.assert_close(found.reshape(50, -1).sum(-1), by_hand)


def difference(q: mcrepar.Posterior, distribution: td.Distribution, found: torch.Tensor, draws: int) -> float:
    """`found` of so many draws less -H - mean log p by hand, in standard errors of the two together."""
    w = q.draw(4 * draws, generator=seeded(2))
    sample = -distribution.log_prob(w).reshape(len(w), -1).sum(-1)
    entropy = sum(own.entropy() for own in scipy_posterior(q))
    error = sample.std() * math.sqrt(1 / len(w) + 1 / draws)
    return float((found + entropy - sample.mean()) / error)


@pytest.mark.parametrize("method", ["stream", "regen", "direct"])
@distributions()
def test_estimates_have_the_mean_of_direct_computing(name, method):
    q = example_posterior("normal", 3, seed=2)
    distribution = DISTRIBUTIONS[name](*(t.detach() for t in leaves()))
    found = mcrepar.kl_divergence(q, distribution, method, 20_000, generator=seeded(3))
    assert abs(difference(q, distribution, found, 20_000)) < 5


@pytest.mark.parametrize("leaf", [True, False])
@distributions()
def test_gradients_reach_learned_tensors_alike(name, leaf):
    """stream and regen on the noise of direct: the same value and gradients, of posterior and prior, leaf or not."""
    found = {}
    for method in ("direct", "stream", "regen"):
        q, given = example_posterior("normal", 3, requires_grad=True, seed=3), leaves()
        distribution = DISTRIBUTIONS[name](*raw(given, leaf))
        value = mcrepar.kl_divergence(q, distribution, method, 40, generator=seeded(4))
        found[method] = [value, *torch.autograd.grad(value, [*q.learned, *given])]
        assert all(float(g.detach().abs().sum()) > 0 for g in found[method])
    for method in ("stream", "regen"):
        for mine, other in zip(found[method], found["direct"], strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("leaf", [True, False])
@distributions(*[n for n in DISTRIBUTIONS if n not in WHOLE])
def test_quadrature_gradients_reach_learned_tensors(name, leaf):
    """quad against finite differences."""
    q = example_posterior("normal", 3, requires_grad=True, seed=3)

    def divergence(a, b, loc, scale):
        made = mcrepar.posterior("normal", loc=loc, scale=scale)
        return mcrepar.kl_divergence(made, DISTRIBUTIONS[name](*raw([a, b], leaf)), "quad")

    assert torch.autograd.gradcheck(divergence, (*leaves(), *q.learned), atol=1e-6)


@distributions("plain", "gumbel", "mixture")
def test_quadrature_is_the_integral(name):
    q = example_posterior("normal", 1, seed=4)
    distribution = DISTRIBUTIONS[name](*(t.detach() for t in leaves()))
    (own,) = scipy_posterior(q)

    def integrand(w):
        return own.pdf(w) * (own.logpdf(w) - distribution.log_prob(torch.as_tensor(w)).numpy())

    cuts = own.ppf([1e-15, 1e-9, 1e-3, 0.3, 0.7, 0.999, 1 - 1e-9, 1 - 1e-15])
    assert mcrepar.kl_divergence(q, distribution, "quad").item() == pytest.approx(integral(integrand, cuts), rel=1e-6)


@pytest.mark.parametrize("name", ["normal", "gamma", "exponential"])
def test_gumbel_is_that_of_torch(name):
    """torch has the KL of a Normal, a Gamma and an Exponential from a Gumbel in closed form."""
    q = example_posterior(name, 4, seed=5)
    made = {
        "normal": lambda: td.Normal(q.loc, q.scale),
        "gamma": lambda: td.Gamma(tensor(q.fixed["concentration"], False), 1 / q.scale),
        "exponential": lambda: td.Exponential(1 / q.scale),
    }[name]()
    distribution = td.Gumbel(tensor(0.3, False), tensor(1.5, False))
    expected = td.kl_divergence(made, distribution).sum()
    torch.testing.assert_close(mcrepar.kl_divergence(q, distribution, "quad"), expected, rtol=1e-5, atol=1e-5)


def test_a_distribution_over_the_tensor_must_have_its_shape():
    q = example_posterior("normal", 4)
    for distribution in (joint(*leaves()), rows(*leaves()), Plain(torch.zeros(3), torch.ones(3))):
        with pytest.raises(ParameterError, match=r"shape \(3,\), the weights \(4,\)"):
            mcrepar.kl_divergence(q, distribution, n_mc_iter=5)


def test_a_distribution_per_weight_is_never_cut():
    """Blocks of a bounded memory: a distribution with a location per weight gives the same in one piece and in many."""
    size = 500
    q = example_posterior("normal", size, seed=6)
    distribution = Plain(torch.linspace(-2, 2, size, dtype=D), torch.ones(size, dtype=D))
    for max_bytes in (2**28, 2**20):
        found = mcrepar.kl_divergence(q, distribution, "stream", 100, max_bytes=max_bytes, generator=seeded(1))
        assert abs(difference(q, distribution, found, 100)) < 5


class Network(td.Distribution):
    """A distribution whose location is the output of a module that it hides."""

    arg_constraints: ClassVar[dict] = {}
    support = td.constraints.real

    def __init__(self):
        super().__init__(validate_args=False)
        self.net = torch.nn.Linear(1, 1).double()

    def log_prob(self, value):
        return td.Normal(self.net(torch.ones(1, dtype=D)).squeeze(), 1.0).log_prob(value)


@pytest.mark.parametrize("method", ["stream", "regen", "quad"])
def test_hidden_modules_are_refused(method):
    q = example_posterior("normal", 2)
    options = {} if method == "quad" else {"n_mc_iter": 5}
    with pytest.raises(MethodError, match=r"Network prior by .*cannot see them.*'direct'"):
        mcrepar.kl_divergence(q, Network(), method, **options)


def test_hidden_modules_are_learned_by_direct():
    distribution = Network()
    mcrepar.kl_divergence(example_posterior("normal", 2), distribution, "direct", 5).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in distribution.net.parameters())


# ---- what is refused


@pytest.mark.parametrize(
    ("q", "distribution"),
    [
        ("normal", td.HalfCauchy(1.0)),
        ("normal", td.Beta(2.0, 2.0)),
        ("gamma", td.Uniform(0.0, 1.0)),
        ("laplace", td.HalfNormal(1.0)),
        ("exponential", td.Kumaraswamy(tensor(2.0, False), tensor(2.0, False))),
    ],
    ids=str,
)
def test_support_mismatch(q, distribution):
    with pytest.raises(SupportMismatchError, match=rf"KL\({q} \|\| {as_prior(distribution).name}\)"):
        mcrepar.kl_divergence(example_posterior(q), distribution, n_mc_iter=5)


@pytest.mark.parametrize(
    "distribution",
    [
        td.HalfCauchy(tensor(1.3, False)),
        td.HalfNormal(tensor(0.7, False)),
        td.FisherSnedecor(tensor(5.0, False), tensor(7.0, False)),
    ],
    ids=str,
)
def test_foreign_distributions_on_the_half_line(distribution):
    q = example_posterior("gamma", 1)
    (own,) = scipy_posterior(q)

    def integrand(w):
        return own.pdf(w) * (own.logpdf(w) - distribution.log_prob(torch.as_tensor(w)).numpy())

    expected = integral(integrand, [*own.ppf([1e-14, 1e-6, 0.01, 0.3, 0.7, 0.99, 1 - 1e-6, 1 - 1e-14])])
    assert mcrepar.kl_divergence(q, distribution, "quad").item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("q", "fixed", "distribution"),
    [
        ("horseshoe", {"slab": None}, td.Gumbel(0.0, 1.0)),
        ("horseshoe", {"slab": None}, Plain(0.0, 1.0)),
        (
            "horseshoe",
            {"slab": None},
            td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.zeros(2), torch.tensor([1.0, 2.0]))),
        ),
        ("inverse_gamma", {"concentration": 1.5}, td.HalfNormal(1.0)),
        ("inverse_gamma", {"concentration": 0.9}, td.Gumbel(0.0, 1.0)),
        ("inverse_gamma", {"concentration": 1.5}, td.MultivariateNormal(torch.zeros(3), torch.eye(3))),
    ],
    ids=str,
)
def test_infinite_divergences_are_refused(q, fixed, distribution):
    with pytest.raises(InfiniteKLError, match=rf"KL\({q} \|\| "):
        mcrepar.kl_divergence(example_posterior(q, **fixed), distribution, n_mc_iter=5)


def test_gumbel_under_a_light_left_tail_is_finite_though_it_grows_exponentially():
    """log p falls like -e^(-w / b): finite for a Normal, and for a Laplace iff scale < b."""
    distribution = td.Gumbel(tensor(0.0, False), tensor(1.0, False))
    assert mcrepar.kl_divergence(example_posterior("normal"), distribution, "stream", 10).isfinite()


@pytest.mark.parametrize(
    "distribution",
    [td.Poisson(2.0), td.Bernoulli(0.3), td.Dirichlet(torch.ones(3)), td.Categorical(torch.ones(3))],
    ids=lambda distribution: type(distribution).__name__,
)
def test_distributions_that_live_elsewhere(distribution):
    with pytest.raises(McreparError, match=rf"{type(distribution).__name__}|dirichlet"):
        mcrepar.kl_divergence(example_posterior("gamma"), distribution, n_mc_iter=5)


def test_other_objects_are_not_priors():
    for thing in (3.0, "normal", None, stats.norm()):
        with pytest.raises(McreparError, match=r"prior of type .*torch distribution"):
            as_prior(thing)


@pytest.mark.parametrize("method", ["exact", "stats", "repar"])
def test_methods_that_need_the_terms_of_a_distribution(method):
    options = {"n_mc_iter": 5} if method != "exact" else {}
    with pytest.raises(McreparError, match="Plain"):
        mcrepar.kl_divergence(example_posterior("normal"), Plain(0.0, 1.0), method, **options)


def test_the_distribution_itself_is_left_alone():
    given = leaves()
    distribution = plain(*given)
    before = dict(vars(distribution))
    mcrepar.kl_divergence(example_posterior("normal"), distribution, "stream", 5).backward()
    assert vars(distribution).keys() == before.keys()
    assert all(vars(distribution)[key] is value for key, value in before.items())
