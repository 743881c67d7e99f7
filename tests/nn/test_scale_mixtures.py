"""The hierarchical horseshoe: against quadrature, 10,000 samples, and the marginal prior that it is the parts of."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import nn

import mcrepar
from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn.scale_mixtures import HorseshoeScales, horseshoe, horseshoe_scales
from tests.conftest import seeded


def a_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2))


@pytest.mark.parametrize("per", ["weight", "unit"])
def test_the_network_computes_the_same_with_scales(per):
    net, x = a_net(), torch.randn(5, 2, 4, generator=seeded(1))
    before = net(x)
    assert horseshoe_scales(net, per) is net
    assert torch.allclose(net(x), before, atol=1e-6)
    local = {name: tuple(p.shape) for name, p in net.named_parameters() if name.endswith("local")}
    wanted = [(3, 2, 2), (2, 9)] if per == "weight" else [(3, 1, 1), (2, 1)]
    assert list(local.values()) == wanted


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.ConvTranspose1d(4, 6, 3), (1, 6, 1)),
        (nn.Embedding(7, 3), (1, 3)),
        (nn.Conv2d(4, 6, 3, groups=2), (6, 1, 1, 1)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 3, 1, 1)),
    ],
)
def test_a_unit_is_an_output(layer, shape):
    assert horseshoe_scales(layer, "unit").parametrizations.weight[0].local.shape == shape


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_scale_of_a_grouped_transposed_convolution_moves_one_output(groups):
    layer, x = nn.ConvTranspose1d(4, 8, 3, groups=groups, bias=False), torch.randn(2, 4, 5, generator=seeded(1))
    plain = layer(x)
    scales = horseshoe_scales(layer, "unit").parametrizations.weight[0]
    assert torch.allclose(layer(x), plain, atol=1e-6)
    for unit in range(8):
        with torch.no_grad():
            scales.local.fill_(1.0).view(-1)[unit] = 3.0
        factor = torch.where(torch.arange(8) == unit, 3.0, 1.0)[:, None]
        assert torch.allclose(layer(x), factor * plain, atol=1e-5)


def test_a_grouped_transposed_convolution_has_draws_and_moments():
    """5 standard errors of each of 112 means: 1 in 10,000."""
    torch.manual_seed(0)
    bnn = horseshoe(nn.ConvTranspose1d(4, 8, 3, groups=2), per="unit", initial_std=0.1)
    x = torch.randn(2, 4, 5, generator=seeded(1))
    drawn = mcrepar.predict(bnn, x, draws=400, likelihood="normal", generator=seeded(2))
    moments = mcrepar.predict(bnn, x, draws="moments", likelihood="normal")
    assert torch.allclose(moments.mean, drawn.mean, atol=5 * float(drawn.epistemic.max()) ** 0.5 / 400**0.5)


def test_the_kl_is_the_sum_of_three_by_quadrature_and_by_samples():
    """Against scipy in float64; and 10,000 samples of log q - log p at 5 standard errors, 1 in a million."""
    bnn = horseshoe(nn.Linear(3, 2, bias=False).double(), scale=0.3, initial_std=0.4)
    raw, local, shared = bnn.latents.values()
    wanted = 0.0
    for mean, s in zip(raw.loc.flatten().tolist(), raw.log_scale.exp().flatten().tolist(), strict=True):
        wanted += (mean**2 + s**2 - 1) / 2 - math.log(s)
    for part, b in ((local, 1.0), (shared, 0.3)):
        for m, s in zip(part.loc.flatten().tolist(), part.log_scale.exp().flatten().tolist(), strict=True):

            def integrand(t, m=m, s=s, b=b):  # over t = log scale, of which the log-normal posterior is N(m, s^2)
                log_q = -((t - m) ** 2) / (2 * s**2) - math.log(s) - 0.5 * math.log(2 * math.pi)
                log_p = math.log(2 / (math.pi * b)) - math.log1p(math.exp(2 * t) / b**2) + t
                return math.exp(log_q) * (log_q - log_p)

            wanted += integrate.quad(integrand, m - 12 * s, m + 12 * s)[0]
    assert bnn.kl().item() == pytest.approx(wanted, rel=1e-6)

    torch.manual_seed(0)
    ratios = []
    for part in (raw, local, shared):
        q = part.posterior
        w = q.draw(10_000).detach()
        log_q = q.log_prob(w).flatten(1).sum(1) if w[0].numel() > 1 else q.log_prob(w).flatten()
        p = part.prior(q).log_prob(w).flatten(1).sum(1)
        ratios.append(log_q - p)
    sampled = torch.stack(ratios).sum(0)
    assert abs(sampled.mean().item() - wanted) < 5 * sampled.std().item() / 100


def test_the_prior_of_a_weight_is_the_marginal_horseshoe():
    """raw * local * shared of the prior, given shared: 200,000 samples, Kolmogorov's distance at 1e-6."""
    n, tau = 200_000, 0.3
    rng = np.random.default_rng(0)
    w = np.sort(np.abs(rng.normal(size=n) * np.abs(rng.standard_cauchy(n)) * tau))
    scales = HorseshoeScales(torch.ones(1, 1), (1, 1))
    assert scales(torch.tensor([[2.0]])).item() == 2.0  # the very product
    p = mcrepar.prior("horseshoe", scale=tau, softening=1e-9)
    grid = np.geomspace(1e-6, 1e4, 400)
    cdf = [0.0]
    for a, b in pairwise(grid):
        density = 2 * p.log_prob(torch.tensor([a, math.sqrt(a * b), b], dtype=torch.float64)).exp().numpy()
        cdf.append(
            cdf[-1] + math.log(b / a) * (a * density[0] + 4 * math.sqrt(a * b) * density[1] + b * density[2]) / 6
        )
    empirical = np.searchsorted(w, grid) / n
    assert np.abs(empirical - np.array(cdf)).max() < 2.7 / math.sqrt(n)


def train(bnn, x, y, steps=200):
    optimizer, likelihood = torch.optim.Adam(mcrepar.optim.groups(bnn, 5e-2, 5e-2)), mcrepar.likelihoods.Normal(0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        mcrepar.elbo(bnn, likelihood, x, y, data_size=len(x)).loss.backward()
        optimizer.step()


def test_it_leaves_the_weights_that_matter_and_shrinks_the_others():
    torch.manual_seed(0)
    x = torch.randn(100, 20)
    y = 3 * x[:, :1] - 2 * x[:, 1:2] + 0.3 * torch.randn(100, 1)
    bnn = horseshoe(nn.Linear(20, 1, bias=False), scale=0.1)
    train(bnn, x, y)
    weights = torch.stack([bnn.to_module(bnn.draw()).weight.detach() for _ in range(200)]).mean(0)[0]
    assert (weights[:2] - torch.tensor([3.0, -2.0])).abs().max() < 0.3
    assert weights[2:].abs().max() < 0.15
    local = bnn.latents["parametrizations/weight/0/local"].mean()[0]
    assert local[:2].min() > 2 * local[2:].median(), "their posterior says which"


def test_everything_that_a_network_can_do(tmp_path):
    bnn, x = horseshoe(a_net(), "laplace", per="unit", prior="laplace"), torch.randn(5, 2, 4, generator=seeded(1))
    priors = {name.rpartition("/")[2]: latent.options.prior.name for name, latent in bnn.latents.items()}
    assert priors == {"bias": "laplace", "original": "normal", "local": "half_cauchy", "shared": "half_cauchy"}
    mcrepar.elbo(bnn, "categorical", x, torch.zeros(5, dtype=torch.int64), data_size=100, draws=3).loss.backward()
    assert all(p.grad is not None for p in bnn.parameters())
    mcrepar.save(bnn, tmp_path / "model")
    again = mcrepar.load(tmp_path / "model", horseshoe_scales(a_net(), "unit"))
    found = [mcrepar.predict(net, x, draws=7, generator=seeded(3)).mean for net in (bnn, again)]
    assert torch.equal(*found)
    torch.manual_seed(0)
    drawn = mcrepar.predict(bnn, x, draws=4000, likelihood="normal")
    moments = mcrepar.predict(bnn, x, draws="moments", likelihood="normal")
    assert torch.allclose(moments.mean, drawn.mean, atol=5 * float(drawn.epistemic.max()) ** 0.5 / 4000**0.5 + 0.02)


def test_only_what_is_selected_becomes_random():
    bnn = horseshoe(a_net(), select="3.*")
    assert {name.partition("/")[0] for name in bnn.latents} == {"3"}
    assert not nn.utils.parametrize.is_parametrized(bnn.net[0])


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    return net


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: horseshoe("net"), "not an nn.Module"),
        (lambda: horseshoe(a_net(), per="layer"), "no such choice. Use 'weight' or 'unit'"),
        (lambda: horseshoe(a_net(), scale=-1.0), "scale"),
        (lambda: horseshoe(a_net(), scale="wide"), "scale"),
        (lambda: horseshoe(a_net(), forward="local"), "forward=.*it has the options prior, kl_method"),
        (lambda: horseshoe(nn.LayerNorm(3), select="*"), "no weight of a dense"),
        (lambda: horseshoe(nn.GRU(3, 3)), "no weight of a dense"),
        (lambda: horseshoe(tied()), "0.weight: it is used as 0.weight and as 1.weight"),
        (lambda: horseshoe(nn.Embedding(4, 3, padding_idx=0)), "padding row"),
        (lambda: horseshoe(horseshoe_scales(a_net())), "parametrized already"),
        (lambda: horseshoe(horseshoe(a_net())), "."),
    ],
)
def test_what_cannot_be_is_refused(call, why):
    with pytest.raises((ParameterError, MethodError), match=why):
        call()


@pytest.mark.parametrize(
    "options", [{"posterior": "gamma"}, {"posterior": "nosuch"}, {"prior": "nosuch"}, {"scale": 0.0}]
)
def test_a_refused_network_is_as_it_was(options):
    net = a_net()
    before = {name: p.clone() for name, p in net.named_parameters()}
    with pytest.raises((ParameterError, MethodError, mcrepar.McreparError)):
        horseshoe(net, **options)
    after = dict(net.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.allclose(after[name], p, rtol=1e-6) for name, p in before.items())
