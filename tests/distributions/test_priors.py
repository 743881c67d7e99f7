"""Every row of PRIORS against scipy, its own integral or its kernel: density, gradients, support, kernels.

A new row is tested by being in the table: without an entry in conftest's SCIPY_PRIORS its density must integrate
to 1 over its support.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import mcrepar
from mcrepar import PRIORS
from mcrepar.distributions.parameters import Interval
from tests.conftest import SCIPY_PRIORS, example_prior, integral, scipy_prior, seeded

KERNELS = [name for name, row in PRIORS.items() if row.kernel]
SIMPLEX = [name for name, row in PRIORS.items() if row.simplex]
JOINT = [name for name in PRIORS if example_prior(name).density.joint]
ELEMENTWISE = [name for name in PRIORS if name not in (*JOINT, *SIMPLEX)]
SOFT = ("horseshoe",)  # softened at 0, so that its integral is a little less than 1


def points(p: mcrepar.Prior, count: int = 9) -> torch.Tensor:
    """Points inside the support, near its ends and far out."""
    steps = torch.linspace(-6, 4, count, dtype=torch.float64)
    if p.support.lower == -math.inf:
        return torch.cat([-steps.exp(), steps.exp()])
    return p.support.lower + steps.exp()


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("name", [n for n in PRIORS if n in SCIPY_PRIORS])
def test_log_prob_is_that_of_scipy(name, seed):
    p = example_prior(name, seed=seed)
    w = points(p)
    np.testing.assert_allclose(p.log_prob(w), scipy_prior(p).logpdf(w.numpy()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in SOFT])
def test_density_integrates_to_one(name, seed):
    p = example_prior(name, seed=seed)
    start = 0.0 if p.support.lower == -math.inf else p.support.lower
    ends = {start + s * x for x in (0, 0.01, 0.1, 0.5, 1, 2, 5, 20, 200, math.inf) for s in (-1, 1)}
    ends.add(float(p.values.get("loc", start)))
    cuts = [x for x in ends if not math.isnan(x) and p.support.lower <= x <= p.support.upper]
    assert integral(lambda w: p.log_prob(torch.as_tensor(w)).exp().numpy(), cuts) == pytest.approx(1, abs=5e-8)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_horseshoe_is_the_softened_marginal(scale):
    """log p = log(e^y E1(y)) with scipy's E1, y = (w^2 + eps^2) / (2 tau^2); its mass tends to 1 with eps."""
    masses = []
    for softening in (1e-2, 1e-3, 1e-9):
        p = mcrepar.prior("horseshoe", scale=scale, softening=softening)
        w = torch.tensor([0.0, 1e-3, 0.1, -0.7, 2.0, -5.0], dtype=torch.float64)
        y = (w.numpy() ** 2 + softening**2) / (2 * scale**2)
        expected = np.log(special.exp1(y)) + y - 0.5 * math.log(2 * math.pi**3) - math.log(scale)
        np.testing.assert_allclose(p.log_prob(w), expected, rtol=1e-9, atol=1e-9)
        cuts = [0, softening, 10 * softening, 1e-2, 0.1, 1, 10, 1e3, math.inf]
        masses.append(2 * integral(lambda w, p=p: p.log_prob(torch.as_tensor(w)).exp().numpy(), cuts))
    assert masses[0] < masses[1] < masses[2] == pytest.approx(1, abs=1e-7)
    assert 1 - masses[1] < 2e-3 / scale


@pytest.mark.parametrize("seed", [None, 2])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_radial_integrates_to_one(d, seed):
    """In polar coordinates around loc, along five directions, as for the posterior; d = 1 is the Normal."""
    p = example_prior("radial", seed=seed)
    loc, scale = (float(p.values[name]) for name in ("loc", "scale"))
    area = {1: 2.0, 2: 2 * math.pi, 3: 4 * math.pi}[d]
    for row in torch.randn(5, d, generator=seeded(0), dtype=torch.float64):
        direction = row / row.norm()

        def along(rho, direction=direction):
            rho = torch.as_tensor(rho)
            w = loc + scale * rho.reshape(-1, 1) * direction  # (points, d)
            return (p.log_prob(w).exp().reshape(rho.shape) * scale**d * rho ** (d - 1)).numpy()

        assert area * integral(along, [0, 1, 4, 40]) == pytest.approx(1, abs=1e-10)
    if d == 1:
        w = torch.linspace(-2, 2, 7, dtype=torch.float64)[:, None]
        expected = stats.norm(loc, scale).logpdf(w.numpy()[:, 0])
        np.testing.assert_allclose(p.log_prob(w), expected, rtol=1e-12, atol=1e-12)


def test_radial_takes_a_location_and_a_scale_per_weight():
    """The distribution of loc + scale * xi: log_prob moves by -sum log scale, whatever the shape of the tensor."""
    loc, scale = torch.randn(2, 3, generator=seeded(1)).double(), torch.rand(2, 3, generator=seeded(2)).double() + 0.5
    u = torch.randn(4, 2, 3, generator=seeded(3)).double()
    moved = mcrepar.prior("radial", loc=loc, scale=scale).log_prob(loc + scale * u)
    torch.testing.assert_close(moved, mcrepar.prior("radial").log_prob(u) - scale.log().sum())


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_powers_without_a_constant(name, seed):
    p = example_prior(name, seed=seed, improper=True)
    power = {"pareto": lambda alpha, **_: -alpha - 1, "dirichlet": lambda concentration: concentration - 1}
    w = torch.tensor([1e-3, 0.4, 1.0, 30.0], dtype=torch.float64)
    torch.testing.assert_close(p.log_prob(w), power[name](**p.values) * w.log())
    assert p.improper
    assert p.support == Interval(0.0, math.inf)


@pytest.mark.parametrize("name", [n for n in PRIORS if n not in KERNELS])
def test_only_kernels_are_improper(name):
    with pytest.raises(mcrepar.MethodError, match=rf"prior\('{name}'\).*improper.*proper density.*'pareto'"):
        mcrepar.prior(name, improper=True)


@pytest.mark.parametrize("name", PRIORS)
def test_log_prob_gradient_in_learned_parameters(name):
    """Every parameter may be a tensor that requires grad."""
    p = example_prior(name, seed=6, learned=True, **({"improper": True} if name in SIMPLEX else {}))
    w = points(p)[:, None] if name in JOINT else points(p)
    learned = {n: v for n, v in p.values.items() if v.requires_grad}
    assert learned.keys() == p.values.keys()

    def density(w, *values):
        parameters = dict(zip(learned, values, strict=True))
        return mcrepar.prior(name, **parameters, improper=p.improper).log_prob(w)

    if PRIORS[name].parameters[0].constraint.text.endswith("whole number"):
        assert bool(torch.autograd.grad(density(w, *learned.values()).sum(), [*learned.values()])[0].isfinite())
        return  # finite differences would leave the whole numbers
    assert torch.autograd.gradcheck(density, (w.requires_grad_(), *learned.values()))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_tensor_parameters_broadcast_and_equal_numbers(name):
    p = example_prior(name, seed=7)
    w = points(p)[:6].reshape(2, 3)
    for shape in ((), (3,), (2, 1), (2, 3)):
        values = {n: torch.full(shape, v, dtype=torch.float64) for n, v in p.values.items()}
        torch.testing.assert_close(mcrepar.prior(name, **values).log_prob(w), p.log_prob(w))


def test_supports_are_those_of_the_distributions():
    line = {"normal", "laplace", "logistic", "error", "student_t", "cauchy", "mixture", "horseshoe", "radial"}
    found = {n for n in PRIORS if example_prior(n).support == Interval(-math.inf, math.inf)}
    assert line <= found
    for name in set(SCIPY_PRIORS) - {"mixture"}:
        p = example_prior(name, seed=1)
        assert (p.support.lower, p.support.upper) == pytest.approx(scipy_prior(p).support(), rel=1e-7)
    starts = torch.tensor([0.5, 2.0])
    assert mcrepar.prior("pareto", scale=starts).support.lower == 2.0, "the largest of several starts"


def test_pareto_starts_where_it_was_told_to():
    assert mcrepar.prior("pareto", scale=0.1).support.lower == 0.1


@pytest.mark.parametrize("name", PRIORS)
def test_learned_parameters_do_not_warn(name):
    torch.set_warn_always(True)
    try:
        assert example_prior(name, learned=True).density.terms
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("name", ["exponential", "gamma", "weibull", "lognormal", "wald", "pareto"])
def test_log_prob_outside_the_support_is_minus_infinity(name):
    p = example_prior(name)
    below = torch.tensor([p.support.lower - 0.5], dtype=torch.float64)
    assert p.log_prob(below).item() == -math.inf


@pytest.mark.parametrize("name", PRIORS)
def test_float32_agrees_with_float64(name):
    p = example_prior(name, seed=9, **({"improper": True} if name in SIMPLEX else {}))
    w = points(p)[:, None] if name in JOINT else points(p)
    single = p.log_prob(w.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), p.log_prob(w), rtol=2e-5, atol=2e-5)


def test_a_prior_costs_five_lines():
    """The row that README and CONTRIBUTING show, against scipy's half-normal distribution."""
    from mcrepar.distributions.prior import LogDensity, Prior, PriorRow, Term
    from mcrepar.distributions.priors import SCALE, W2

    row = PriorRow("half_normal", (SCALE,), lambda v: LogDensity(
        (Term(W2, -0.5 / (v["scale"] * v["scale"])),),
        0.5 * math.log(2 / math.pi) - math.log(v["scale"]),
    ))  # fmt: skip
    p = Prior(row.name, {"scale": 0.7}, row.density, row.support({}), row=row)
    w = torch.linspace(0.1, 3, 7, dtype=torch.float64)
    assert np.allclose(p.log_prob(w), stats.halfnorm(scale=0.7).logpdf(w.numpy()), atol=1e-12)
