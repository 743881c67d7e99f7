"""A diagnosis tells a posterior that was not trained, one that has collapsed, and one that learned (float64)."""

from __future__ import annotations

import dataclasses
import math
import warnings

import pytest
import torch
from scipy import integrate, optimize
from torch import Tensor, nn

import mcrepar
from mcrepar import CollapseWarning, ParameterError, bayesian, posterior, prior
from mcrepar.nn.diagnose import excess
from tests.conftest import seeded


def network(**options) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    return bayesian(net, **({"posterior": "normal", "prior": "normal", "forward": "weights"} | options))


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


X = randn(8, 20)


def filled(bnn: mcrepar.BayesianModule, mean: float, std: float, spread: float = 0.0) -> mcrepar.BayesianModule:
    """Means of this size, standard deviations around this one."""
    with torch.no_grad():
        for k, latent in enumerate(latent for random in bnn.latents.values() for latent in random.tensors):
            latent.loc.copy_(mean * randn(*latent.loc.shape, seed=k))
            latent.log_scale.copy_(math.log(std) + spread * randn(*latent.loc.shape, seed=k + 50))
    return bnn


# ---- the numbers


def test_every_number_of_a_normal_posterior_and_prior():
    bnn = filled(network(), mean=0.3, std=0.2, spread=0.4)
    found = bnn.diagnose()
    assert [t.name for t in found.tensors] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for t, latent in zip(found.tensors, bnn.latents.values(), strict=True):
        m, s = latent.loc.detach(), latent.log_scale.detach().exp()
        kl = 0.5 * (m * m + s * s - 1) - s.log()
        assert t.weights == m.numel()
        assert t.kl == pytest.approx(float(kl.sum()), rel=1e-9)
        assert t.kl_per_weight == pytest.approx(float(kl.mean()), rel=1e-9)
        assert t.signal_to_noise == pytest.approx(float((m.abs() / s).median()))
        assert t.noisy == pytest.approx(float((m.abs() < s).double().mean()))
        assert t.at_prior == pytest.approx(float((kl < 0.01).double().mean()))
        assert t.effective == pytest.approx(float((s * s / (m * m + s * s)).sum()))
    assert found.kl == pytest.approx(float(bnn.kl().detach()))
    assert found.weights == sum(p.numel() for n, p in bnn.named_parameters() if n.endswith("loc"))


def test_how_far_scales_moved_is_told_also_after_loading(tmp_path):
    bnn = network(start_std=0.1)
    with torch.no_grad():
        for latent in bnn.latents.values():
            latent.log_scale.add_(0.7 + 0.3 * randn(*latent.log_scale.shape))
    mcrepar.save(bnn, tmp_path / "bnn")
    loaded, stated = mcrepar.load(tmp_path / "bnn", network().to_module()), network(start_std=0.3)
    stated.load_state_dict(bnn.state_dict())
    for net in (bnn, loaded, stated):
        first = net.diagnose().tensors[0]
        assert first.moved == pytest.approx(0.7, abs=0.05)  # 600 weights: 0.3 / sqrt(600) is a standard error of 0.012
        assert first.spread == pytest.approx(0.3, abs=0.05)
        assert not first.untrained


def test_where_a_stored_network_does_not_tell_it_is_not_known():
    bnn = network()
    for latent in bnn.latents.values():
        latent.initial = None
    found = bnn.diagnose()
    assert (found.moved, found.untrained, found.advice) == (None, False, ())
    assert "not known" in str(found)
    assert "?" in found.table


@pytest.mark.parametrize("name", ["normal", "laplace", "cauchy", "mixture", "hierarchical"])
def test_the_excess_is_the_kl_above_the_smallest(name):
    """Against scipy's adaptive quadrature and minimisation; 5e-4 is the error of the grids at a kink."""
    p = prior(name)

    def kl(mean: float, std: float) -> float:
        def integrand(w: float) -> float:
            density = math.exp(-0.5 * ((w - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
            return density * float(p.log_prob(torch.tensor(w, dtype=torch.float64)))

        low, high = mean - 9 * std, mean + 9 * std
        cross = integrate.quad(integrand, low, high, points=sorted({0.0, mean}), limit=200)[0]
        return float(p.density.penalty) * std**2 - cross - 0.5 * math.log(2 * math.pi * math.e * std**2)

    best = optimize.minimize_scalar(lambda u: kl(0.0, math.exp(u)), bounds=(-4, 2), options={"xatol": 1e-3})
    for mean, std in ((0.0, math.exp(best.x)), (0.4, 0.5 * math.exp(best.x)), (0.1, 2.0)):
        q = posterior("normal", loc=torch.full((1,), mean).double(), scale=torch.full((1,), std).double())
        assert float(excess(q, p)) == pytest.approx(kl(mean, std) - best.fun, abs=5e-4)


def test_the_constant_of_a_hierarchical_prior_is_no_information():
    p = prior("hierarchical", scale=0.05, loc_scale=0.3)
    assert p.least_kl() == pytest.approx(-0.5 * math.log(0.05**2 / (0.05**2 + 0.3**2)))
    bnn = filled(network(prior=p), mean=0.0, std=0.05)
    with pytest.warns(CollapseWarning):
        found = bnn.diagnose()
    assert found.kl == pytest.approx(0, abs=1e-9)
    assert found.at_prior == 1
    assert float(bnn.kl().detach()) > 1000  # which has it
    assert found.kl + sum(t.constant for t in found.tensors) == pytest.approx(float(bnn.kl().detach()), rel=1e-5)
    assert "above the least that the prior allows" in str(found)


def test_a_batch_that_is_not_finite_is_refused():
    with pytest.raises(ParameterError, match=r"diagnose\(x\): the output is not finite"):
        bayesian(nn.Linear(2, 3)).diagnose(torch.full((4, 2), math.nan), likelihood="categorical")


def test_a_prior_over_whole_tensors_and_noise_on_the_half_line():
    assert network(prior="radial").diagnose().at_prior is None
    torch.manual_seed(0)
    q = prior("gamma", concentration=2.0, rate=3.0)
    bnn = bayesian(nn.Linear(40, 5).double(), posterior("gamma", concentration=2.0), q, signs="keep")
    with torch.no_grad():
        for latent in bnn.latents.values():
            latent.log_scale.fill_(-math.log(3.0))  # the prior itself
            latent.log_scale.view(-1)[:2] += 1.0
    found = bnn.diagnose().tensors
    assert [round(t.weights * (1 - t.at_prior)) for t in found] == [2, 2]


def test_factors_are_diagnosed_one_by_one():
    bnn = network(structure="rank1", members=2)
    found = bnn.diagnose()
    assert [t.weights for t in found.tensors] == [30, 30, 20, 20, 3, 3, 30, 30]
    assert found.kl == pytest.approx(float(bnn.kl().detach()))
    assert not filled(bnn, mean=0.0, std=0.1).diagnose().collapsed  # the weights themselves are not random


# ---- the verdicts


def trained(bnn: mcrepar.BayesianModule, steps: int, examples: int = 200, **options) -> mcrepar.BayesianModule:
    x = randn(examples, 20)
    y = (x @ randn(20, 3, seed=2)).argmax(1)
    optimizer = torch.optim.Adam(bnn.parameters(), **options)
    torch.manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        mcrepar.elbo(bnn, "categorical", x, y, data_size=examples).loss.backward()
        optimizer.step()
    return bnn


def test_scales_that_adam_moved_as_far_as_it_could_are_not_trained():
    found = trained(network(), 100, lr=2e-3).diagnose()
    assert found.moved == pytest.approx(0.2, abs=0.01)  # 100 steps of 0.002: Adam's ceiling
    assert found.untrained
    assert "have all moved by the same +0.20" in found.advice[0]
    assert "mcrepar.optim.groups" in str(found)


def test_scales_that_never_moved_and_scales_that_learned():
    assert "are where they began" in network().diagnose().advice[0]
    found = filled(network(), mean=1.0, std=0.1, spread=0.5).diagnose()
    assert not found.untrained
    assert found.advice == ()
    assert str(found).endswith("Nothing stands out.")


def test_a_prior_that_follows_the_posterior_collapses_it_and_that_is_said():
    """scale='optimal' at beta = 1 with little data: means go to 0, and prior and posterior are the same."""
    bnn = trained(network(prior=prior("normal", scale="optimal"), start_std=0.5), 300, examples=10, lr=2e-2)
    with pytest.warns(CollapseWarning, match="collapsed to the prior.*Use a smaller beta") as seen:
        found = bnn.diagnose()
    assert seen[0].filename == __file__
    assert found.collapsed
    assert found.at_prior > 0.9


def test_a_tied_mean_is_no_collapse():
    """The prior's mean follows the posterior's, so all weights are at the prior, and the means carry all there is."""
    bnn = filled(network(prior=prior("normal", loc="tied", scale=0.1)), mean=1.0, std=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bnn.diagnose()
    assert found.at_prior == 1
    assert not found.collapsed


def test_one_tensor_at_the_prior_is_named():
    bnn = filled(network(), mean=1.0, std=0.1, spread=0.5)
    with torch.no_grad():
        bnn.latents["2/weight"].loc.zero_()
        bnn.latents["2/weight"].log_scale.zero_()
    assert bnn.diagnose().advice == ("All weights of 2.weight are at the prior: these tensors carry noise alone.",)


# ---- a batch


@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_the_mutual_information_is_that_of_a_prediction(name):
    bnn = filled(network(), mean=0.5, std=0.3)
    found = bnn.diagnose(X, likelihood=name, draws=16, generator=seeded(3)).mutual_information
    p = mcrepar.predict(bnn, X, draws=16, likelihood=name, generator=seeded(3))
    assert found == pytest.approx(float(p.mutual_information.reshape(8, -1).sum(1).mean()), rel=1e-6)


def test_the_mutual_information_of_numbers_is_that_of_normals():
    bnn = filled(network(), mean=0.5, std=0.3)
    likelihood = mcrepar.likelihoods.Normal(0.5)
    found = bnn.diagnose(X, likelihood=likelihood, draws=16, generator=seeded(3)).mutual_information
    p = mcrepar.predict(bnn, X, draws=16, likelihood=likelihood, generator=seeded(3))
    assert found == pytest.approx(float(0.5 * torch.log1p(p.epistemic / p.aleatoric).sum(1).mean()), rel=1e-6)


def test_a_batch_without_a_likelihood_is_refused():
    with pytest.raises(ParameterError, match="Use diagnose"):
        network().diagnose(X)


def test_it_changes_nothing():
    bnn = network(kl_method="repar", n_mc_iter=10).train()
    state, before = torch.random.get_rng_state(), {n: t.clone() for n, t in bnn.state_dict().items()}
    found = bnn.diagnose(X, likelihood="categorical", draws=2, generator=seeded(1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in bnn.state_dict().items())
    assert bnn.training
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.tensors = ()
    assert len(found.table.splitlines()) == 5
