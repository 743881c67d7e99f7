"""Every noise against scipy, plain quadrature and brute force; a new one is one line of EXAMPLES.

Statistical tests fix their seeds. False alarms, for another seed: 1e-4 per Kolmogorov-Smirnov test, 6e-7 per
|z| < 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special as sp
from scipy import stats
from scipy.integrate import quad

from mcrepar.distributions.heavy_tails import Horseshoe
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.noises import GammaPower, InverseGaussian, Logistic, Normal, SignedGammaPower
from mcrepar.distributions.radial import Radial
from mcrepar.distributions.random import Source
from mcrepar.distributions.special import log_scaled_e1
from mcrepar.distributions.statistics import Monomial
from mcrepar.errors import ParameterError

GOLDEN = (1 + math.sqrt(5)) / 2
ONE, TWO, THREE, FOUR = (Monomial(p) for p in (1.0, 2.0, 3.0, 4.0))
LOG, LOG2 = Monomial(0.0, log=1), Monomial(0.0, log=2)


def size(p: float) -> Monomial:
    return Monomial(p, absolute=True)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kw(seed: int, dtype: torch.dtype = torch.float64) -> dict:
    return {"dtype": dtype, "device": "cpu", "generator": generator(seed)}


# ---- oracles: scipy's distributions, and for the others a recipe in numpy and a density by quadrature


@dataclass(frozen=True)
class HorseshoeOracle:
    slab: float

    def scale(self, angle):
        lam = np.tan(angle)
        return lam / np.sqrt(1 + (lam / self.slab) ** 2)

    def rvs(self, n, random_state):
        return self.scale(random_state.uniform(0, np.pi / 2, n)) * random_state.standard_normal(n)

    def pdf(self, x):
        def integrand(v):  # v = log tan(angle)
            lam = math.exp(v) / math.sqrt(1 + math.exp(2 * v) / self.slab**2)
            z = x / lam
            return math.exp(-0.5 * z * z) / lam / math.cosh(v) if abs(z) < 38 else 0.0

        # the integrand starts at lam = |x| / 38 and bends there and near the slab
        low = math.log(abs(x) / 38)
        cuts = sorted({low, low + 2, low + 4, low + 8, max(low, 0.0) + 9, max(low, 0.0) + 45})
        total = sum(quad(integrand, a, b, epsabs=0, epsrel=1e-11, limit=200)[0] for a, b in pairwise(cuts))
        return total / math.pi / math.sqrt(2 * math.pi)

    def logpdf(self, x):
        return np.vectorize(lambda at: math.log(self.pdf(at)))(x)


@dataclass(frozen=True)
class RadialOracle:
    """One coordinate."""

    d: int

    def rvs(self, n, random_state):
        z = random_state.standard_normal((n, min(self.d, 50)))
        rest = random_state.chisquare(self.d - 50, n) if self.d > 50 else 0.0
        return z[:, 0] / np.sqrt((z**2).sum(1) + rest) * random_state.standard_normal(n)


def oracle(noise: Noise):
    match noise:
        case Normal():
            return stats.norm()
        case Logistic():
            return stats.logistic()
        case Horseshoe(slab):
            return HorseshoeOracle(math.inf if slab is None else slab)
        case Radial(d):
            return RadialOracle(d)
        case SignedGammaPower(c):
            return stats.gennorm(c)
        case GammaPower(k, r, factor):
            return stats.gengamma(k, 1 / r, scale=factor)
        case InverseGaussian(phi):
            return stats.invgauss(1 / phi, scale=phi)


SCIPY = [
    Normal(),
    Logistic(),
    SignedGammaPower(1.0),
    SignedGammaPower(2.0),
    SignedGammaPower(0.7),
    SignedGammaPower(3.0),
    GammaPower(1.0),
    GammaPower(1.0, 0.5, math.sqrt(2)),
    GammaPower(1.0, 1 / 1.6),
    GammaPower(1.0, 1 / 0.8, 0.3),
    GammaPower(0.3),
    GammaPower(2.5),
    GammaPower(60.0),
    GammaPower(9.5, -1.0),
    InverseGaussian(1.0),
    InverseGaussian(0.2),
    InverseGaussian(30.0),
]
SLABS = [Horseshoe(GOLDEN), Horseshoe(4.0)]
RADIAL = [Radial(1), Radial(2), Radial(7), Radial(1000)]
ELEMENTWISE = [*SCIPY, *SLABS, Horseshoe(None)]
EXAMPLES = [*ELEMENTWISE, *RADIAL]


def over(noises: list, name: str = "noise"):
    return pytest.mark.parametrize(name, noises, ids=lambda n: n.label if isinstance(n, Noise) else str(n))


@cache
def half_line(noise: Noise) -> tuple[NDArray, NDArray]:
    """A dense trapezoid over t = log|xi|: t, and the logarithm of density times |xi| by scipy."""
    t = np.arange(-700, 15, 0.005)
    with np.errstate(all="ignore"):
        return t, np.nan_to_num(oracle(noise).logpdf(np.exp(t)) + t, nan=-np.inf)


@cache
def expected(noise: Noise, power: float, log: int = 0) -> float:
    """E|xi|^p (log|xi|)^j without the library: closed forms of math.md for mixtures, else a dense sum."""
    if isinstance(noise, Horseshoe):
        scale = oracle(noise).scale
        local = quad(lambda angle: scale(angle) ** power, 0, math.pi / 2, epsrel=1e-12)[0] * 2 / math.pi
        return local * 2 ** (power / 2) * sp.gamma((power + 1) / 2) / math.sqrt(math.pi)
    if isinstance(noise, Radial):  # even powers
        steps = math.prod(noise.size + 2 * i for i in range(int(power // 2)))
        return math.prod(range(1, int(power), 2)) ** 2 / steps
    t, logs = half_line(noise)
    return (2 if noise.symmetric else 1) * 0.005 * float(np.sum(np.exp(logs + power * t) * t**log))


def expected_mean(noise: Noise, tau: Monomial) -> float:
    odd = noise.symmetric and not tau.absolute and tau.power % 2 == 1
    return 0.0 if odd else expected(noise, tau.power, tau.log)


def expected_product(noise: Noise, a: Monomial, b: Monomial) -> float:
    odd = [noise.symmetric and not t.absolute and t.power % 2 == 1 for t in (a, b)]
    return 0.0 if odd[0] != odd[1] else expected(noise, a.power + b.power, a.log + b.log)


def powers(noise: Noise) -> list[float]:
    if isinstance(noise, Radial):
        return [2.0, 4.0]
    if noise == Horseshoe(None):
        return [0.25, 0.5]
    return [-1.0, 0.5, 1.0, 2.0, 4.0] if noise.positive else [0.5, 1.0, 2.0, 3.0, 4.0]


# ---- draws


@over(EXAMPLES)
def test_draws_follow_the_distribution(noise):
    n = 20_000
    width = noise.size if noise.joint else 1
    xi = noise.draw(n // 10 if width > 100 else n, width, **kw(1))[:, 0].numpy()
    other = oracle(noise)
    other = other.cdf if hasattr(other, "cdf") else other.rvs(n, random_state=np.random.default_rng(2))
    assert stats.kstest(xi, other).pvalue > 1e-4


@over(EXAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_repeat_and_leave_the_global_generator_alone(noise, dtype):
    width = noise.size if noise.joint else 5
    state = torch.get_rng_state()
    first, second = (noise.draw(3, width, **kw(4, dtype)) for _ in range(2))
    assert first.shape == (3, width)
    assert first.dtype == dtype
    assert first.is_contiguous()
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())
    taus = (ONE, TWO) if noise != Horseshoe(None) and noise.finite(4.0) else (ONE,)
    distribution = noise.means_distribution(taus)
    if distribution.kind != "drawn":
        first, second = (noise.draw_means(taus, distribution.from_draws, width, **kw(4, dtype)) for _ in range(2))
        assert all(
            torch.equal(a, b) and a.dtype == dtype and a.shape == (width,) for a, b in zip(first, second, strict=True)
        )
        assert torch.equal(state, torch.get_rng_state())


# ---- moments, entropies, densities, nodes


@over(EXAMPLES)
def test_moments(noise):
    for p in powers(noise):
        tau = Monomial(p) if noise.positive else size(p)
        if noise.finite(p):
            assert noise.moment(tau) == pytest.approx(expected(noise, p), rel=2e-10)
        else:
            assert noise.moment(tau) == math.inf
    if noise.positive:
        for p, log in product([0.0, 1.0], [1, 2, 3, 4]):
            assert noise.moment(Monomial(p, log)) == pytest.approx(expected(noise, p, log), rel=1e-9, abs=1e-9)
    elif noise.finite(3.0):
        assert noise.moment(ONE) == noise.moment(THREE) == 0
        assert noise.moment(TWO) == noise.moment(size(2.0))


@over(EXAMPLES)
def test_moments_against_draws(noise):
    width = noise.size if noise.joint else 20
    xi = noise.draw(100 if width > 100 else 5000, width, **kw(3))
    for p in powers(noise):
        if noise.finite(2 * p):
            t = xi.abs().pow(p).mean(1)  # independent over rows
            z = (t.mean() - expected(noise, p)) / (t.std() / math.sqrt(len(t)))
            assert abs(z) < 5


def test_moments_of_high_order_and_closed_forms():
    for p in range(2, 22, 2):  # E|xi|^p = 2 Gamma(p+1) eta(p), eta(p) = (1 - 2^(1-p)) zeta(p)
        closed = 2 * math.gamma(p + 1) * (1 - 2.0 ** (1 - p)) * sp.zeta(p)
        assert Logistic().moment(Monomial(p)) == pytest.approx(closed, rel=1e-10)
        assert Normal().moment(Monomial(p)) == pytest.approx(sp.factorial2(p - 1), rel=1e-13)
    assert Logistic().moment(size(1.0)) == pytest.approx(2 * math.log(2), rel=1e-12)
    for c in (0.3, 1.0, GOLDEN, 2.0, 8.0):
        assert Horseshoe(c).moment(TWO) == pytest.approx(c * c / (1 + c), rel=1e-10)
        assert Horseshoe(c).moment(FOUR) == pytest.approx(3 * c**4 * (2 + c) / (2 * (1 + c) ** 2), rel=1e-10)
    log_size = Monomial(0.0, log=1, absolute=True)
    assert Horseshoe(None).moment(log_size) == pytest.approx(-(np.euler_gamma + math.log(2)) / 2, rel=1e-12)
    for phi, p in product((0.1, 1.0, 7.0), (-2.5, -1.0, 0.5, 3.0)):
        bessel = math.sqrt(2 * phi / math.pi) * sp.kve(p - 0.5, phi)
        assert InverseGaussian(phi).moment(Monomial(p)) == pytest.approx(bessel, rel=1e-10)


def test_which_moments_are_finite():
    assert Horseshoe(None).finite(0.99)
    assert not Horseshoe(None).finite(1.0)
    assert Horseshoe(None).moment(ONE) == Horseshoe(None).moment(TWO) == math.inf
    assert GammaPower(3.0, -1.0).finite(2.9)
    assert not GammaPower(3.0, -1.0).finite(3.0)
    assert not GammaPower(1.0).finite(-1.0)
    assert GammaPower(1.0, 0.5).finite(-1.9)
    assert GammaPower(3.0, -1.0).moment(Monomial(4.0)) == math.inf
    for noise in [Normal(), Logistic(), Horseshoe(2.0), SignedGammaPower(0.5), Radial(5)]:
        assert noise.finite(50.0)
        assert noise.finite(-0.9)
        assert not noise.finite(-1.0)
    assert InverseGaussian(1.0).finite(-30.0)
    assert InverseGaussian(1.0).finite(30.0)


@over(SCIPY)
def test_entropy_is_that_of_scipy(noise):
    t, logs = half_line(noise)
    inside = logs > -700
    surprise = np.exp(logs[inside]) * (t - logs)[inside]
    value = (2 if noise.symmetric else 1) * 0.005 * math.fsum(surprise)
    assert noise.entropy() == pytest.approx(value, abs=1e-8)


def test_entropy_of_mixtures():
    table = {1.0: 1.004965912879, GOLDEN: 1.295656062050, 2.0: 1.406049353127, 4.0: 1.691901454017}
    for c, value in table.items():  # math.md A.4
        assert Horseshoe(c).entropy() == pytest.approx(value, abs=1e-10)
    assert Horseshoe(8.0).entropy() == pytest.approx(1.875646367938, abs=1e-10)
    assert Horseshoe(None).entropy() == pytest.approx(2.109871836061648, abs=1e-11)
    assert Radial(1).entropy() == pytest.approx(Normal().entropy(), rel=1e-14)
    # in polar coordinates: -E log f(rho) + E log(A_d rho^(d-1)), f the half normal density
    radius = stats.halfnorm()
    for d in (2, 7, 1000):
        log_rho = quad(lambda t: t * radius.pdf(math.exp(t)) * math.exp(t), -40, 5, epsabs=1e-12)[0]
        area = math.log(2) + d / 2 * math.log(math.pi) - sp.gammaln(d / 2)
        value = float(radius.entropy()) + (d - 1) * log_rho + area
        assert Radial(d).entropy() == pytest.approx(value, rel=1e-9)


@over(SCIPY)
def test_log_density_is_that_of_scipy(noise):
    x = oracle(noise).ppf(np.linspace(0.001, 0.999, 200))
    ours = noise.log_density(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours, oracle(noise).logpdf(x), rtol=1e-9, atol=1e-9)


@over([*SLABS, Horseshoe(None)])
def test_log_density_of_the_horseshoe(noise):
    x = np.concatenate([-np.geomspace(1e-6, 9, 15), np.geomspace(1e-8, 12, 25)])
    ours = noise.log_density(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours, oracle(noise).logpdf(x), rtol=0, atol=2e-9)
    many = torch.tensor(x).repeat(300).reshape(3, -1)  # more than one chunk
    assert torch.equal(noise.log_density(many).reshape(-1)[: len(x)], torch.tensor(ours))
    at = torch.tensor([-2.0, 1e-3, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(noise.log_density, at)


@over(ELEMENTWISE)
def test_log_density_integrates_to_one(noise):
    t = np.arange(-700, 60, 0.02) if noise != Horseshoe(None) else np.arange(-80, 80, 0.02)
    x = np.exp(t)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        logs = noise.log_density(torch.tensor(x)).numpy() + t
    inside = np.nan_to_num(np.exp(logs), nan=0.0)
    assert (2 if noise.symmetric else 1) * inside.sum() * 0.02 == pytest.approx(1, abs=1e-9)


@over(RADIAL)
def test_joint_log_density_in_polar_coordinates(noise):
    xi = noise.draw(4, noise.size, **kw(5))
    rho = xi.norm(dim=1).numpy()
    log_area = math.log(2) + noise.size / 2 * math.log(math.pi) - sp.gammaln(noise.size / 2)
    value = stats.halfnorm().logpdf(rho) - log_area - (noise.size - 1) * np.log(rho)
    np.testing.assert_allclose(noise.log_density(xi).numpy(), value, rtol=1e-11)
    assert noise.log_density(xi.float()).dtype == torch.float64


@over(ELEMENTWISE)
def test_density_terms(noise):
    terms = noise.density_terms
    if terms is None:
        assert isinstance(noise, Logistic | Horseshoe)
        return
    xi = noise.draw(1, 50, **kw(6))[0]
    rest = noise.log_density(xi) - sum(c * tau(xi) for c, tau in terms)
    assert float(rest.std()) < 1e-8 * float(rest.abs().max() + 1)


@over(EXAMPLES)
def test_nodes_reproduce_moments(noise):
    x, weights = noise.nodes()
    assert x.dtype == weights.dtype == np.float64
    assert not x.flags.writeable
    assert not weights.flags.writeable
    assert noise.nodes()[0] is x
    assert len(x) <= 800
    assert weights.sum() == pytest.approx(1, abs=1e-13)
    for p in (2.0, 4.0):
        if noise.finite(p):
            assert weights @ np.abs(x) ** p == pytest.approx(expected(noise, p), rel=1e-10)
    if noise.positive:
        assert weights @ np.log(x) == pytest.approx(expected(noise, 0.0, 1), rel=1e-10, abs=1e-10)
    if noise.symmetric:
        assert weights @ x == pytest.approx(0, abs=1e-12)
        smooth = weights @ np.log1p(x * x)  # log growth, also where no moment exists
        if noise == Horseshoe(None):
            assert smooth == pytest.approx(1.0696445914, abs=1e-9)  # math.md A.4


@pytest.mark.parametrize("k", [0.02, 0.1, 1.0, 5.0, 20.0, 300.0, 1e4])
def test_gamma_nodes_for_all_shapes(k):
    x, weights = GammaPower(k).nodes()
    for p in (0.5, 1.0, 2.0, 4.0):
        assert weights @ x**p == pytest.approx(math.exp(sp.gammaln(k + p) - sp.gammaln(k)), rel=3e-10)
    # below k = 0.03 the distribution reaches numbers smaller than float64 has, where log x is held at -708
    assert weights @ np.log(x) == pytest.approx(sp.digamma(k), rel=1e-10 if k >= 0.1 else 1e-5)
    at, dense = dense_gamma(k)
    assert weights @ np.log1p(np.exp(-x)) == pytest.approx(dense @ np.log1p(np.exp(-at)), abs=1e-9)


def dense_gamma(k: float) -> tuple[NDArray, NDArray]:
    """A plain trapezoid in log x, much finer than the library's."""
    t = np.arange(math.log(k) - 12 / math.sqrt(k) - 45 / k, math.log(k + 60 + 12 * math.sqrt(k)), 0.01 / max(1, k**0.5))
    logs = k * t - np.exp(t)
    weights = np.exp(logs - logs.max())
    return np.exp(t), weights / weights.sum()


# ---- closed expectations


@over([Normal(), Logistic(), SignedGammaPower(1.0)])
def test_mean_abs(noise):
    pdf = oracle(noise).pdf
    for u, scale in product([-3.0, -0.4, 0.0, 1e-3, 2.0], [1e-3, 0.3, 1.0, 4.0]):
        kink = -u / scale
        cuts = sorted({-60.0, -20.0, -5.0, 0.0, 5.0, 20.0, 60.0, min(max(kink, -60.0), 60.0)})
        f = lambda x, u=u, scale=scale: abs(u + scale * x) * pdf(x)  # noqa: E731
        value = sum(quad(f, a, b, epsrel=1e-11)[0] for a, b in pairwise(cuts))
        ours = noise.mean_abs(torch.tensor(u, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64))
        assert float(ours) == pytest.approx(value, rel=1e-8)
    u = torch.tensor([-2.0, -0.3, 0.0, 0.0, 1.5, 5.0, 1e-4], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([0.5, 1.0, 1.0, 0.2, 3.0, 0.1, 1e-2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(noise.mean_abs, (u, scale))


@over([Normal(), Logistic(), SignedGammaPower(1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_abs_at_extremes(noise, dtype):
    u = torch.tensor([1.0, -1.0, 0.0, 1e15, 0.0], dtype=dtype, requires_grad=True)
    scale = torch.tensor([1e-30, 1e-36, 1e-30, 1.0, 1e15], dtype=dtype, requires_grad=True)
    out = noise.mean_abs(u, scale)
    assert out.dtype == dtype
    du, ds = torch.autograd.grad(out.sum(), (u, scale))
    assert torch.isfinite(torch.stack([out, du, ds])).all()
    torch.testing.assert_close(du, torch.tensor([1.0, -1.0, 0.0, 1.0, 0.0], dtype=dtype))


def test_mean_abs_is_none_elsewhere():
    one = torch.ones(())
    for noise in (Horseshoe(2.0), Radial(3), SignedGammaPower(1.5), GammaPower(1.0)):
        assert noise.mean_abs(one, one) is None
        assert noise.mean_softplus(one, one) is None


def test_mean_softplus():
    u = torch.tensor([-30.0, -3.0, -0.21, -0.19, -1e-6, 0.0, 1e-9, 0.19, 0.21, 2.0, 25.0], dtype=torch.float64)
    pdf = stats.logistic().pdf
    for at in u.tolist():
        cuts = [-90, -at - 5, -at + 5, 90]
        f = lambda x, at=at: np.logaddexp(0, -(at + x)) * pdf(x)  # noqa: E731
        value = sum(quad(f, a, b, epsabs=1e-14, epsrel=1e-11, limit=200)[0] for a, b in pairwise(cuts))
        ours = Logistic().mean_softplus(torch.tensor(at, dtype=torch.float64), torch.ones(()))
        assert float(ours) == pytest.approx(value, abs=1e-9)
    assert torch.autograd.gradcheck(lambda x: Logistic().mean_softplus(x, torch.ones_like(x)), u.requires_grad_())
    far = torch.tensor([-1e30, -800.0, 800.0, 1e30], requires_grad=True)
    out = Logistic().mean_softplus(far, torch.ones_like(far))
    (grad,) = torch.autograd.grad(out.sum(), far)
    assert torch.equal(out, torch.tensor([1e30, 800.0, 0.0, 0.0]))
    assert torch.equal(grad, torch.tensor([-1.0, -1.0, 0.0, 0.0]))


@over([Normal(), GammaPower(2.5), GammaPower(0.4, 1.0, 2.0), Logistic(), SignedGammaPower(1.0)])
def test_log_mgf(noise):
    bounded = noise.symmetric and math.isfinite(noise.mgf_limit)  # on both sides
    for s in (-0.7 if bounded else -2.0, -0.1, 0.3):
        at = torch.tensor(s, dtype=torch.float64)
        f = lambda x, s=s: math.exp(s * x) * oracle(noise).pdf(x)  # noqa: E731
        low = (-200 if bounded else -40) if noise.symmetric else 0
        value = quad(f, low, 1, points=[0] if noise.symmetric else None, epsrel=1e-11, limit=500)[0]
        value += quad(f, 1, 200, points=[5, 20, 60], epsrel=1e-11, limit=500)[0]
        assert float(noise.log_mgf(at)) == pytest.approx(math.log(value), abs=1e-6)
    assert noise.mgf_limit == (1 if bounded else math.inf if noise.symmetric else 1 / noise.factor)
    if bounded:
        assert torch.isinf(noise.log_mgf(torch.tensor([-1.0, 1.0, 2.0]))).all()
    assert GammaPower(2.0, -1.0).log_mgf(torch.ones(())) is SignedGammaPower(2.0).log_mgf(torch.ones(())) is None
    assert GammaPower(2.0, -1.0).mgf_limit == SignedGammaPower(2.0).mgf_limit == Radial(3).mgf_limit == 0


def test_log_scaled_e1():
    y = np.concatenate([np.geomspace(1e-300, 1, 400), np.linspace(0.9, 1.1, 41), np.geomspace(1, 700, 300)])
    ours = log_scaled_e1(torch.tensor(y)).numpy()
    np.testing.assert_allclose(ours, np.log(sp.exp1(y)) + y, rtol=0, atol=1e-11)
    far = np.geomspace(700, 1e60, 100)  # 1/y - 1/y^2 + 2/y^3 - 6/y^4
    np.testing.assert_allclose(
        log_scaled_e1(torch.tensor(far)).numpy(),
        np.log1p(-1 / far + 2 / far**2 - 6 / far**3) - np.log(far),
        atol=1e-10,
    )
    at = torch.tensor([1e-3, 0.4, 0.999, 1.001, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_scaled_e1, at)
    assert torch.autograd.gradgradcheck(log_scaled_e1, at)
    big = torch.tensor([0.0, 999.0, 1001.0, 1e9, 1e30], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(log_scaled_e1(big).sum(), big)
    x = big.detach()[1:].numpy()
    assert float(slope[0]) == 0
    np.testing.assert_allclose(slope[1:].numpy(), -1 / x + 1 / x**2 - 3 / x**3 + 13 / x**4, rtol=1e-9)
    single = torch.tensor([0.0, 1e-30, 0.5, 2.0, 1e30])
    torch.testing.assert_close(
        log_scaled_e1(single).double(),
        log_scaled_e1(single.double().clamp(min=torch.finfo(torch.float32).tiny)),
    )
    assert torch.equal(torch.func.vmap(log_scaled_e1)(at), log_scaled_e1(at))


# ---- the distribution of sums

EXACT = [
    (Normal(), (ONE, TWO), 7),
    (Normal(), (TWO,), 2),
    (Normal(), (ONE, size(2.0)), 60),
    (GammaPower(2.5), (ONE,), 1),
    (GammaPower(2.5), (ONE,), 500),
    (GammaPower(1.0, 0.5, math.sqrt(2)), (TWO,), 5),
    (GammaPower(1.0, 1 / 49), (Monomial(49.0),), 3),
    (GammaPower(1.0, 1 / 1.6), (Monomial(1.6),), 9),
    (GammaPower(3.5, -1.0), (Monomial(-1.0),), 4),
    (SignedGammaPower(1.5), (size(1.5),), 6),
    (SignedGammaPower(1.0), (size(1.0),), 6),
    (InverseGaussian(1.3), (ONE, Monomial(-1.0)), 5),
    (InverseGaussian(0.4), (Monomial(-1.0),), 40),
]

MATCHED = [
    (Logistic(), (ONE, TWO), 4),
    (Horseshoe(GOLDEN), (ONE, TWO), 11),
    (SignedGammaPower(1.0), (ONE, TWO), 3),
    (SignedGammaPower(3.0), (ONE, TWO), 30),
    (SignedGammaPower(1.0), (ONE, TWO, size(1.0)), 400),
    (SignedGammaPower(3.0), (size(0.5),), 60),
    (Normal(), (ONE, TWO, THREE, FOUR), 400),
    (Normal(), (size(1.0), TWO), 50),
    (Logistic(), (FOUR, THREE), 1000),
    (GammaPower(2.5), (ONE, LOG), 40),
    (GammaPower(2.5), (LOG2, LOG, TWO), 200),
    (GammaPower(1.0, 0.5, math.sqrt(2)), (ONE, TWO, LOG), 40),
    (GammaPower(9.5, -1.0), (ONE, TWO, LOG), 50),
    (InverseGaussian(1.0), (ONE, Monomial(-1.0), LOG), 40),
    (InverseGaussian(1.0), (ONE, TWO, LOG2), 400),
]


def brute(noise: Noise, taus: tuple[Monomial, ...], draws: int, n: int, seed: int) -> list[torch.Tensor]:
    xi = noise.draw(draws, n, **kw(seed))
    return [tau(xi).mean(0) for tau in taus]


def row(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(tau.text("x") for tau in value)
    return value.label if isinstance(value, Noise) else f"M={value}"


@pytest.mark.parametrize(("noise", "taus", "draws"), EXACT, ids=row)
def test_exact_distributions_of_sums(noise, taus, draws):
    distribution = noise.means_distribution(taus)
    assert distribution.kind == "exact"
    assert distribution.from_draws <= draws
    n = 20_000
    ours = noise.draw_means(taus, draws, n, **kw(7))
    theirs = brute(noise, taus, draws, n, 8)
    for mix in [(1.0, 0.0), (0.0, 1.0), (1.0, 0.7), (1.0, -0.4)][: 4 if len(taus) == 2 else 1]:  # jointly
        a, b = (sum(m * t for m, t in zip(mix, side, strict=False)).numpy() for side in (ours, theirs))
        assert stats.ks_2samp(a, b).pvalue > 1e-4


@pytest.mark.parametrize(("noise", "taus", "draws"), MATCHED, ids=row)
def test_matched_distributions_of_sums(noise, taus, draws):
    distribution = noise.means_distribution(taus)
    assert distribution.kind == "matched"
    assert distribution.from_draws <= draws
    n = 200_000
    means = torch.stack(noise.draw_means(taus, draws, n, **kw(9))).numpy()
    exact = np.array([expected_mean(noise, tau) for tau in taus])
    centred = means - exact[:, None]
    for i, j in product(range(len(taus)), repeat=2):
        covariance = (expected_product(noise, taus[i], taus[j]) - exact[i] * exact[j]) / draws
        products = centred[i] * centred[j]
        assert abs(products.mean() - covariance) < 5 * products.std() / math.sqrt(n)
    assert np.all(np.abs(centred.mean(1)) < 5 * means.std(1) / math.sqrt(n))


@over([Logistic(), Horseshoe(GOLDEN), SignedGammaPower(1.0), SignedGammaPower(7.0)])
def test_mean_square_exceeds_the_squared_mean(noise):
    first = noise.means_distribution((ONE, TWO)).from_draws
    t1, t2 = noise.draw_means((ONE, TWO), first, 10_000, **kw(10))
    assert (t2 >= t1 * t1).all()
    if first > 2:
        kurtosis = expected(noise, 4.0) / expected(noise, 2.0) ** 2
        assert kurtosis <= 1 + 2 / (first - 1)  # one draw fewer has no such distribution


def test_from_draws_keeps_positive_means_positive():
    for noise, taus in [
        (GammaPower(0.1), (TWO,)),
        (InverseGaussian(0.3), (Monomial(3.0),)),
        (Normal(), (FOUR,)),
    ]:
        distribution = noise.means_distribution(taus)
        variance = expected_product(noise, taus[0], taus[0]) / expected_mean(noise, taus[0]) ** 2 - 1
        assert distribution.from_draws == max(30, math.ceil(25 * variance * (1 - 1e-9)))
        assert (noise.draw_means(taus, distribution.from_draws, 50_000, **kw(11))[0] > 0).all()
        with pytest.raises(AssertionError):
            noise.draw_means(taus, distribution.from_draws - 1, 5, **kw(11))


def test_distributions_that_do_not_exist_are_drawn():
    for noise, taus in [
        (Horseshoe(None), (ONE, TWO)),
        (GammaPower(3.5, -1.0), (TWO,)),  # E xi^4 is infinite
        (GammaPower(2.0), (Monomial(-1.0),)),
        (Radial(10), (ONE, TWO, FOUR)),
    ]:
        distribution = noise.means_distribution(taus)
        assert (distribution.kind, distribution.from_draws) == ("drawn", 2**62)
        with pytest.raises(AssertionError):
            noise.draw_means(taus, 1000, 10, **kw(0))
    # one statistic with a distribution of its own keeps it
    assert GammaPower(3.5, -1.0).means_distribution((Monomial(-1.0),)).kind == "exact"


@pytest.mark.parametrize(("d", "draws"), [(2, 30), (5, 40), (40, 700)])
def test_radial_means_have_the_covariance_of_all_coordinates(d, draws):
    n, noise = 5_000, Radial(d)
    g = generator(12)
    t = [noise.draw_means((ONE, TWO), draws, d, dtype=torch.float64, device="cpu", generator=g) for _ in range(n)]
    t1, t2 = (torch.stack([pair[i] for pair in t]).numpy() for i in (0, 1))
    diagonal, off = (8 * d - 2) / (d * d * (d + 2)), 2 * (d - 1) / (d * d * (d + 2))
    a, b = t2[:, 0] - 1 / d, t2[:, 1] - 1 / d
    c = t1[:, 0]
    for sample, value in [
        (a, 0),
        (a * a, diagonal / draws),
        (a * b, off / draws),
        (c, 0),
        (c * c, 1 / (d * draws)),
        (c * t1[:, 1], 0),
        (c * a, 0),
    ]:
        assert abs(sample.mean() - value) < 5 * sample.std() / math.sqrt(n)
    assert stats.kstest(t2.sum(1) * draws, stats.chi2(draws).cdf).pvalue > 1e-4  # |xi|^2 is chi^2_1 for each draw


def test_split_is_one_joint_draw():
    n, sizes = 40_000, [1, 3, 6]
    noise, g = Radial(10), generator(13)
    where = {"dtype": torch.float64, "device": "cpu", "generator": g}
    radius, block = noise.split(Source(**where), n, sizes)
    xi = torch.cat([noise.draw(n, d, radius=block[:, b], **where) for b, d in enumerate(sizes)], dim=1).numpy()
    np.testing.assert_allclose(np.linalg.norm(xi, axis=1), radius.numpy(), rtol=1e-12)
    assert stats.kstest(radius.numpy(), stats.halfnorm().cdf).pvalue > 1e-4
    square = xi**2
    for j in range(10):
        assert abs(square[:, j].mean() - 0.1) < 5 * square[:, j].std() / math.sqrt(n)
    for i, j in [(0, 1), (0, 9), (1, 2), (3, 4), (8, 9)]:  # within and across blocks
        for sample, value in [(square[:, i] * square[:, j], 3 / 120), (xi[:, i] * xi[:, j], 0)]:
            assert abs(sample.mean() - value) < 5 * sample.std() / math.sqrt(n)
    whole = noise.draw(n, 10, **where).numpy()
    for j in (0, 5):
        assert stats.ks_2samp(xi[:, j], whole[:, j]).pvalue > 1e-4
    radius, block = noise.split(Source(**where), 5, [10])
    assert torch.equal(block, radius[:, None])
    assert Normal().split(Source(**where), 5, sizes) is None


@pytest.mark.parametrize(
    ("noise", "taus"),
    [
        (Normal(), (ONE, TWO)),
        (Logistic(), (ONE, TWO)),
        (Normal(), (ONE, TWO, FOUR)),
        (GammaPower(2.5), (ONE, LOG)),
        (SignedGammaPower(1.0), (size(1.0),)),
        (InverseGaussian(1.0), (ONE, Monomial(-1.0))),
    ],
    ids=row,
)
def test_float32_keeps_the_fluctuation_of_a_million_draws(noise, taus):
    draws, n = 10**6, 200_000
    means = noise.draw_means(taus, draws, n, **kw(14, torch.float32))
    for tau, t in zip(taus, means, strict=True):
        variance = (expected_product(noise, tau, tau) - expected_mean(noise, tau) ** 2) / draws
        t = t.double()
        assert float(t.var()) == pytest.approx(variance, rel=0.02)  # 5 sigma are 0.016
        assert abs(float(t.mean()) - expected_mean(noise, tau)) < 5 * math.sqrt(variance / n) + 6e-8


def test_float32_radial_of_a_million_draws():
    draws, d = 10**6, 200_000
    t1, t2 = Radial(d).draw_means((ONE, TWO), draws, d, **kw(15, torch.float32))
    assert float(t1.double().var()) == pytest.approx(1 / (d * draws), rel=0.02)
    assert float(t2.double().var()) == pytest.approx(6 / (d * (d + 2)) / draws, rel=0.02)
    assert abs(float(t2.double().sum()) - 1) < 5 * math.sqrt(2 / draws)
    xi = Radial(d).draw(2, d, radius=torch.tensor([1.0, 2.0]), **kw(16, torch.float32))
    np.testing.assert_allclose(xi.double().norm(dim=1).numpy(), [1, 2], rtol=1e-6)


# ---- extremes


@over(
    [
        GammaPower(0.02),
        GammaPower(1e4),
        GammaPower(0.02, -1.0),
        GammaPower(1e4, -1.0),
        GammaPower(1e4, 0.5),
        SignedGammaPower(0.1),
        SignedGammaPower(50.0),
        InverseGaussian(1e-3),
        InverseGaussian(1e4),
        Horseshoe(1e-2),
        Horseshoe(1e3),
        Radial(1),
        Radial(10**7),
    ]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_nan_at_extremes(noise, dtype):
    assert math.isfinite(noise.entropy())
    x, weights = noise.nodes()
    assert np.isfinite(x).all()
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    if not noise.joint:
        xi = noise.draw(1, 2000, **kw(17, dtype))
        assert torch.isfinite(xi).all()
        if noise.positive:
            assert torch.isfinite(xi.log()).all()
        assert torch.isfinite(noise.log_density(xi.double().abs() + 1e-200)).all()
    for taus in [(ONE, TWO), (LOG, LOG2, ONE)] if noise.positive else [(ONE, TWO)]:
        assert all(not math.isnan(noise.moment(tau)) for tau in taus)
        distribution = noise.means_distribution(taus)
        if distribution.kind != "drawn" and not (noise.joint and noise.size > 1):
            assert all(
                torch.isfinite(t).all()
                for t in noise.draw_means(taus, distribution.from_draws, 1 if noise.joint else 500, **kw(18, dtype))
            )


def test_radial_of_one_weight_is_normal_and_of_many_has_small_moments():
    for p in (2.0, 4.0, 6.0):
        assert Radial(1).moment(Monomial(p)) == pytest.approx(Normal().moment(Monomial(p)), rel=1e-14)
    d = 10**7
    assert Radial(d).moment(TWO) == pytest.approx(1 / d, rel=1e-12)
    assert Radial(d).moment(FOUR) == pytest.approx(9 / d / (d + 2), rel=1e-12)
    x, weights = Radial(d).nodes()
    assert weights @ x**4 == pytest.approx(9 / d / (d + 2), rel=1e-10)


def test_gamma_moments_of_large_shapes_do_not_cancel():
    k = 1e4
    noise = GammaPower(k)
    variance = noise.moment(Monomial(1.0)) - noise.moment(Monomial(0.5)) ** 2
    series = 1 / 4 - 1 / (32 * k)  # Var sqrt(G) = 1/4 - 1/(32 k) + ...
    assert variance == pytest.approx(series, rel=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda: GammaPower(-1.0),
        lambda: GammaPower(1.0, 0.0),
        lambda: SignedGammaPower(math.nan),
        lambda: Horseshoe(0.0),
        lambda: Radial(0),
        lambda: InverseGaussian(math.inf),
    ],
)
def test_parameters_must_be_positive(build: Callable[[], Noise]):
    with pytest.raises(ParameterError, match="positive"):
        build()


@over(EXAMPLES)
def test_noises_are_values(noise):
    assert {noise: 1}[type(noise)(**vars(noise))] == 1
    assert noise.label
    assert noise.joint == isinstance(noise, Radial)
    assert noise.positive != noise.symmetric


def test_a_noise_without_what_it_needs_says_what_is_missing():
    class Bare(Noise):
        def _label(self):
            return "bare"

        def _sample(self, source, draws, size, radius):
            return source.normal(draws, size)

    with pytest.raises(NotImplementedError, match="Bare has no _grid, which a distribution without `_rule` needs"):
        Bare().nodes()
