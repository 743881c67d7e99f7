"""M draws of the last layer at the cost of one: the same numbers as all of them in the graph (float64).

Statistical tests fix their seeds; |z| > 5 by chance: 6e-7.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mcrepar
from mcrepar.distributions import quadrature
from mcrepar.distributions.noises import Normal as NormalNoise
from mcrepar.distributions.radial import Radial
from mcrepar.errors import MethodError, TaylorWarning
from mcrepar.inspect.graph import saved_bytes
from mcrepar.likelihoods import Bernoulli, Categorical, Likelihood, NoisyDirichlet, Normal
from mcrepar.nn import last_layer
from mcrepar.nn.last_layer import LAST_LAYER_METHODS, TAYLOR, log_prob
from mcrepar.nn.preactivation import Part, Preactivation, capture
from mcrepar.nn.swap import run as run_on
from mcrepar.objective import elbo
from tests.conftest import seeded, z_score


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def net(posterior: str = "normal", outputs: int = 3, **options: Any) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    return mcrepar.bayesian(plain, posterior, **({"start_std": 1.0} | options))


def preactivation_of(bnn: mcrepar.BayesianModule, x: Tensor) -> Preactivation:
    weights = bnn.draw(seeded(11))
    return capture([bnn], lambda: run_on(bnn, weights, x))[1]


def direct(likelihood: Likelihood, preactivation: Preactivation, y: Tensor, zetas: list[Tensor]) -> Tensor:
    """All draws inside the graph, one log likelihood each."""
    outputs = preactivation.loc + sum(p.spread * zeta for p, zeta in zip(preactivation.parts, zetas, strict=True))
    return torch.stack([likelihood.log_prob(u, y) for u in outputs]).mean(0)


def gradients(bnn: mcrepar.BayesianModule, *others: nn.Module, value: Tensor) -> list[Tensor]:
    parameters = [p for module in (bnn, *others) for p in module.parameters()]
    weights = torch.linspace(0.5, 1.5, len(value)).double()  # of the data, to tell their gradients apart
    return list(torch.autograd.grad(value @ weights, parameters, retain_graph=True))


def assert_same(bnn: mcrepar.BayesianModule, likelihood: Likelihood, a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)
    both = (gradients(bnn, likelihood, value=v) for v in (a, b))
    for x, y in zip(*both, strict=True):
        torch.testing.assert_close(x, y, atol=1e-11, rtol=1e-11)


Y = {Normal: randn(6, 3, seed=5), Bernoulli: torch.arange(18).reshape(6, 3) % 2, Categorical: torch.arange(6) % 3}
Y[NoisyDirichlet] = Y[Categorical]


# ---- identical noise, identical numbers


@pytest.mark.parametrize("posterior", ["normal", "radial"])
@pytest.mark.parametrize("draws", [1, 2, 7, 29])
@pytest.mark.parametrize("scale", [0.6, "learned"])
def test_the_regression_tuple_is_the_direct_gradient(posterior, draws, scale):
    bnn, likelihood = net(posterior), Normal(scale).double()
    preactivation, y = preactivation_of(bnn, randn(6, 4)), Y[Normal]
    fast = log_prob(likelihood, preactivation, y, draws, generator=seeded(3))
    assert_same(bnn, likelihood, fast, direct(likelihood, preactivation, y, preactivation.draw(draws, seeded(3))))


@pytest.mark.parametrize("posterior", ["normal", "radial"])
@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()], ids=["softmax", "binary"])
@pytest.mark.parametrize("chunk", [1, 7, 20])
def test_the_stream_is_autograd_of_direct(posterior, likelihood, chunk, monkeypatch):
    bnn, y, draws = net(posterior), Y[type(likelihood)], 20
    preactivation, generator = preactivation_of(bnn, randn(6, 4)), seeded(3)
    monkeypatch.setattr(last_layer, "CHUNK", chunk * 18)
    fast = log_prob(likelihood, preactivation, y, draws, "stream", seeded(3))
    parts = [preactivation.draw(min(chunk, draws - start), generator) for start in range(0, draws, chunk)]
    zetas = [torch.cat(chunks) for chunks in zip(*parts, strict=True)]
    assert_same(bnn, likelihood, fast, direct(likelihood, preactivation, y, zetas))


def test_the_softmax_stream_keeps_two_tensors():
    """A_a = mean_i (1_y - softmax(u_i)) and A_b = mean_i (1_y - softmax(u_i)) zeta_i."""
    loc, square, y = randn(4, 3).requires_grad_(), randn(4, 3, seed=1).square().requires_grad_(), Y[Categorical][:4]
    preactivation = Preactivation(loc, (Part(square, NormalNoise()),))
    (zeta,) = preactivation.draw(50, seeded(2))
    log_prob(Categorical(), preactivation, y, 50, generator=seeded(2)).sum().backward()
    slope = F.one_hot(y, 3) - (loc + square.sqrt() * zeta).detach().softmax(-1)
    torch.testing.assert_close(loc.grad, slope.mean(0), atol=1e-12, rtol=1e-11)
    expected = (slope * zeta).mean(0) / (2 * square.detach().sqrt())
    torch.testing.assert_close(square.grad, expected, atol=1e-12, rtol=1e-11)


# ---- M -> infinity


@pytest.mark.parametrize("posterior", ["normal", "radial"])
def test_the_exact_square_is_residual_plus_variance(posterior):
    bnn, y = net(posterior), Y[Normal]
    preactivation = preactivation_of(bnn, randn(6, 4))
    square = (y - preactivation.loc).square() + sum(p.square * p.variance for p in preactivation.parts)
    expected = (-0.5 * square - 0.5 * math.log(2 * math.pi)).sum(1)
    torch.testing.assert_close(log_prob(Normal(), preactivation, y, "exact"), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("draws", [3, 30, 1000])
@pytest.mark.parametrize("posterior", ["normal", "radial"])
@pytest.mark.parametrize("likelihood", [Normal(0.8), Bernoulli()], ids=["regression", "bound"])
def test_every_m_has_the_expectation_of_the_exact_one(draws, posterior, likelihood):
    """4000 copies of a batch have noise of their own: value and gradient of a + b t against the exact ones."""
    bnn, copies = net(posterior), 4000
    preactivation, y = preactivation_of(bnn, randn(2, 4)), Y[type(likelihood)][:2]
    leaves = [
        t.detach().repeat(copies, 1).requires_grad_()
        for t in (preactivation.loc, *(p.square for p in preactivation.parts))
    ]
    parts = tuple(Part(t, p.noise) for t, p in zip(leaves[1:], preactivation.parts, strict=True))
    method = "bound" if isinstance(likelihood, Bernoulli) else None
    found = {}
    for m in (draws, "exact"):
        wide = Preactivation(leaves[0], parts)
        value = log_prob(likelihood, wide, y.repeat(copies, 1), m, method, seeded(4))
        found[m] = [value.detach()[:, None], *torch.autograd.grad(value.sum(), leaves)]
    for sample, exact in zip(found[draws], found["exact"], strict=True):
        wide_sample = sample.reshape(copies, -1)
        assert (z_score(wide_sample, exact.reshape(copies, -1)[0]).abs() < 5).all()


def oracle(a: float, b: float, y: float) -> float:
    """E log p(y | a + b zeta), zeta ~ N(0, 1), by a fine trapezoid rule."""
    x = np.linspace(-12, 12, 20_001)
    u = a + b * x
    values = y * u - np.logaddexp(0, u)
    return float((np.exp(-x * x / 2) * values).sum() / np.exp(-x * x / 2).sum())


GRID = [(a, b) for a in (-2.0, 0.0, 1.0) for b in (1e-3, 0.3, 1.0, 2.0)]


def binary(method: str, draws: int | str = "exact", y: float = 1.0) -> Tensor:
    a, b = torch.tensor(GRID, dtype=torch.float64).T
    preactivation = Preactivation(a[:, None], (Part(b[:, None] ** 2, NormalNoise()),))
    return log_prob(
        Bernoulli(), preactivation, torch.full((len(GRID), 1), y, dtype=torch.float64), draws, method, seeded(0)
    )


@pytest.mark.parametrize("y", [0.0, 0.3, 1.0])
def test_quadrature_is_right_to_1e_4(y):
    expected = torch.tensor([oracle(a, b, y) for a, b in GRID], dtype=torch.float64)
    found = binary("quadrature", y=y)
    assert (found - expected).abs().max() < 1e-4
    assert (found - expected)[[b <= 1 for _, b in GRID]].abs().max() < 1e-9


def test_m_draws_of_a_binary_output_have_the_variance_of_m_draws():
    """4000 estimates each: log(variance ratio) has a standard error of 0.045 (kurtosis below 5), and |z| < 5."""
    preactivation = Preactivation(torch.zeros(4000, 1).double(), (Part(torch.ones(4000, 1).double(), NormalNoise()),))
    y = torch.ones(4000, 1)
    variances = {m: log_prob(Bernoulli(), preactivation, y, m, generator=seeded(m)).var() for m in (1, 10, 100)}
    for few, many in ((1, 10), (10, 100)):
        assert abs(math.log(variances[few] / variances[many] / 10)) < 5 * 0.045
    assert log_prob(Bernoulli(), preactivation, y, "exact").var() < 1e-20


def test_the_gauss_rule_is_gauss_hermite_for_normal_noise():
    for found, expected in zip(last_layer._gauss(NormalNoise()), quadrature.hermite(20), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("size", [2, 5, 1000])
def test_the_gauss_rule_has_the_moments_of_radial_noise(size):
    (x, weights), noise = last_layer._gauss(Radial(size)), Radial(size)
    for power in (0, 2, 4, 6, 12):
        expected = noise.moment(mcrepar.distributions.statistics.Monomial(float(power)))
        assert math.isclose(float(weights @ x**power), expected, rel_tol=1e-10)


def test_quadrature_over_radial_weight_and_bias_is_the_mean_of_draws():
    bnn, y = net("radial", start_std=2.0), Y[Bernoulli]
    preactivation = preactivation_of(bnn, randn(6, 4))
    assert len(preactivation.parts) == 2
    value = log_prob(Bernoulli(), preactivation, y, "exact")
    zetas = preactivation.draw(20_000, seeded(5))
    outputs = preactivation.loc + sum(p.spread * zeta for p, zeta in zip(preactivation.parts, zetas, strict=True))
    sample = torch.stack([Bernoulli().log_prob(u, y) for u in outputs.detach()])
    assert (z_score(sample, value.detach()).abs() < 5).all()


def test_quadrature_has_the_gradient_of_its_value():
    loc, square = randn(3, 2).requires_grad_(), (0.2 + randn(3, 2, seed=1).square()).requires_grad_()
    y = Y[Bernoulli][:3, :2]

    def value(a: Tensor, b2: Tensor) -> Tensor:
        return log_prob(Bernoulli(), Preactivation(a, (Part(b2, NormalNoise()), Part(b2 / 2, Radial(4)))), y, "exact")

    assert torch.autograd.gradcheck(value, (loc, square))


# ---- the bound and the polynomial


@pytest.mark.parametrize("y", [0.0, 0.3, 1.0])
def test_jaakkola_jordan_is_a_lower_bound_tight_without_noise(y):
    gap = torch.tensor([oracle(a, b, y) for a, b in GRID], dtype=torch.float64) - binary("bound", y=y)
    assert (gap > -1e-12).all()
    assert (gap[[b < 0.01 for _, b in GRID]] < 1e-6).all()
    assert gap.max() < 0.15


def test_the_bound_has_the_gradient_of_its_best_e():
    """No gradient goes through e, and none is missing: log sigmoid(e) - e / 2 + (y - 1/2) a, e^2 = a^2 + b^2."""
    loc = torch.tensor([[0.0], [0.7], [-2.0]], dtype=torch.float64, requires_grad=True)
    square = torch.tensor([[0.4], [1e-8], [1.5]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0], [0.0], [0.3]], dtype=torch.float64)
    e = (loc * loc + square).sqrt()
    expected = (F.logsigmoid(e) - e / 2 + (y - 0.5) * loc).sum(1)
    found = log_prob(Bernoulli(), Preactivation(loc, (Part(square, NormalNoise()),)), y, "exact", "bound")
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    slopes = [torch.autograd.grad(value.sum(), (loc, square)) for value in (found, expected)]
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


def test_the_taylor_coefficients():
    u = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value, found = -torch.log1p(torch.exp(-u)), []
    for k in range(5):
        found.append(float(value.detach()) / math.factorial(k))
        (value,) = torch.autograd.grad(value, u, create_graph=True)
    assert found == pytest.approx(TAYLOR, abs=1e-15)


def test_taylor_is_the_polynomial_s_mean_and_says_what_it_is():
    a, b = torch.tensor(GRID, dtype=torch.float64).T
    with pytest.warns(TaylorWarning, match="an optimum at"):
        found = binary("taylor", y=1.0)
    torch.testing.assert_close(found, -math.log(2) + a / 2 - (a * a + b * b) / 8)


# ---- memory

LIMITS = {(Bernoulli, "quadrature"), (Categorical, "bound")}  # these take no number of draws
SAMPLED = [pair for kind, row in LAST_LAYER_METHODS.items() for pair in ((kind, m) for m in row) if pair not in LIMITS]


@pytest.mark.filterwarnings("ignore::mcrepar.TaylorWarning")
@pytest.mark.parametrize("posterior", ["normal", "radial"])
@pytest.mark.parametrize(("kind", "method"), SAMPLED)
def test_saved_bytes_do_not_depend_on_m(posterior, kind, method):
    bnn = net(posterior)
    preactivation = preactivation_of(bnn, randn(6, 4))

    def kept(draws: int) -> int:
        return saved_bytes(lambda: log_prob(kind(), preactivation, Y[kind], draws, method, seeded(0)))

    assert 0 < kept(40) == kept(4000)


# ---- through elbo


@pytest.mark.parametrize("forward", ["weights", "local", "flipout"])
@pytest.mark.parametrize("posterior", ["normal", "radial"])
@pytest.mark.parametrize("likelihood", [Normal(), Bernoulli(), Categorical()], ids=["normal", "binary", "softmax"])
def test_every_parameter_gets_a_gradient(forward, posterior, likelihood):
    bnn = net(posterior, forward=forward)
    e = elbo(bnn, likelihood, randn(6, 4), Y[type(likelihood)], data_size=6, beta=0.0, last_layer_draws=100)
    for grad in torch.autograd.grad(e.loss, list(bnn.parameters())):
        assert grad.isfinite().all()
        assert (grad != 0).any()


@pytest.mark.parametrize("likelihood", [Normal(), Bernoulli(), Categorical()], ids=["normal", "binary", "softmax"])
def test_the_nll_has_the_expectation_of_plain_draws(likelihood):
    """The mean over 50 steps with M = 50 against 500 plain forwards: |z| < 5."""
    bnn, x, y = net("radial"), randn(6, 4), Y[type(likelihood)]
    torch.manual_seed(1)
    with torch.no_grad():
        fast = torch.stack([elbo(bnn, likelihood, x, y, 6, last_layer_draws=50).nll for _ in range(50)])
        plain = torch.stack([-likelihood.log_prob(bnn(x), y).mean() for _ in range(500)])
    error = (fast.var() / len(fast) + plain.var() / len(plain)).sqrt()
    assert (fast.mean() - plain.mean()).abs() < 5 * error
    assert fast.var() < plain.var()


class Squared(Likelihood):
    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return -(output - y).square().sum(1)

    def mean(self, output: Tensor) -> Tensor:
        return output

    def aleatoric(self, output: Tensor) -> Tensor:
        return torch.full_like(output, 0.5)

    def _check(self, output: Tensor, y: Tensor) -> None: ...


def test_refused():
    bnn, x, zeros = net(outputs=4), randn(6, 4), torch.zeros(6, 4).double()

    def ask(likelihood: Likelihood, draws: int | str = 10, y: Tensor = zeros, **options: Any) -> None:
        elbo(bnn, likelihood, x, y, data_size=6, last_layer_draws=draws, **options)

    with pytest.raises(MethodError, match="Normal\\(scale='heteroscedastic'\\): log p is neither"):
        ask(Normal("heteroscedastic"), y=torch.zeros(6, 2).double())
    with pytest.raises(MethodError, match="last_layer_draws with Squared"):
        ask(Squared())
    with pytest.raises(MethodError, match=r"takes none\. Use last_layer_draws='exact'"):
        ask(Categorical(), 10, Y[Categorical], last_layer_method="bound")
    with pytest.raises(MethodError, match=r"Normal has no such method\. Use 'tuple'"):
        ask(Normal(), last_layer_method="quadrature")
    with pytest.raises(MethodError, match=r"takes none\. Use last_layer_draws='exact'"):
        ask(Bernoulli(), last_layer_method="quadrature")
    with pytest.raises(MethodError, match="Use 'quadrature' or 'bound' or 'taylor' or 'stream'"):
        ask(Bernoulli(), last_layer_method="laplace")
    preactivation = capture([bnn], lambda: bnn(randn(6, 2, 4)))[1]
    with pytest.raises(MethodError, match="has 3 dimensions"):
        log_prob(Categorical(), preactivation, torch.zeros(6, 4, dtype=torch.long), 10)


# ---- the bound for classes


@pytest.mark.parametrize("posterior", ["normal", "laplace", "logistic"])
def test_the_cumulant_bound_is_below_the_mean_over_draws(posterior):
    """Values below 20,000 draws of the last layer, by less than half the variance of an output."""
    torch.manual_seed(0)
    bnn = mcrepar.bayesian(nn.Linear(4, 3).double(), posterior, initial_std=0.3)
    x, y = randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    preactivation = capture([bnn], lambda: bnn(x), projects=False)[1]
    bound = log_prob(Categorical(), preactivation, y, "exact")
    weight, bias = (tensor.posterior.draw(20_000, seeded(5)) for tensor in bnn.latents.values())
    u = torch.einsum("moi,bi->mbo", weight, x) + bias[:, None]
    each = Categorical().log_prob(u.flatten(0, 1), y.repeat(20_000)).view(-1, 5)
    gap = each.mean(0) - bound
    assert bool((gap > -5 * each.std(0) / 20_000**0.5).all())
    assert bool((gap < 0.5 * u.var(0).amax(1)).all())
    cumulant = sum(part.cumulant for part in preactivation.parts)
    wanted = (u - preactivation.loc).exp().mean(0).log()
    torch.testing.assert_close(cumulant, wanted, atol=0.02, rtol=0.1)


def test_the_bound_has_gradients_of_every_parameter():
    for posterior in ("normal", "laplace"):
        bnn = net(posterior, start_std=0.1)
        e = elbo(bnn, Categorical(), randn(6, 4), torch.randint(3, (6,)), 6, last_layer_draws="exact")
        e.loss.backward()
        assert all(bool(p.grad.abs().sum() > 0) for p in bnn.parameters())


def test_the_bound_is_refused_where_it_is_infinite():
    x, y = 100 * randn(6, 4), torch.randint(3, (6,))
    torch.manual_seed(0)
    for posterior in ("laplace", "logistic"):
        bnn = mcrepar.bayesian(nn.Linear(4, 3).double(), posterior, initial_std=0.5)
        with pytest.raises(MethodError, match="'exact' with weight: a feature times a scale reaches 1"):
            elbo(bnn, Categorical(), x, y, 6, last_layer_draws="exact")
    with pytest.raises(MethodError, match="'exact' with weight: there is no bound by cumulants for its noise"):
        elbo(mcrepar.bayesian(nn.Linear(4, 3).double(), "radial"), Categorical(), x, y, 6, last_layer_draws="exact")


def test_the_noisy_dirichlet_has_an_exact_last_layer():
    bnn, x, y = net(), randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    preactivation = preactivation_of(bnn, x)
    second = sum(part.square * part.variance for part in preactivation.parts)
    wanted = NoisyDirichlet().expected_log_prob(preactivation.loc, second, y)
    torch.testing.assert_close(log_prob(NoisyDirichlet(), preactivation, y, "exact"), wanted)
