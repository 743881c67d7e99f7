"""Multiplicative noise: the right network for every example, one network per draw, its KL, members, refusals."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import MethodError, ParameterError, bayesian, elbo, posterior, predict, prior
from mcrepar.likelihoods import Normal
from mcrepar.nn.rank1 import RankOne, factors
from tests.conftest import seeded, z_score

D = torch.float64
LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear over tokens": (lambda: nn.Linear(6, 4), (5, 6)),
    "conv1d": (lambda: nn.Conv1d(6, 4, 3, stride=2, padding=1), (6, 9)),
    "conv2d, groups": (lambda: nn.Conv2d(6, 4, 3, groups=2, padding=1, padding_mode="circular"), (6, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, bias=False), (2, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(6, 4, 3, groups=2, stride=2, output_padding=1), (6, 5)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(3, 2, 2), (3, 4, 4)),
}


def layer(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    return make().to(D), torch.randn(3, *shape, dtype=D, generator=seeded(1))


def only(bnn: mcrepar.BayesianModule) -> RankOne:
    (tensor,) = bnn.latents.values()
    assert isinstance(tensor, RankOne)
    return tensor


def rows_of_a_seed(bnn, batch, seed):
    torch.manual_seed(seed)
    return factors(bnn, batch)[only(bnn).name]


@pytest.mark.parametrize("name", LAYERS)
def test_every_example_has_a_network_of_its_own(name):
    """bnn(x) row by row is the plain layer with the weight Wbar o (r s^T) of that row's factors, groups included."""
    net, x = layer(name)
    bnn = bayesian(net, structure="rank1", start_std=0.5)
    r, s = rows_of_a_seed(bnn, len(x), 5)
    torch.manual_seed(5)
    out = bnn(x)
    for b in range(len(x)):
        with bnn.frozen({"weight": only(bnn)._times(r[b], s[b])}):
            torch.testing.assert_close(out[b : b + 1], bnn(x[b : b + 1]))


@pytest.mark.parametrize("name", LAYERS)
def test_the_weight_of_a_draw_has_a_factor_per_unit(name):
    """Against the definition: doubling the factor of one output (input) doubles what comes out (goes in) there."""
    net, x = layer(name)
    plain = copy.deepcopy(net)
    tensor = only(bayesian(net, structure="rank1"))
    r, s = (torch.ones(len(tensor.outputs[0].log_scale), dtype=D), torch.ones(len(tensor.inputs[0].log_scale), dtype=D))
    torch.testing.assert_close(tensor._times(r, s), plain.weight)
    channel = -1 if isinstance(plain, nn.Linear) else 1
    r[1], s[2 % len(s)] = 2.0, 3.0
    changed = x.clone()
    changed.select(channel, 2 % len(s)).mul_(3.0)
    bias = plain.bias.detach() if plain.bias is not None else torch.zeros(len(r), dtype=D)
    expected = plain(changed) - bias.view([-1 if k in (channel, x.dim() + channel) else 1 for k in range(x.dim())])
    expected.select(channel, 1).mul_(2.0)
    plain.weight.data = tensor._times(r, s).detach()
    plain.bias = None
    torch.testing.assert_close(plain(x), expected)


def test_an_embedding_has_factors_of_its_features():
    """Every example has its own, the row of the padding stays 0, and a draw is one embedding."""
    torch.manual_seed(0)
    plain = nn.Embedding(7, 4, padding_idx=0).to(D)
    words = torch.tensor([[1, 2, 0], [1, 2, 0]])
    bnn = bayesian(copy.deepcopy(plain), structure="rank1", start_std=0.5)
    r, s = rows_of_a_seed(bnn, 2, 5)
    assert s is None
    torch.manual_seed(5)
    out = bnn(words)
    torch.testing.assert_close(out, plain(words) * r[:, None, :])
    torch.testing.assert_close(bnn.to_module(bnn.draw())(words)[:, 2], torch.zeros(2, 4, dtype=D))
    drawn = bnn.draw()["weight"] / plain.weight
    torch.testing.assert_close(drawn[1:], drawn[1:2].expand(6, 4))
    assert bnn.kl() > 0


def test_one_example_without_a_batch():
    for name in ("linear", "conv2d, groups", "transposed"):
        net, x = layer(name)
        bnn = bayesian(net, structure="rank1")
        assert bnn(x[0]).shape == bnn.to_module()(x[0]).shape


def test_the_spread_of_an_output_does_not_depend_on_the_batch():
    """The variance of one output among 1 and among 64 examples, 4,000 samples each; |z| < 5 fails by chance: 6e-7."""
    net, x = layer("linear")
    bnn = bayesian(net, structure="rank1", start_std=0.3)
    torch.manual_seed(2)
    with torch.no_grad():
        alone = torch.cat([bnn(x[:1]) for _ in range(4000)])
        among = torch.cat([bnn(x[:1].expand(64, -1)) for _ in range(63)])[:4000]
    squares = (alone - alone.mean(0)).square()
    assert float(z_score(squares, (among - alone.mean(0)).square().mean(0)).abs().max()) < 5 * math.sqrt(2)


def test_gradients_are_those_of_the_formula():
    """Of Wbar, the bias, loc and log_scale, against plain autograd on the same factors."""
    net, x = layer("conv2d, groups")
    bnn = bayesian(net, structure="rank1", start_std=0.5)
    tensor = only(bnn)
    torch.manual_seed(3)
    found = torch.autograd.grad(bnn(x).square().sum(), list(bnn.parameters()))
    r, s = rows_of_a_seed(bnn, len(x), 3)
    plain = copy.deepcopy(net)
    outputs = []
    for b in range(len(x)):
        weights = {"weight": tensor._times(r[b], s[b]), "bias": bnn.net.bias}
        outputs.append(torch.func.functional_call(bnn.to_module(), weights, x[b : b + 1]))
    expected = torch.autograd.grad(torch.cat(outputs).square().sum(), list(bnn.parameters()))
    assert plain.bias is not None
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("family", ["normal", "lognormal", "gamma", "radial"])
def test_factors_of_several_layers_have_one_row(family):
    """The KL in one row, and its gradients, are those tensor by tensor; a double network gets other rows."""
    torch.manual_seed(0)
    chosen = "gamma" if family == "gamma" else "lognormal" if family == "lognormal" else "normal"
    bnn = bayesian(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), family, chosen, structure="rank1", initial_std=0.3
    )
    bnn(torch.zeros(2, 4))
    bnn.double()
    assert [len(group.tensors) for group in bnn.groups.of(bnn).factors] == [4] * (family != "gamma")
    parameters = [p for name, p in bnn.named_parameters() if "puts" in name]
    each = torch.stack([t.divergence() for tensor in bnn.latents.values() for t in tensor.tensors]).sum()
    expected = torch.autograd.grad(each, parameters)
    torch.testing.assert_close(bnn.kl(), each)
    torch.testing.assert_close(torch.autograd.grad(bnn.kl(), parameters), expected)
    assert bnn(torch.zeros(2, 4, dtype=D)).dtype == D


def test_the_kl_is_that_of_the_factors_and_the_mean_over_members():
    net, _ = layer("linear")
    for members in (1, 3):
        torch.manual_seed(1)
        bnn = bayesian(
            copy.deepcopy(net), structure="rank1", prior=prior("normal", loc=1.0, scale=0.2), members=members
        )
        parts = [
            torch.distributions.kl_divergence(
                torch.distributions.Normal(t.loc, t.log_scale.exp()), torch.distributions.Normal(1.0, 0.2)
            ).sum()
            for t in only(bnn).tensors
        ]
        assert len(parts) == 2 * members
        torch.testing.assert_close(bnn.kl(), sum(parts) / members)


def test_the_divergence_that_was_computed_is_the_one_that_is_checked(monkeypatch):
    bnn = bayesian(nn.Linear(3, 2), structure="rank1", members=2)
    values = iter([1.0, 1.0, math.inf])  # of the outputs and of the inputs; a second look would find finite ones
    monkeypatch.setattr("mcrepar.nn.random_tensor.apply_plan", lambda *_: torch.tensor(next(values, 1.0)))
    with pytest.raises(ParameterError, match=r"weight, inputs.*exceeds the range"):
        bnn.kl()


def test_members_take_turns_among_examples_and_draws():
    """With factors that hardly vary, the examples of a batch are spread evenly over the members, and so are draws."""
    net, x = layer("linear")
    bnn = bayesian(net, structure="rank1", start_std=1e-9, members=2)
    one = x[:1].expand(8, -1)
    with torch.no_grad():
        out = bnn(one)
        torch.testing.assert_close(out[0::2], out[:1].expand(4, -1))
        torch.testing.assert_close(out[1::2], out[1:2].expand(4, -1))
        assert not torch.allclose(out[0], out[1])
        samples = predict(bnn, x[:1], draws=4).samples[:, 0]
    torch.testing.assert_close(samples[0], samples[2])
    torch.testing.assert_close(samples[1], samples[3])
    assert not torch.allclose(samples[0], samples[1])


@pytest.mark.parametrize("name", ["normal", "laplace", "logistic", "radial", "lognormal", "gamma", "weibull", "erlang"])
def test_families_begin_near_one_with_the_wanted_noise(name):
    """Mean 1 and relative standard deviation 0.1 of every factor, from their moments."""
    net, _ = layer("linear")
    tensor = only(bayesian(net, name, structure="rank1", start_std=0.1))
    for latent in tensor.tensors:
        q = latent.posterior
        torch.testing.assert_close(q.mean.detach(), torch.ones_like(q.mean))
        torch.testing.assert_close(q.stddev.detach(), torch.full_like(q.mean, 0.1), rtol=0.01, atol=0)


def test_it_trains_saves_and_loads(tmp_path):
    """A step changes all parameters; a saved network has the same KL and draws; a state_dict restores the prior."""
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).to(D)
    empty = copy.deepcopy(net)
    bnn = bayesian(net, structure="rank1", prior=prior("normal", loc=1.0, scale=0.3), members=2)
    before = [p.detach().clone() for p in bnn.parameters()]
    x, y = torch.randn(20, 3, dtype=D, generator=seeded(1)), torch.randn(20, 1, dtype=D, generator=seeded(2))
    optimizer = torch.optim.Adam(bnn.parameters(), 0.01)
    elbo(bnn, Normal(), x, y, data_size=20).loss.backward()
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, bnn.parameters(), strict=True))
    mcrepar.save(bnn, tmp_path / "model")
    same = mcrepar.load(tmp_path / "model", copy.deepcopy(empty))
    assert same.kl() == bnn.kl()
    for name, w in same.draw(seeded(4)).items():
        assert torch.equal(w, bnn.draw(seeded(4))[name])
    other = bayesian(copy.deepcopy(empty), structure="rank1", members=2)
    other.load_state_dict(bnn.state_dict())
    assert other.kl() == bnn.kl()


def test_rows_of_one_example_share_its_factors():
    """A network that folds tokens into the batch: (batch * tokens, features), neighbours being of one example."""
    net = nn.Sequential(nn.Flatten(0, 1), nn.Linear(6, 4)).to(D)
    bnn = bayesian(net, structure="rank1", start_std=0.5)
    out = bnn(torch.ones(3, 5, 6, dtype=D)).unflatten(0, (3, 5))
    torch.testing.assert_close(out, out[:, :1].expand_as(out))
    assert not torch.allclose(out[0], out[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bayesian(nn.LSTM(3, 4), structure="rank1"), r"weight_ih_l0.*a parameter of LSTM"),
        (lambda: bayesian(nn.Linear(3, 4), structure="rank2"), "no such structure. Use 'weights' or 'rank1'"),
        (lambda: bayesian(nn.Linear(3, 4), members=2), "only factors have members"),
        (lambda: bayesian(nn.Linear(3, 4), structure="rank1", forward="local"), "every example has factors of its own"),
        (
            lambda: bayesian(nn.Linear(3, 4), structure="rank1", forward="flipout"),
            r"one\. Leave out forward=, or choose structure='weights'\.$",
        ),
        (lambda: bayesian(nn.Linear(3, 4), "exponential", structure="rank1"), "could not be made smaller"),
        (lambda: bayesian(nn.Linear(3, 4), "loggamma", structure="rank1"), "could not be made smaller"),
        (lambda: bayesian(nn.Linear(3, 4), posterior("horseshoe", slab=None), structure="rank1"), "it has no mean"),
        (lambda: bayesian(nn.Linear(3, 4), prior="mixture", structure="rank1"), "no location to put there"),
        (
            lambda: bayesian(nn.Linear(3, 4), structure="rank1", pretrained=True),
            "relative to the network's own weights",
        ),
        (lambda: bayesian(nn.Linear(3, 4), structure="rank1", select="bias"), "no weight of a layer with factors"),
    ],
)
def test_refusals(make, message):
    with pytest.raises((MethodError, ParameterError), match=message):
        make()


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_an_empty_batch_has_an_empty_output(name, members):
    layer, x = {"linear": (nn.Linear(3, 4), torch.ones(0, 3)), "conv2d": (nn.Conv2d(3, 4, 1), torch.ones(0, 3, 2, 2))}[
        name
    ]
    assert bayesian(layer, structure="rank1", members=members)(x).shape == (0, 4, *x.shape[2:])


def test_rows_that_are_no_multiple_of_the_batch_are_refused():
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x.reshape(-1, 2))

    with pytest.raises(MethodError, match=r"linear\.weight.*its input has 3 rows in dimension 0 for a batch of 2"):
        bayesian(Folded(), structure="rank1")(torch.ones(2, 3))


@pytest.mark.parametrize("options", [{"structure": "rank1"}, {"posterior": "normal", "forward": "local"}])
def test_a_weight_that_is_used_without_its_layer_is_refused(options):
    """x @ weight.T would silently be deterministic."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x) @ self.linear.weight.data

    with pytest.raises(MethodError, match="__get__ on a weight"):
        bayesian(Tied(), **options)(torch.ones(2, 3))


@pytest.mark.parametrize("members", [1, 3])
def test_it_compiles_as_one_graph(members):
    """With factors that hardly vary, a graph has the networks of the members, and its gradients reach everything."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(6, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(28, 2)).to(D)
    bnn = bayesian(net, structure="rank1", initial_std=1e-9, members=members)
    x = torch.randn(1, 6, 9, dtype=D, generator=seeded(1)).expand(6, -1, -1)
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        rows, wanted = compiled(x), bnn(x)
    assert len({tuple(row.tolist()) for row in rows.round(decimals=6)}) == members
    torch.testing.assert_close(rows.sort(0).values, wanted.sort(0).values)
    compiled(x).sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in bnn.net.parameters())


def test_a_wrapped_network_has_the_gradients_of_the_plain_one(tmp_path):
    net, x = layer("linear")
    bnn, y = bayesian(net, structure="rank1", posterior="normal", members=2), torch.zeros(3, 4, dtype=D)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = []
        for model in (nn.parallel.DistributedDataParallel(bnn), bnn):
            bnn.zero_grad()
            elbo(model, Normal(), x, y, data_size=3, generator=seeded(1)).loss.backward()
            found.append([p.grad.clone() for p in bnn.parameters()])
        torch.testing.assert_close(*found)
        mcrepar.optim.NaturalGradient(bnn, 0.1, data_size=3).step()
        assert all(bool(p.isfinite().all()) for p in bnn.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_vmap_over_draws_has_the_networks_of_the_members():
    """With factors that hardly vary, every row of vmap is one of the members, and all of them come up."""
    net, x = layer("linear")
    bnn = bayesian(net, structure="rank1", initial_std=1e-9, members=3)
    with torch.no_grad():
        mapped = torch.func.vmap(lambda k: bnn(x), randomness="different")(torch.arange(50))
        wanted = bnn(x[:1].expand(3, -1))
    assert mapped.shape == (50, 3, 4)
    nearest = torch.cdist(mapped[:, 0], wanted).min(1)
    assert nearest.values.max() < 1e-5
    assert set(nearest.indices.tolist()) == {0, 1, 2}
