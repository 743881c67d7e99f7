"""Ten points in which other libraries are wrong. Seeds are fixed; |z| > 5 by chance: 6e-7."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar import POSTERIORS, bayesian, kl, prior
from tests.conftest import example_posterior, seeded, z_score


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def test_1_the_kl_is_a_sum():
    """Over weights, tensors and layers: never a mean, and one estimate whatever the number of draws."""
    bnn = bayesian(mlp(), "normal", prior("normal", scale=0.5))
    by_hand = 0.0
    for _, latent in bnn.latents.items():
        m, s = latent.loc.detach(), latent.log_scale.detach().exp()
        by_hand += (math.log(0.5) - s.log() + (s**2 + m**2) / (2 * 0.25) - 0.5).sum().item()
    assert kl(bnn).item() == pytest.approx(by_hand, rel=1e-12)
    twice = nn.Sequential(bnn, bayesian(mlp(), "normal", prior("normal", scale=0.5)))
    assert kl(twice).item() == pytest.approx(2 * by_hand, rel=1e-12)
    for draws in (10, 1000):
        estimates = torch.stack([kl(bnn, "repar", draws, seeded(k)).detach() for k in range(100)])
        assert abs(z_score(estimates, by_hand)) < 5


SAME = [name for name, row in POSTERIORS.items() if row.same_prior is not None]


@pytest.mark.parametrize("name", SAME)
def test_2_the_kl_of_a_distribution_to_itself_is_zero_and_to_others_positive(name):
    """Exactly where there is a closed form, else the mean of 100 estimates."""
    fixed = {"concentration": 1.0} if name == "expgamma" else {}
    q, other = (example_posterior(name, 50, seed=seed, **fixed) for seed in (0, 1))
    family, parameters = q.row.same_prior(q)
    p = prior(family, **parameters)
    if "exact" in mcrepar.explain(q, p).methods:
        assert mcrepar.kl_divergence(q, p).item() == pytest.approx(0, abs=1e-6)
    else:
        estimates = [mcrepar.kl_divergence(q, p, n_mc_iter=50, generator=seeded(k)) for k in range(100)]
        assert abs(z_score(torch.stack(estimates), 0.0)) < 5
    assert mcrepar.kl_divergence(other, p, generator=seeded(1)).item() > 1e-3


def test_2_a_network_that_is_its_prior_pays_nothing():
    bnn = bayesian(mlp(), "normal", prior("normal", loc="tied", scale="optimal"))
    assert kl(bnn).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("forward", ["weights", "local", "flipout", "per_example"])
def test_3_two_forwards_and_one_backward_are_the_sum_of_two(forward):
    bnn, x = bayesian(mlp(), "normal", forward=forward, start_std=0.5), randn(6, 4)
    leaves = list(bnn.parameters())

    def losses():
        yield bnn(x).square().sum()
        yield (3 * bnn(-x)).tanh().sum()

    torch.manual_seed(1)
    together = torch.autograd.grad(sum(losses()), leaves)
    torch.manual_seed(1)
    one, two = (torch.autograd.grad(loss, leaves) for loss in losses())
    for total, a, b in zip(together, one, two, strict=True):
        torch.testing.assert_close(total, a + b, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("size", [1, 16, 256])
def test_4_the_spread_of_the_output_does_not_depend_on_the_batch(size):
    """The authors' Radial layer: 0.27, 0.068 and 0.017; here the one value that the posterior says."""
    torch.manual_seed(0)
    bnn, x = bayesian(nn.Linear(20, 10, bias=False).double(), "radial"), randn(1, 20)
    q = bnn.latents["weight"].posterior
    wanted = (x**2 @ (q.scale.detach() ** 2 / 200).T).squeeze()
    torch.manual_seed(2)
    with torch.no_grad():
        out = torch.stack([bnn(x.expand(size, 20))[-1] for _ in range(1000)])
    assert (z_score((out - (x @ q.loc.T).detach()).square(), wanted).abs() < 5).all()


def test_5_flipout_without_noise_is_deterministic():
    net, x = mlp(), randn(6, 4)
    wanted = net(x).detach()
    bnn = bayesian(net, "normal", forward="flipout", start_std=1e-12)
    for _ in range(3):
        torch.testing.assert_close(bnn(x), wanted, atol=1e-9, rtol=1e-9)


def test_5_radial_really_is_radial():
    """The norm of xi over a tensor is |N(0, 1)|, whatever its size; that of Normal noise is sqrt(d)."""
    torch.manual_seed(0)
    bnn = bayesian(nn.Linear(30, 20).double(), "radial")
    latent, generator = bnn.latents["weight"], seeded(1)
    with torch.no_grad():
        moved = torch.stack([bnn.draw(generator)["weight"] - latent.loc for _ in range(1000)])
    radius = (moved / latent.log_scale.exp()).flatten(1).norm(dim=1).detach()
    assert abs(z_score(radius, math.sqrt(2 / math.pi))) < 5
    assert abs(z_score(radius**2, 1.0)) < 5
    assert abs(z_score(radius**4, 3.0)) < 5


@pytest.mark.parametrize("name", ["normal", "laplace", "logistic", "radial", "lognormal", "gamma", "wald"])
def test_6_the_kl_is_of_the_posterior_that_the_forward_draws_from(name):
    """E [log q(w) - log p(w)] over the forward's own draws is the KL: one tensor, 2000 draws."""
    torch.manual_seed(0)
    half = POSTERIORS[name].support.lower >= 0
    p = prior("gamma" if half else "normal")
    bnn = bayesian(nn.Linear(4, 3, bias=False).double(), name, p, start_std=0.3, signs="keep" if half else "")
    latent, generator = bnn.latents["weight"], seeded(1)
    with torch.no_grad():
        w = torch.stack([bnn.draw(generator)["weight"] for _ in range(2000)])
        w = w.abs() if half else w
        log_q = latent.posterior.log_prob(w)
        ratio = log_q.flatten(1).sum(1) - p.log_prob(w).flatten(1).sum(1) if log_q.dim() > 1 else (
            log_q - p.log_prob(w).flatten(1).sum(1))  # fmt: skip
    assert abs(z_score(ratio, kl(bnn).item())) < 5


def test_7_copies_restore_priors_and_options_and_store_nothing_twice(tmp_path):
    options = {"prior": prior("student_t", df=3.0, scale="learned"), "kl_method": "stream", "n_mc_iter": 20}
    bnn, x = bayesian(mlp(), "radial", **options), randn(6, 4)
    bnn(x)
    with torch.no_grad():
        for p in bnn.parameters():
            p.add_(0.1)
    other = bayesian(mlp(), "radial", kl_method="stream", n_mc_iter=20)  # and the prior comes with the state
    other.load_state_dict(bnn.state_dict())
    mcrepar.save(bnn, tmp_path / "bnn")
    wanted = kl(bnn, generator=seeded(1))
    for twin in (other, copy.deepcopy(bnn), mcrepar.load(tmp_path / "bnn", mlp())):
        assert torch.equal(kl(twin, generator=seeded(1)), wanted)
    plain = sum(p.numel() for p in mlp().parameters())
    assert sum(p.numel() for p in bnn.parameters()) == 2 * plain + 4  # and one learned scale per tensor
    assert not list(bnn.buffers())
    assert not list(bnn.net.parameters())


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", groups=2, dilation=1), (3, 2, 5, 5)),
        (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), (3, 2, 5, 5)),
        (lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True), (3, 5, 4)),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (3, 5, 4)),
    ],
)
def test_8_conversion_keeps_options_and_is_stochastic_in_eval(layer, shape):
    torch.manual_seed(0)
    plain = layer().double().eval()
    bnn, x = bayesian(copy.deepcopy(plain)).eval(), randn(*shape)

    def output(module: nn.Module) -> Tensor:
        out = module(x)
        return out[0] if isinstance(out, tuple) else out

    with torch.no_grad():
        with bnn.frozen("mean"):
            torch.testing.assert_close(output(bnn), output(plain))
        assert not torch.equal(output(bnn), output(bnn))
    once = sum(latent.divergence().item() for _, latent in bnn.latents.items())
    assert kl(bnn).item() == pytest.approx(once, rel=1e-9)
    random = [n for n, _ in plain.named_parameters() if "norm" not in n]
    assert sorted(name for names in bnn.names.values() for name in names) == sorted(random)


def test_9_batchnorm_trains():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).double())
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
    x = randn(32, 4)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = mcrepar.elbo(bnn, mcrepar.likelihoods.Normal(1.0), x, x[:, :1], data_size=10_000).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert bnn.net[1].num_batches_tracked == 60


def test_10_a_scale_is_a_standard_deviation_and_is_called_so():
    reference = torch.distributions.Normal(0.0, 0.3)
    w = torch.linspace(-1, 1, 9)
    torch.testing.assert_close(prior("normal", scale=0.3).log_prob(w), reference.log_prob(w))
    q = mcrepar.posterior("normal", loc=torch.zeros(3), scale=torch.full((3,), 0.3))
    torch.testing.assert_close(q.stddev, torch.full((3,), 0.3))
    with pytest.raises(mcrepar.McreparError):
        prior("normal", variance=0.09)
