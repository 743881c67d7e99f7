"""Initial values and priors of a random tensor. Statistical tests fix their seeds; |z| > 5 by chance: 6e-7."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import mcrepar
from mcrepar import POSTERIORS, MethodError, bayesian, kl, posterior, prior
from mcrepar.divergence.methods import METHODS, Method
from mcrepar.nn.random_tensor import RandomTensor, laid_out, median, random_tensors
from mcrepar.nn.select import places, spread
from tests.conftest import seeded, z_score

LOCATION = [n for n, row in POSTERIORS.items() if row.form.learned_loc and row.form.outer.name == "identity"]
POSITIVE = [n for n, row in POSTERIORS.items() if row.support.lower == 0]


def layer(inputs: int = 12, outputs: int = 9, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs).double()


def only(bnn: mcrepar.BayesianModule, key: str = "weight") -> RandomTensor:
    latent = bnn.latents[key]
    assert isinstance(latent, RandomTensor)
    return latent


def samples(latent: RandomTensor, count: int) -> Tensor:
    """(count, *shape) draws of the forward."""
    generator = seeded(7)
    with torch.no_grad():
        return torch.stack([latent.draw(generator) for _ in range(count)])


def half_line(name: str, **options) -> mcrepar.BayesianModule:
    return bayesian(layer(), posterior(name), "gamma" if name != "expgamma" else "pareto", **options)


# ---- start values


@pytest.mark.parametrize("start_std", [0.05, 0.5])
@pytest.mark.parametrize("name", [*LOCATION, "error"])
def test_start_std_is_the_standard_deviation_of_a_weight_over_the_spread_of_its_tensor(name, start_std):
    """Measured on 400 draws of the whole tensor, Radial's scale / sqrt(d) included."""
    net = layer()
    weight, std = net.weight.detach().clone(), start_std * net.weight.std().item()
    latent = only(bayesian(net, name, start_std=start_std))
    drawn = samples(latent, 400)
    squares = (drawn - weight).square().mean((1, 2))
    assert abs(z_score(squares, std**2)) < 5
    assert latent.posterior.stddev.detach() == pytest.approx(std, rel=1e-9)
    assert torch.equal(latent.mean(), weight)
    assert (z_score(drawn, weight).abs() < 5).all()


def test_a_horseshoe_without_a_variance_has_its_scale_for_it():
    net = layer()
    std = 0.05 * net.weight.std().item()
    latent = only(bayesian(net, posterior("horseshoe", slab=None), "cauchy"))
    assert latent.log_scale.exp().detach() == pytest.approx(std)
    assert torch.equal(latent.mean(), latent.loc)  # the median


@pytest.mark.parametrize("signs", ["keep", "positive"])
def test_lognormal_has_the_mean_and_the_standard_deviation(signs):
    net = layer()
    weight, std = net.weight.detach().clone(), 0.05 * net.weight.std().item()
    latent = only(bayesian(net, "lognormal", "lognormal", signs=signs))
    wanted = weight.abs().clamp_min(std)
    wanted = wanted * torch.where(weight < 0, -1.0, 1.0) if signs == "keep" else wanted
    torch.testing.assert_close(latent.mean().detach(), wanted)
    torch.testing.assert_close(latent.posterior.stddev.detach(), torch.full_like(weight, std))
    drawn = samples(latent, 400)
    assert (z_score(drawn, wanted).abs() < 5).all()
    assert torch.equal(drawn.sign().unique(), torch.tensor([-1.0, 1.0] if signs == "keep" else [1.0]).double())


@pytest.mark.parametrize("name", POSITIVE)
def test_positive_families_ask_what_becomes_of_signs(name):
    with pytest.raises(mcrepar.MethodError, match=r"weight: .*signs='keep'"):
        half_line(name)
    weight = layer().weight.detach()
    kept, dropped = (only(half_line(name, signs=signs)).mean().detach() for signs in ("keep", "positive"))
    large = weight.abs() > 0.05 * weight.std()
    torch.testing.assert_close(kept[large], weight[large])
    torch.testing.assert_close(dropped, kept.abs())


@pytest.mark.parametrize("name", POSITIVE)
def test_positive_weights_need_no_opt_in(name):
    net = layer()
    with torch.no_grad():
        for p in net.parameters():
            p.abs_()
    latent = only(bayesian(net, name, "gamma"))
    assert latent.signs is None
    assert (latent.draw() > 0).all()


def test_loggamma_has_the_network_s_means():
    weight = layer().weight.detach()
    torch.testing.assert_close(only(bayesian(layer(), "loggamma")).mean().detach(), weight)


@pytest.mark.parametrize("concentration", [0.5, 0.9, 1.0])
def test_the_median_stands_for_a_mean_that_does_not_exist(concentration):
    """The share of draws below it is 1/2; its own standard error is 0.0016, of which 5 are allowed."""
    latent = only(bayesian(layer(), posterior("inverse_gamma", concentration=concentration), "lognormal", signs="keep"))
    weight = layer().weight.detach()
    large = weight.abs() > 0.05 * weight.std()
    torch.testing.assert_close(latent.mean().detach()[large], weight[large])
    below = (samples(latent, 2000).abs() < latent.mean().detach().abs()).double().mean((1, 2))
    assert abs(below.mean() - 0.5) < 5 * below.std() / math.sqrt(2000) + 5 * 0.0016


def test_the_median_of_symmetric_noise_is_zero():
    defaults = {n: {p.name: p.default for p in POSTERIORS[n].fixed} for n in LOCATION}
    assert all(median(POSTERIORS[n].noise(defaults[n], 3)) == 0.0 for n in LOCATION)


def test_expgamma_starts_within_its_support():
    latent = only(half_line("expgamma", signs="keep"))
    assert (latent.draw().abs() >= 1).all()
    assert latent.mean().isfinite().all()
    with torch.no_grad():
        latent.log_scale += 5  # E exp(scale xi) is infinite now
    assert latent.mean().isfinite().all()


def test_a_tensor_without_spread_takes_that_of_its_neighbour_or_1():
    net = layer()
    nn.init.zeros_(net.bias)
    weight, bias = places(net)
    assert spread(bias) == spread(weight) == pytest.approx(net.weight.std().item())
    assert only(bayesian(net, "normal"), "bias").log_scale.exp().detach() == pytest.approx(0.05 * spread(weight))
    nn.init.zeros_(alone := layer().requires_grad_(True).weight)
    net = nn.ParameterList([alone])
    assert spread(places(net)[0]) == 1.0
    assert spread(places(nn.ParameterList([nn.Parameter(torch.tensor([-3.0]))]))[0]) == 3.0


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4, 5), (7,), ()])
def test_noise_has_the_layout_of_its_tensor(shape):
    reference = torch.empty(shape).transpose(0, -1) if len(shape) > 1 else torch.empty(shape)
    row = torch.arange(reference.numel()).double()
    out = laid_out(row, reference)
    assert out.shape == reference.shape
    assert out.stride() == reference.stride()
    assert out.data_ptr() == row.data_ptr()


@pytest.mark.parametrize("posterior", ["normal", "lognormal", "gamma"])
def test_second_derivatives_of_a_draw(posterior):
    """The draw as a function of its learned parameters, against finite differences."""
    latent = bayesian(layer(2, 2), posterior, "gamma" if posterior == "gamma" else "normal", signs="keep").latents[
        "weight"
    ]
    names = [name for name in ("loc", "log_scale") if getattr(latent, name) is not None]

    def draw(*values: Tensor) -> Tensor:
        moved = copy.copy(latent)
        moved._parameters = {**latent._parameters, **dict(zip(names, values, strict=True))}
        torch.manual_seed(1)
        return moved.draw().square()

    start = [getattr(latent, name).detach().clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(draw, start)
    assert torch.autograd.gradgradcheck(draw, start)


def test_a_gradient_penalty_and_parameters_that_change_before_the_backward():
    bnn = bayesian(nn.Sequential(layer(), nn.Tanh()), "normal", forward="weights")
    x = torch.ones(2, 12).double().requires_grad_()
    torch.manual_seed(1)
    before = torch.autograd.grad(bnn(x).sum(), list(bnn.parameters()))
    torch.manual_seed(1)
    out = bnn(x).sum()
    with torch.no_grad():
        for p in bnn.parameters():
            p.mul_(2)
    for a, b in zip(torch.autograd.grad(out, list(bnn.parameters())), before, strict=True):
        assert torch.equal(a, b)
    (slope,) = torch.autograd.grad(bnn(x).sum(), x, create_graph=True)
    slope.square().sum().backward()  # a gradient penalty
    assert all(p.grad.isfinite().all() and p.grad.any() for p in bnn.parameters())


def test_large_tensors_are_drawn_by_the_same_prior():
    """Above the size from which all cores draw: mean, variance and radius of 100 Radial draws."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        latent = RandomTensor("w", torch.zeros(600_000), 1.0, only(bayesian(layer(), "radial")).options)
        torch.manual_seed(0)
        radii = torch.stack([latent.noise().double().norm() for _ in range(100)])
    finally:
        torch.set_num_threads(threads)
    assert abs(z_score(radii, math.sqrt(2 / math.pi))) < 5
    assert abs(z_score(radii.square(), 1.0)) < 5


# ---- priors


def test_moped_centres_the_prior_on_the_network():
    net = layer()
    weight = net.weight.detach().clone()
    bnn = bayesian(net, "normal", prior("normal", scale=0.3), pretrained=True)
    latent = only(bnn)
    assert torch.equal(latent.prior(latent.posterior).values["loc"], weight)
    scale = latent.log_scale.exp()
    wanted = (-(scale / 0.3).log() + scale**2 / (2 * 0.3**2) - 0.5).sum()  # no distance is paid at the start
    torch.testing.assert_close(latent.divergence(), wanted)
    with torch.no_grad():
        latent.loc.add_(1.0)
    torch.testing.assert_close(latent.divergence(), wanted + weight.numel() / (2 * 0.3**2))


def test_learned_parameters_of_a_prior_are_one_per_tensor_and_get_the_gradient_of_the_kl():
    net = nn.Sequential(layer(), nn.Tanh(), layer(9, 4))
    bnn = bayesian(net, "normal", prior("normal", loc="learned", scale="learned"))
    assert [p.shape for n, p in bnn.named_parameters() if "learned" in n] == [torch.Size()] * 8
    kl(bnn).backward()
    for _, latent in bnn.latents.items():
        m, s = latent.loc.detach(), latent.log_scale.detach().exp()
        torch.testing.assert_close(latent.learned["loc"].grad, (0 - m).sum())  # at loc 0 and scale 1
        torch.testing.assert_close(latent.learned["scale"].grad, (1 - s**2 - m**2).sum())


@pytest.mark.parametrize("name", ["laplace", "student_t", "cauchy", "mixture", "logistic"])
def test_every_word_of_a_prior_has_a_gradient(name):
    words = {p.name: "learned" for p in mcrepar.PRIORS[name].parameters}
    bnn = bayesian(layer(4, 3), "normal", prior(name, **words), n_mc_iter=20)
    kl(bnn, generator=seeded(1)).backward()
    assert all(
        p.grad.isfinite().all() and p.grad != 0 for _, la in bnn.latents.items() for p in la.learned.parameters()
    )


@pytest.mark.parametrize("name", ["normal", "laplace", "logistic", "radial"])
@pytest.mark.parametrize("loc", [0.0, 0.1, "tied"])
def test_the_optimal_scale_minimises_the_kl(name, loc):
    bnn = bayesian(layer(), name, prior("normal", loc=loc, scale="optimal"), start_std=0.5)
    latent = only(bnn)
    q = latent.posterior
    found = latent.prior(q).values["scale"].item()
    fixed = q.loc.detach() if loc == "tied" else loc

    def divergence(log_scale: float) -> float:
        return mcrepar.kl_divergence(q, prior("normal", loc=fixed, scale=math.exp(log_scale)), method="exact").item()

    best = minimize_scalar(divergence, bounds=(-8, 3), method="bounded", options={"xatol": 1e-9})
    assert found == pytest.approx(math.exp(best.x), rel=1e-5)
    assert latent.divergence().item() == pytest.approx(best.fun, rel=1e-9)


def test_the_gradient_at_the_optimal_scale_is_that_of_the_minimum():
    """By the envelope theorem it need not go through the scale: compare with one that does."""
    latent = only(bayesian(layer(), "normal", prior("normal", scale="optimal")))
    leaves = [latent.loc, latent.log_scale]
    ours = torch.autograd.grad(latent.divergence(), leaves)
    q = latent.posterior
    scale = (q.loc.square() + q.scale.square()).mean().sqrt()
    through = (scale.log() - q.log_scale + (q.scale**2 + q.loc**2) / (2 * scale**2) - 0.5).sum()
    for a, b in zip(ours, torch.autograd.grad(through, leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_with_a_tied_mean_only_the_scale_pays():
    bnn = bayesian(layer(), "normal", prior("normal", loc="tied", scale=0.2))
    latent = only(bnn)
    before = latent.divergence()
    before.backward()
    assert not latent.loc.grad.any()
    scale = latent.log_scale.detach().exp()
    torch.testing.assert_close(latent.log_scale.grad, scale**2 / 0.2**2 - 1)
    with torch.no_grad():
        latent.loc.mul_(7.0)
    torch.testing.assert_close(latent.divergence(), before)


@pytest.mark.parametrize("method", ["stats", "repar", "stream", "direct"])
def test_words_work_with_every_method(method):
    """They agree with the exact value: the mean of 200 estimates, |z| < 5."""
    bnn = bayesian(layer(4, 3), "normal", prior("normal", loc="tied", scale="learned"))
    exact = kl(bnn, "exact").item()
    scales = torch.cat([latent.log_scale.detach().flatten().exp() for _, latent in bnn.latents.items()])
    assert exact == pytest.approx((scales.square() / 2 - scales.log() - 0.5).sum().item())  # the prior's scale is 1
    torch.manual_seed(3)
    values = torch.stack([kl(bnn, method, 30).detach() for _ in range(200)])
    assert abs(z_score(values, exact)) < 5


def test_a_torch_distribution_is_a_prior():
    a = bayesian(layer(), "normal", torch.distributions.Normal(0.0, 0.4))
    b = bayesian(layer(), "normal", prior("normal", scale=0.4))
    torch.testing.assert_close(kl(a), kl(b))


def test_tensors_of_a_prior_go_where_the_weights_are():
    bnn = bayesian(layer(), prior=prior("normal", scale=torch.full((), 0.5).double())).to("meta")
    latent = bnn.latents["weight"]
    assert latent.prior(latent.posterior).values["scale"].device.type == "meta"


@pytest.mark.parametrize("build", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_embeddings_with_a_padding_row(build):
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        bnn = bayesian(build(6, 3, padding_idx=2, sparse=sparse).double())
        bnn(torch.tensor([[1, 2, 2, 5]])).square().sum().backward()
        found.append([p.grad for p in bnn.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_a_network_sees_methods_that_are_added_after_it_was_made(monkeypatch):
    bnn = bayesian(nn.Linear(3, 2))
    kl(bnn, method="exact")  # its plans are made
    refusal = MethodError("a method", "a test refuses it", "another")
    row = Method("exact, but refused", METHODS["exact"].run, lambda plan, name: refusal, samples=False, replays=False)
    monkeypatch.setitem(METHODS, "refused", row)
    with pytest.raises(MethodError, match="a test refuses it"):
        kl(bnn, method="refused")


def test_a_replica_whose_parameters_are_attributes_keeps_its_location():
    bnn = bayesian(nn.Linear(3, 2), initial_std=1e-6)
    tensor = next(iter(random_tensors(bnn).values()))
    replica = tensor._replicate_for_data_parallel()
    replica._parameters = {}
    for name, value in tensor._parameters.items():
        setattr(replica, name, None if value is None else value.detach())
    torch.testing.assert_close(replica.draw(), tensor.mean().detach(), atol=1e-4, rtol=0)
