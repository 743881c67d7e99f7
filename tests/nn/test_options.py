"""What bayesian is asked: every refusal has its three parts and leaves the network alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributions as td
from torch import nn

import mcrepar
from mcrepar import MethodError, ParameterError, bayesian, kl, prior


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Embedding(5, 2, padding_idx=0))


WRONG = {
    "start_std of a word": ({"start_std": "small"}, "initial_std='small': it is not a positive number"),
    "start_std of 0": ({"start_std": 0.0}, "initial_std=0.0: it is not a positive number"),
    "infinite start_std": ({"start_std": math.inf}, "initial_std=inf"),
    "start_std of NaN": ({"start_std": math.nan}, "initial_std=nan"),
    "start_std of True": ({"start_std": True}, "initial_std=True"),
    "start_std of a tensor": ({"start_std": torch.tensor(0.1)}, "initial_std=tensor"),
    "start_std of a part": ({"overrides": {"0": {"start_std": -1}}}, "initial_std=-1"),
    "pretrained of a word": ({"pretrained": "yes"}, "pretrained='yes': it is not yes or no. Use True or False"),
    "pretrained of None": ({"pretrained": None}, "pretrained=None"),
    "select of a number": ({"select": 3}, "select=3.*neither a function nor patterns. Use names such as '0.weight'"),
    "select of numbers": ({"select": [0, 2]}, "neither a function nor patterns"),
    "overrides of a list": ({"overrides": ["0"]}, "it is not a dict of dicts"),
    "overrides of a word": ({"overrides": {"0": "laplace"}}, "it is not a dict of dicts"),
    "a wide prior": (
        {"select": "0.weight", "prior": prior("normal", scale=torch.ones(4, 3))},
        r"0.weight: KL\(normal \|\| normal\) with the prior's scale: its shape \(4, 3\) does not broadcast .* \(3, 4\)",
    ),
    "a prior for one of two": ({"prior": prior("normal", loc=torch.zeros(3, 4))}, r"0.bias: .*\(3, 4\) .* \(3,\)"),
    "a prior of a part": (
        {"overrides": {"0.bias": {"prior": prior("laplace", scale=torch.ones(4))}}},
        r"0.bias: KL\(normal \|\| laplace\)",
    ),
    "a foreign prior": (
        {"select": "0.weight", "prior": td.Gumbel(torch.zeros(4, 3), torch.ones(4, 3))},
        r"0.weight: .* the prior has shape \(4, 3\), the weights \(3, 4\)",
    ),
    "a double prior": (
        {"select": "0.weight", "prior": prior("normal", scale=torch.ones(3, 4).double())},
        "it is torch.float64, the weights torch.float32. Use one dtype",
    ),
    "a prior that was changed": (
        {"select": "0.weight", "prior": prior("normal").filled(scale=torch.tensor(-1.0))},
        "scale must be positive and finite, but is -1",
    ),
    "a prior of the padding too": (
        {"select": "2.weight", "prior": prior("normal", loc=torch.zeros(5, 2))},
        r"2.weight: .*\(5, 2\) does not broadcast to the weights' \(4, 2\)",
    ),
}


@pytest.mark.parametrize("ask", WRONG.values(), ids=list(WRONG))
def test_a_wrong_option_is_refused_in_three_parts(ask):
    options, words = ask
    net = network()
    weights = list(net.parameters())
    with pytest.raises(ParameterError, match=words) as found:
        bayesian(net, **options)
    assert all((found.value.asked, found.value.why, found.value.instead))
    assert all(a is b for a, b in zip(net.parameters(), weights, strict=True))


def test_what_fits_is_accepted():
    torch.manual_seed(0)
    for fitting in (
        {"select": "0.weight", "prior": prior("normal", loc=torch.zeros(3, 1), scale=torch.ones(4))},
        {"select": "2.weight", "prior": prior("normal", loc=torch.zeros(4, 2))},
        {"select": "0.weight", "prior": td.Gumbel(torch.zeros(3, 4), torch.ones(3, 4))},
        {"prior": prior("normal", scale=torch.tensor(0.5, dtype=torch.float64))},
        {"prior": prior("normal", loc="tied", scale="learned"), "start_std": np.float32(0.1)},
        {"prior": prior("normal", scale="optimal"), "pretrained": True, "start_std": 1},
    ):
        assert kl(bayesian(network(), **fitting)) > 0


def build(**options):
    return lambda: bayesian(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), **options)


REFUSED = {
    "no network": (lambda: bayesian("net"), ParameterError, "not an nn.Module"),
    "no parameters": (lambda: bayesian(nn.ReLU()), ParameterError, "no parameters"),
    "nothing selected": (build(select=lambda name, p: False), ParameterError, "selects no trainable parameter"),
    "unknown pattern": (build(select="head*"), ParameterError, "no parameter matches"),
    "nothing trainable": (lambda: bayesian(nn.Linear(2, 2).requires_grad_(False)), ParameterError, "are frozen"),
    "norm layers only": (lambda: bayesian(nn.BatchNorm1d(3)), ParameterError, "no trainable"),
    "lazy": (lambda: bayesian(nn.LazyLinear(3)), ParameterError, "no shape yet"),
    "twice": (lambda: bayesian(build()()), ParameterError, "Bayesian already"),
    "part of it": (lambda: bayesian(nn.Sequential(build()(), nn.Linear(2, 2))), ParameterError, "Bayesian already"),
    "unknown forward": (build(forward="dropout"), MethodError, "no such forward"),
    "unknown method": (build(kl_method="magic"), MethodError, "no method has this name"),
    "M with exact": (build(kl_method="exact", n_mc_iter=10), MethodError, "draws nothing"),
    "signs": (build(signs="flip"), ParameterError, "no such choice"),
    "no posterior": (build(posterior=3), ParameterError, "no noise"),
    "signs of the weights": (build(posterior="gamma", prior="gamma"), MethodError, "signs='keep'"),
    "support": (build(posterior="normal", prior="gamma"), mcrepar.SupportMismatchError, "0.weight: "),
    "pretrained without loc": (build(prior="horseshoe", pretrained=True), MethodError, "no loc to centre"),
    "unknown family": (build(posterior="nromal"), mcrepar.UnknownFamilyError, "normal"),
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=list(REFUSED))
def test_refused(ask):
    call, error, words = ask
    with pytest.raises(error, match=words):
        call()


def test_a_refused_network_is_as_it_was():
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    weights = list(net.parameters())
    with pytest.raises(MethodError):
        bayesian(net, overrides={"1": {"posterior": "gamma", "prior": "gamma"}})
    assert all(a is b for a, b in zip(net.parameters(), weights, strict=True))
    assert net(torch.zeros(1, 4)).shape == (1, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["0.bias", "2.weight"])
def test_weights_that_are_not_finite_are_refused_by_name(value, place):
    net = network()
    with torch.no_grad():
        net.get_parameter(place)[-1] = value
    weights = list(net.parameters())
    with pytest.raises(ParameterError, match=rf"bayesian\(net\) with {place}: it holds NaN or inf. Use a network"):
        bayesian(net)
    assert all(a is b for a, b in zip(net.parameters(), weights, strict=True))


def test_an_optimizer_that_was_built_before_is_refused():
    """At its next step: it would train nothing. One that was thrown away is in nobody's way."""
    net = nn.Linear(4, 3)
    optimizer, other = (torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD([torch.zeros(1)], lr=0.1))
    bnn = bayesian(net)
    with pytest.raises(ParameterError, match=r"built before bayesian\(net\).*optimizer of bnn\.parameters\(\)"):
        optimizer.step()
    other.step()
    torch.optim.SGD(bnn.parameters(), lr=0.1).step()


def test_start_std_is_a_spelling_of_initial_std():
    def scales(**options):
        torch.manual_seed(0)
        return [t.log_scale for t in bayesian(network(), **options).latents.values()]

    wanted = scales(initial_std=0.2, overrides={"0": {"initial_std": 0.3}})
    found = scales(start_std=0.2, overrides={"0": {"start_std": 0.3}})
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("layer", [nn.Embedding(5, 2, max_norm=1.0), nn.EmbeddingBag(5, 2, max_norm=1.0)], ids=repr)
def test_a_table_that_is_rescaled_in_place_is_refused(layer):
    """Its backward fails, and a frozen mean would be rescaled for good."""
    with pytest.raises(
        ParameterError, match=r"^1\.weight: .*with max_norm=1\.0 rescales it in place\. Use max_norm=None"
    ):
        bayesian(net := nn.Sequential(nn.Linear(2, 2), layer))
    assert isinstance(net[1].weight, nn.Parameter)
    bayesian(net, select="0")


def test_factors_of_a_table_that_is_rescaled_in_place_train():
    net = nn.Sequential(nn.Embedding(5, 2, max_norm=1.0), nn.Linear(2, 3))
    bnn, y = bayesian(net, structure="rank1"), torch.tensor([0, 1, 2])
    mcrepar.elbo(bnn, "categorical", torch.tensor([0, 3, 3]), y, data_size=3).loss.backward()
    assert all(p.grad is not None for p in bnn.parameters())


AWAY = [prior("normal", scale=0.1), prior("hierarchical"), td.Normal(0.0, 0.3)]
NEAR = [prior("normal", loc=1.0, scale=0.1), prior("hierarchical", loc_scale=3.0), prior("normal"), "normal", None]


@pytest.mark.parametrize("p", AWAY, ids=repr)
def test_a_prior_around_0_over_factors_is_warned_of(p):
    with pytest.warns(UserWarning, match=r"nats below that near 0\.0.* loc=1\.0, scale=0\.1") as seen:
        bayesian(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), "normal", p, structure="rank1")
    assert len(seen) == 1


@pytest.mark.parametrize("p", NEAR, ids=repr)
def test_a_prior_around_1_over_factors_is_not_warned_of(p):
    bayesian(nn.Linear(3, 2), "normal", p, structure="rank1")


def test_a_prior_over_weights_may_be_around_0():
    bayesian(nn.Linear(3, 2), "normal", AWAY[0])
