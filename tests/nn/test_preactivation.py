"""The distribution of the last layer's output: found by a forward, drawn like the weights (|z| > 5 by chance: 6e-7)."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar.errors import MethodError, ParameterError
from mcrepar.likelihoods import Normal
from mcrepar.nn.preactivation import AffineOutput, Preactivation, capture
from mcrepar.objective import elbo
from tests.conftest import seeded, z_score


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def layer(posterior: str = "normal", inputs: int = 4, outputs: int = 3, **options: Any) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    bias = options.pop("bias", True)
    return mcrepar.bayesian(nn.Linear(inputs, outputs, bias).double(), posterior, start_std=0.8, **options)


def preactivation_of(bnn: mcrepar.BayesianModule, x: Tensor) -> Preactivation:
    return capture([bnn], lambda: bnn(x))[1]


CASES = {
    "normal": {},
    "radial": {"posterior": "radial"},
    "radial without bias": {"posterior": "radial", "bias": False},
    "mixed": {"posterior": "radial", "overrides": {"bias": {"posterior": "normal"}}},
    "fixed bias": {"posterior": "radial", "select": "weight"},
    "random bias only": {"select": "bias"},
}


@pytest.mark.parametrize("options", CASES.values(), ids=list(CASES))
def test_draws_are_those_of_the_weights(options):
    """Means, squares and products of squares of the outputs at one input, from 20000 draws and 2000 of the weights."""
    bnn, x, count = layer(**options), randn(1, 4), 20_000
    preactivation = preactivation_of(bnn, x)
    zetas = preactivation.draw(count, seeded(1))
    fast = preactivation.loc + sum(p.spread * zeta for p, zeta in zip(preactivation.parts, zetas, strict=True))
    torch.manual_seed(2)
    with torch.no_grad():
        slow = torch.stack([bnn(x) for _ in range(count // 10)])
    for statistic in (lambda u: u, lambda u: u * u, lambda u: u[:, :1] ** 2 * u[:, 1:] ** 2):
        a, b = (statistic((u - preactivation.loc).detach()[:, 0]) for u in (fast, slow))
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() < 5 * error).all()
    deviations = (fast - preactivation.loc).detach().square()
    assert (z_score(deviations, preactivation.central_means(None)[1].detach()).abs() < 5).all()


@pytest.mark.parametrize("draws", [1, 5, 30, 1000])
@pytest.mark.parametrize("options", CASES.values(), ids=list(CASES))
def test_deviations_have_their_expectations_and_variance(options, draws):
    """Under any M: E mean (u - a) = 0 with the variance b^2 / M, E mean (u - a)^2 = b^2 E zeta^2."""
    bnn = layer(**options)
    preactivation = preactivation_of(bnn, randn(1, 4).expand(8000, 4))
    first, second = (t.detach() for t in preactivation.central_means(draws, seeded(3)))
    expected = preactivation.central_means(None)[1].detach()[0]
    assert (z_score(first, 0.0).abs() < 5).all()
    assert (z_score(first.square(), expected / draws).abs() < 5).all()
    assert (z_score(second, expected).abs() < 5).all()


def test_the_exact_square_deviation_of_several_radial_parts():
    bnn, x = layer("radial"), randn(2, 4)
    weight, bias = bnn.latents["weight"], bnn.latents["bias"]
    expected = x.square() @ weight.log_scale.exp().square().T / 12 + bias.log_scale.exp().square() / 3
    torch.testing.assert_close(preactivation_of(bnn, x).central_means(None)[1], expected)


def test_the_paper_s_variance_with_its_first_term_divided_by_m():
    """Var(mean_i u w_i) = V(w) E[u^2] / M + V(u) E[w]^2 for features u and M draws of the last weights w.

    20000 data with draws of their own (forward="local"); z of the sample variance for three M.
    """
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    bnn = mcrepar.bayesian(plain, "normal", forward="local")
    (u, su), (w, sw) = (1.5, 0.6), (-0.8, 0.7)
    with torch.no_grad():
        for key, loc, scale in (("0/weight", u, su), ("1/weight", w, sw)):
            bnn.latents[key].loc.fill_(loc)
            bnn.latents[key].log_scale.fill_(math.log(scale))
    torch.manual_seed(1)
    preactivation = preactivation_of(bnn, torch.ones(20_000, 1).double())
    for draws in (1, 4, 100):
        mean = (preactivation.loc + preactivation.central_means(draws, seeded(10 + draws))[0]).detach()
        expected = sw**2 * (u**2 + su**2) / draws + su**2 * w**2
        assert z_score((mean - u * w).square(), expected).abs() < 5


def test_dead_features_have_a_finite_gradient():
    bnn = layer(bias=False)
    preactivation = preactivation_of(bnn, torch.zeros(2, 4).double())
    first, second = preactivation.central_means(3, seeded(0))
    (first.sum() + second.sum()).backward()
    assert all(latent.log_scale.grad.isfinite().all() for latent in bnn.latents.values())


# ---- finding it


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).relu())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x.long().clamp(0, 4)[:, 0]))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.layer(x)}


def test_the_last_layer_is_the_one_whose_output_is_returned():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6))
    plain = nn.Sequential(body, nn.Linear(6, 2), nn.Identity()).double()
    bnn, x = mcrepar.bayesian(plain, posterior="normal"), randn(5, 4)
    with bnn.frozen("mean"):
        expected = bnn(x)
    preactivation = preactivation_of(bnn, x)
    assert preactivation.loc.shape == expected.shape
    assert len(preactivation.parts) == 1
    assert not any(m._forward_hooks for m in bnn.modules())


def test_a_sequence_is_many_rows():
    bnn, x = layer(), randn(2, 5, 4)
    preactivation, flat = preactivation_of(bnn, x), preactivation_of(bnn, x.flatten(0, 1))
    torch.testing.assert_close(preactivation.loc.flatten(0, 1), flat.loc)
    torch.testing.assert_close(preactivation.parts[0].square.flatten(0, 1), flat.parts[0].square)


def plain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), *layers)


class Written(nn.Module):
    """Changes what its last layer was given, or gave, in place."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(3, 3), what

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        out = self.layer(x)
        if self.what == "a slice":
            out[:, 0] += 1
        elif self.what == "output":
            out += 1
        else:
            x += 1
        return out


def hooked(hook: Any) -> nn.Module:
    net = plain()
    net[0].register_forward_hook(hook)
    return net


def legacy_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


NOT_DENSE = "not that of a dense layer"
REFUSED = {
    "written output": (Written("output"), {}, NOT_DENSE),
    "written slice": (Written("a slice"), {}, NOT_DENSE),
    "written activation": (plain(nn.ReLU(inplace=True)), {}, NOT_DENSE),
    "hook with another output": (hooked(lambda layer, args, out: out + 1), {}, NOT_DENSE),
    "hook that writes": (hooked(lambda layer, args, out: out.mul_(2)), {}, NOT_DENSE),
    "parametrized": (plain(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))), {}, "1: its weight or bias is par"),
    "parametrized of old": (plain(legacy_norm(nn.Linear(3, 3))), {}, "1: its weight or bias is parametrized"),
    "activation": (plain(nn.ReLU()), {}, NOT_DENSE),
    "convolution": (nn.Conv1d(3, 2, 1), {}, NOT_DENSE),
    "shared": (Twice(), {}, "layer: it is used more than once"),
    "tied": (Tied(), {}, "head.weight: it is tied to embedding.weight"),
    "laplace": (plain(), {"posterior": "laplace"}, "under its posterior 'laplace' the output has no distribution"),
    "lognormal": (plain(), {"posterior": "lognormal", "signs": "keep", "prior": "lognormal"}, "'lognormal'"),
    "fixed": (plain(nn.Tanh(), nn.Linear(3, 2)), {"select": "0.*"}, "2: neither its weight nor its bias is random"),
    "per_example": (plain(), {"forward": "per_example"}, "example by example"),
}


@pytest.mark.parametrize(("net", "options", "message"), REFUSED.values(), ids=list(REFUSED))
def test_refused(net, options, message):
    bnn = mcrepar.bayesian(net, **options)
    x = torch.zeros(4, 3, 1) if isinstance(net, nn.Conv1d) else torch.zeros(4, 3)
    before = [len(m._forward_hooks) for m in bnn.modules()]
    with pytest.raises(MethodError, match=message):
        elbo(bnn, Normal(), x, torch.zeros(4, 3), data_size=4, last_layer_draws=10)
    assert [len(m._forward_hooks) for m in bnn.modules()] == before


def test_the_output_of_the_last_layer_is_found_in_a_dictionary():
    bnn, x, y = mcrepar.bayesian(Named()), torch.zeros(4, 3), torch.zeros(4, 2)
    with pytest.raises(ParameterError, match=r"it is a dict.*Use output='out'"):
        elbo(bnn, Normal(), x, y, data_size=4, last_layer_draws=10)
    assert elbo(bnn, Normal(), x, y, data_size=4, last_layer_draws="exact", output="out").nll.isfinite()


@pytest.mark.parametrize("what", ["output", "a slice", "features"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_writes_are_noticed_without_a_graph(what, mode):
    bnn = mcrepar.bayesian(Written(what))
    with mode(), pytest.raises(MethodError, match=NOT_DENSE):
        preactivation_of(bnn, torch.ones(4, 3))
    with mode():
        right = mcrepar.bayesian(plain(nn.ReLU(inplace=True), nn.Linear(3, 2)))
        assert preactivation_of(right, torch.ones(4, 3)).loc.shape == (4, 2)


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=x)


def test_the_input_may_be_a_keyword():
    bnn, x = mcrepar.bayesian(Keyword().double()), randn(2, 4)
    latent = bnn.latents["layer/weight"], bnn.latents["layer/bias"]
    torch.testing.assert_close(preactivation_of(bnn, x).loc, x @ latent[0].loc.T + latent[1].loc)


def test_frozen_weights_are_refused():
    bnn = layer()
    with bnn.frozen("mean"), pytest.raises(MethodError, match=r"its weights are frozen\. Use"):
        preactivation_of(bnn, randn(1, 4))


class Doubled(AffineOutput):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.net(x)

    def of_last_layer(self, u: Preactivation) -> Preactivation:
        return Preactivation(2 * u.loc, tuple(replace(p, square=4 * p.square, tensor=None) for p in u.parts))


def test_the_last_layer_is_found_behind_an_affine_map():
    inner = plain(nn.ReLU(), nn.Linear(3, 2)).double()
    bnn, x = mcrepar.bayesian(Doubled(inner), posterior="radial", forward="weights", select="net.2.*"), randn(5, 3)
    before = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in bnn.modules()]
    found = preactivation_of(bnn, x)
    features, layer = inner[0](x).relu(), bnn.latents["net/2/weight"]
    expected = (features**2) @ (4 * layer.log_scale.exp() ** 2).T
    torch.testing.assert_close(found.parts[0].square, expected)
    with torch.no_grad(), bnn.frozen("mean"):
        expected = bnn(x)
    torch.testing.assert_close(found.loc.detach(), expected)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in bnn.modules()] == before


@pytest.mark.parametrize("net", [plain(nn.ReLU()), Written("output"), Written("features")], ids=["relu", "out", "in"])
def test_behind_an_affine_map_nothing_else_may_follow_the_layer(net):
    bnn = mcrepar.bayesian(Doubled(net))
    with pytest.raises(MethodError, match=NOT_DENSE):
        preactivation_of(bnn, torch.ones(4, 3))
    hooked = mcrepar.bayesian(Doubled(plain()))
    hooked.net.register_forward_hook(lambda wrapper, args, out: out.mul_(2))
    with pytest.raises(MethodError, match=NOT_DENSE):
        preactivation_of(hooked, torch.ones(4, 3))
