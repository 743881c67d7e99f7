"""NaturalGradient against IVON's published update, exact posteriors and quadrature; groups for Adam."""

from __future__ import annotations

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn

import mcrepar
from mcrepar import MethodError, ParameterError, bayesian, elbo, likelihoods, prior
from mcrepar.nn.random_tensor import RandomTensor
from mcrepar.optim import NaturalGradient, groups, roles
from tests.conftest import seeded

D = torch.float64


def only(bnn: mcrepar.BayesianModule) -> RandomTensor:
    (latent,) = bnn.latents.values()
    assert isinstance(latent, RandomTensor)
    return latent


def test_one_step_is_ivons():
    """Precision N (h + delta) first, then the mean by it; momentum 0; equal to second order in the scale's rate."""
    size, delta, sigma, lr, rho = 1000, 1e-3, 0.05, 0.1, 1e-4
    torch.manual_seed(0)
    bnn = bayesian(nn.Linear(4, 3, bias=False).to(D), "normal", prior("normal", scale=(size * delta) ** -0.5))
    latent = only(bnn)
    latent.log_scale.data.fill_(math.log(sigma))
    optimizer = NaturalGradient(bnn, lr, data_size=size, momentum=0.0, scale_lr=rho)
    loc, xi = latent.loc.detach().clone(), torch.randn(3, 4, dtype=D, generator=seeded(1))
    gradient = torch.randn(3, 4, dtype=D, generator=seeded(2))  # of the mean negative log-likelihood, at loc + sigma xi
    latent.loc.grad, latent.log_scale.grad = gradient.clone(), gradient * sigma * xi
    (bnn.kl() / size).backward()
    optimizer.step()
    h = 1 / (size * sigma**2) - delta
    estimate = gradient * xi / sigma
    h_new = (1 - rho) * h + rho * estimate + rho**2 * (h - estimate) ** 2 / (2 * (h + delta))
    h0 = h + delta  # lr counts in units of the first curvature
    torch.testing.assert_close(latent.log_scale.exp(), 1 / (size * (h_new + delta)).sqrt(), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        latent.loc, loc - lr * h0 * (gradient + delta * loc) / (h_new + delta), rtol=1e-6, atol=1e-9
    )


def test_it_finds_the_exact_posterior_of_linear_regression():
    """With orthogonal inputs the posterior is a product of Normals, which the mean-field family holds."""
    size, noise = 64, 0.5
    x = torch.linalg.qr(torch.randn(size, 3, dtype=D, generator=seeded(1)))[0] * math.sqrt(size)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=D) + noise * torch.randn(size, 1, dtype=D, generator=seeded(2))
    precision = size / noise**2 + 1
    expected = (x.T @ y).T / noise**2 / precision
    bnn = bayesian(nn.Linear(3, 1, bias=False).to(D), "normal", "normal", forward="local")
    likelihood = likelihoods.Normal(noise)
    optimizer = NaturalGradient(bnn, 0.002, data_size=size, momentum=0.5, scale_lr=0.05)
    torch.manual_seed(3)
    for _ in range(400):
        optimizer.zero_grad()
        elbo(bnn, likelihood, x, y, data_size=size, last_layer_draws="exact").loss.backward()
        optimizer.step()
    latent = only(bnn)
    torch.testing.assert_close(latent.loc.detach(), expected, rtol=1e-6, atol=1e-8)
    found = latent.log_scale.detach().exp()
    torch.testing.assert_close(found, torch.full_like(found, precision**-0.5), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("name", "distribution"), [("laplace", stats.laplace), ("logistic", stats.logistic)])
def test_it_minimises_the_bound_of_other_families(name, distribution):
    """One weight, a Normal likelihood of one number: the minimum over (loc, scale) by scipy and by these steps."""
    target, noise, nodes = 0.7, 0.3, distribution.ppf((np.arange(4000) + 0.5) / 4000)

    def bound(parameters: np.ndarray) -> float:
        w = parameters[0] + math.exp(parameters[1]) * nodes
        entropy = float(distribution.entropy()) + parameters[1]
        return float(-entropy - np.mean(stats.norm(0, 1).logpdf(w)) - np.mean(stats.norm(w, noise).logpdf(target)))

    best = optimize.minimize(bound, [0.0, -1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13}).x
    bnn = bayesian(nn.Linear(1, 1, bias=False).to(D), name, "normal")
    latent = only(bnn)
    optimizer = NaturalGradient(bnn, 0.0, data_size=1, momentum=0.0, scale_lr=0.1)
    optimizer.param_groups[1]["lr"] = 0.02 * math.exp(-2 * (best[1] - float(latent.log_scale.detach())))
    xi = torch.tensor(nodes)
    for _ in range(800):
        optimizer.zero_grad()
        w = latent.loc.flatten() + latent.log_scale.flatten().exp() * xi
        (bnn.kl() + 0.5 * ((target - w) / noise).square().mean()).backward()
        optimizer.step()
    found = [float(latent.loc.detach()), float(latent.log_scale.detach())]
    assert found == pytest.approx(list(best), abs=2e-3)


@pytest.mark.parametrize(
    ("name", "expected"), [("normal", 2.0), ("laplace", 1.0), ("logistic", (3 + math.pi**2) / 9), ("lognormal", 2.0)]
)
def test_curvatures_of_the_log_scale(name, expected):
    assert mcrepar.posterior(name).noise.scale_information() == pytest.approx(expected, rel=1e-6)


def network(posterior: str = "normal", **options) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    return bayesian(net, posterior, **options)


def train(bnn, optimizer, steps, scheduler=None):
    x, y = torch.randn(32, 3, generator=seeded(1)), torch.randn(32, 1, generator=seeded(2))
    for _ in range(steps):
        optimizer.zero_grad()
        e = elbo(bnn, likelihoods.Normal(), x, y, data_size=32)
        e.loss.backward()
        nn.utils.clip_grad_norm_(bnn.parameters(), 1.0)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return float(e.loss.detach())


@pytest.mark.parametrize("options", [{}, {"forward": "flipout"}, {"structure": "rank1"}, {"posterior": "radial"}])
def test_it_trains_with_every_forward_and_scheduler(options):
    bnn = network(**options)
    optimizer = NaturalGradient(bnn, 0.05, data_size=32, scale_lr=1e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    torch.manual_seed(1)
    first = train(bnn, optimizer, 1)
    assert train(bnn, optimizer, 59, scheduler) < first
    assert all(bool(p.isfinite().all()) for p in bnn.parameters())


def test_a_state_dict_resumes_to_the_same_bits():
    bnn = network()
    optimizer = NaturalGradient(bnn, 0.05, data_size=32)
    torch.manual_seed(1)
    train(bnn, optimizer, 5)
    twin = copy.deepcopy(bnn)
    other = NaturalGradient(twin, 0.05, data_size=32)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for model, stepper in ((bnn, optimizer), (twin, other)):
        torch.manual_seed(2)
        train(model, stepper, 5)
    assert all(torch.equal(a, b) for a, b in zip(bnn.parameters(), twin.parameters(), strict=True))


def test_the_largest_change_of_a_scale():
    bnn = network()
    optimizer = NaturalGradient(bnn, 0.0, data_size=32, scale_lr=1e6, max_scale_step=0.02)
    before = [latent.log_scale.detach().clone() for latent in bnn.latents.values()]
    train(bnn, optimizer, 1)
    for old, latent in zip(before, bnn.latents.values(), strict=True):
        assert float((latent.log_scale.detach() - old).abs().max()) == pytest.approx(0.02, rel=1e-4)


def test_every_parameter_has_a_role():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 3))
    bnn = bayesian(net, "normal", prior("normal", scale="learned"))
    found = {name: roles(bnn)[p] for name, p in bnn.named_parameters()}
    ends = {".loc": "mean", ".log_scale": "scale"}
    for name, role in found.items():
        expected = "plain" if not name.startswith("latents.") else "prior" if ".learned." in name else None
        assert role == (expected or next(ends[end] for end in ends if name.endswith(end))), name
    assert set(found.values()) == {"mean", "scale", "prior", "plain"}


def test_groups_let_scales_move():
    """After 100 steps of Adam the scales have moved by up to 100 of their own learning rates, not of the means'."""
    for rate, least, most in ((None, 0.3, 1.01), (1e-3, 0.03, 0.101)):
        bnn = network()
        before = [latent.log_scale.detach().clone() for latent in bnn.latents.values()]
        torch.manual_seed(1)
        train(bnn, torch.optim.Adam(groups(bnn, 1e-3, rate)), 100)
        pairs = zip(before, bnn.latents.values(), strict=True)
        moved = max(float((latent.log_scale.detach() - old).abs().max()) for old, latent in pairs)
        assert least < moved < most
    assert sum(len(group["params"]) for group in groups(bnn, 1e-3)) == len(list(bnn.parameters()))


def test_weight_decay_reaches_what_is_not_random_only():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    bnn = mcrepar.bayesian(net, "normal", mcrepar.prior("normal", scale="learned"))
    role = mcrepar.optim.roles(bnn)
    optimizer = torch.optim.AdamW(groups(bnn, 1e-3), weight_decay=0.1)
    decayed = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decayed == {p: 0.1 if role[p] == "plain" else 0.0 for p in role}
    assert set(role.values()) == {"plain", "mean", "prior", "scale"}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NaturalGradient(network("gamma", signs="keep"), data_size=3), MethodError, "learns no location"),
        (
            lambda: NaturalGradient(network(mcrepar.posterior("horseshoe", slab=None), prior="cauchy"), data_size=3),
            MethodError,
            "Fisher information is infinite",
        ),
        (lambda: NaturalGradient(nn.Linear(2, 1), data_size=3), ParameterError, "nothing in it is Bayesian"),
        (lambda: NaturalGradient(network(), data_size=0), ParameterError, "data_size"),
        (lambda: NaturalGradient(network(), data_size=3, momentum=1.0), ParameterError, "momentum"),
        (lambda: NaturalGradient(network(), -1.0, data_size=3), ParameterError, "lr=-1"),
        (lambda: NaturalGradient(network(), "a", data_size=3), ParameterError, "lr='a'"),
        (lambda: NaturalGradient(network(), data_size=3, max_scale_step=-1.0), ParameterError, "max_scale_step=-1"),
    ],
)
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("rates", [{"lr": -1.0}, {"lr": math.nan}, {"lr": "1e-3"}, {"lr": 1e-3, "scale_lr": math.inf}])
def test_groups_refuse_what_is_no_learning_rate(rates):
    with pytest.raises(ParameterError, match="it is no learning rate"):
        mcrepar.optim.groups(mcrepar.bayesian(nn.Linear(2, 1)), **rates)


def pickled(pair):
    return pickle.loads(pickle.dumps(pair))  # noqa: S301


def saved_by_torch(pair):
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved_by_torch])
def test_a_copy_of_network_and_optimizer_goes_on_to_the_same_bits(copied):
    bnn = network()
    optimizer = NaturalGradient(bnn, 0.05, data_size=32, scale_lr=1e-3)
    torch.manual_seed(1)
    train(bnn, optimizer, 3)
    twin, other = copied((bnn, optimizer))
    kept = [p.detach().clone() for p in bnn.parameters()]
    torch.manual_seed(2)
    train(twin, other, 3)
    assert all(torch.equal(a, b) for a, b in zip(kept, bnn.parameters(), strict=True))
    torch.manual_seed(2)
    train(bnn, optimizer, 3)
    assert all(torch.equal(a, b) for a, b in zip(bnn.parameters(), twin.parameters(), strict=True))
    assert other.state_dict().keys() == {"state", "param_groups"}


def test_sparse_gradients_are_refused_before_anything_moves():
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)), select="1.*")
    optimizer = NaturalGradient(bnn, data_size=4)
    elbo(bnn, likelihoods.Normal(), torch.arange(4), torch.zeros(4, 1), data_size=4).loss.backward()
    before = copy.deepcopy(bnn.state_dict())
    with pytest.raises(MethodError, match=r"sparse gradient of a parameter of shape \(5, 3\).*sparse=False"):
        optimizer.step()
    assert all(torch.equal(t, before[name]) for name, t in bnn.state_dict().items())


def test_the_state_of_another_optimizer_is_refused():
    bnn = bayesian(nn.Linear(3, 1), "normal")
    optimizer = NaturalGradient(bnn, data_size=4)
    adam = torch.optim.Adam([{"params": group["params"]} for group in optimizer.param_groups])
    with pytest.raises(ParameterError, match=r"saved by another optimizer.*Use the state_dict of a NaturalGradient"):
        optimizer.load_state_dict(adam.state_dict())
    elbo(bnn, likelihoods.Normal(), torch.ones(4, 3), torch.zeros(4, 1), data_size=4).loss.backward()
    optimizer.step()
