"""How a draw enters the forward: every way has the mean and the variance of `weights` for each example (float64).

Moments of one example are compared in z-scores of independent draws with fixed seeds; |z| > 5 by chance: 6e-7 each.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar import MethodError, bayesian, posterior
from mcrepar.nn import forwards
from mcrepar.nn.random_tensor import random_tensors
from tests.conftest import seeded, z_score

DRAWS = 600
WAYS = (*forwards.FORWARDS, "rank1")  # which is a structure: what is random are factors of outputs and inputs
POSITIONS = "ignore:forward='local' gives the positions"


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def dense() -> nn.Module:
    return nn.Linear(4, 3)


LAYERS = {
    "dense": (dense, (4,)),
    "dense without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular", groups=2), (2, 4)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 2, dilation=2, stride=2), (2, 4, 4)),
    "transposed2d": (lambda: nn.ConvTranspose2d(2, 2, 2, stride=2, output_padding=1), (2, 2, 2)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 2, 2)),
}


def made(build, name: str, forward: str, **options) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    return bayesian(build().double(), name, start_std=0.5, **way(forward), **options)


def way(forward: str) -> dict[str, str]:
    return {"structure": "rank1"} if forward == "rank1" else {"forward": forward}


def outputs(bnn: mcrepar.BayesianModule, x: Tensor, draws: int = DRAWS, seed: int = 2) -> Tensor:
    """(draws, batch, numbers); in one forward where copies of a example have draws of their own."""
    torch.manual_seed(seed)
    with torch.no_grad():
        if bnn.mode in ("local", "per_example") or bnn.members:
            return bnn(x.repeat(draws, *[1] * (x.dim() - 1))).flatten(1).unflatten(0, (draws, len(x)))
        return torch.stack([bnn(x).flatten(1) for _ in range(draws)])


def assert_same_moments(a: Tensor, b: Tensor) -> None:
    """Means and squares over the leading dimension agree."""
    middle = b.mean(0)
    for power in (1, 2):
        x, y = ((t - middle) ** power for t in (a, b))
        error = (x.var(0) / len(x) + y.var(0) / len(y)).sqrt()
        assert ((x.mean(0) - y.mean(0)).abs() <= 5 * error).all()  # equal where nothing is random


CASES = [
    *(("local", layer, "normal") for layer in LAYERS),
    *(("local", layer, "radial") for layer in ("dense", "dense without bias")),
    *(("flipout", layer, name) for layer in LAYERS for name in ("normal", "radial")),
    *(("flipout", "dense", name) for name in ("laplace", "logistic", "horseshoe", "error")),
    *(("antithetic", layer, name) for layer in LAYERS for name in ("normal", "radial")),
    ("antithetic", "dense", "laplace"),
    *(("per_example", layer, "radial") for layer in ("dense", "conv2d")),
]


@pytest.mark.filterwarnings(POSITIONS)
@pytest.mark.parametrize(("forward", "layer", "name"), CASES)
def test_each_example_has_the_distribution_of_weights(forward, layer, name):
    build, shape = LAYERS[layer]
    x = randn(2, *shape)
    draws = DRAWS if forward in ("flipout", "antithetic") else 2000
    shared = made(build, name, "weights")
    if layer.startswith("dense"):  # its moments are known: x loc^T + bias, and x^2 (Var W)^T + Var b
        q = {key: latent.posterior for key, latent in shared.latents.items()}
        mean, variance = x @ q["weight"].mean.T, x**2 @ (q["weight"].stddev ** 2).T
        if "bias" in q:
            mean, variance = mean + q["bias"].mean, variance + q["bias"].stddev ** 2
        got = outputs(made(build, name, forward), x, draws)
        assert (z_score(got, mean.detach()).abs() < 5).all()
        if name != "horseshoe":  # whose squares have heavy tails
            assert (z_score((got - mean.detach()).square(), variance.detach()).abs() < 5).all()
        return
    assert_same_moments(outputs(made(build, name, forward), x, draws), outputs(shared, x, seed=3))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["normal", "lognormal", "radial"])
def test_an_example_with_factors_of_its_own_has_the_distribution_of_a_draw(layer, name):
    """Of bnn(x) against one network per draw, bnn.draw()."""
    build, shape = LAYERS[layer]
    bnn, x, draws = made(build, name, "rank1"), randn(2, *shape), []
    torch.manual_seed(3)
    for _ in range(DRAWS):
        with torch.no_grad(), bnn.frozen(bnn.draw()):
            draws.append(bnn(x).flatten(1))
    assert_same_moments(outputs(bnn, x, 2000), torch.stack(draws))


def test_local_radial_outputs_have_their_joint_distribution():
    """Products of squares of two outputs of one example: not those of independent noise (the radius is shared)."""
    x = randn(1, 4)
    local, shared = (outputs(made(LAYERS["dense without bias"][0], "radial", f), x, 20_000 if f == "local" else 2500)
                     for f in ("local", "weights"))  # fmt: skip
    middle = shared.mean(0)
    a, b = (((t - middle)[:, 0, :1] ** 2 * (t - middle)[:, 0, 1:] ** 2) for t in (local, shared))
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    assert ((a.mean(0) - b.mean(0)).abs() < 5 * error).all()
    independent = (local - middle).square().mean(0)[0]
    assert (a.mean(0) > 1.5 * independent[0] * independent[1:]).all()  # 3 d / (d + 2) = 2.6 for d = 12


def correlation(out: Tensor) -> Tensor:
    """Of the outputs of two data, (draws, 2, numbers) -> a z-score per number."""
    centred = out - out.mean(0)
    return z_score(centred[:, 0] * centred[:, 1], 0.0)


@pytest.mark.parametrize("forward", ["local", "flipout", "per_example", "rank1"])
@pytest.mark.parametrize("name", ["normal", "radial"])
def test_two_equal_data_are_uncorrelated(forward, name):
    x = randn(1, 4).expand(2, 4)
    out = outputs(made(dense, name, forward), x)
    assert (correlation(out).abs() < 5).all()
    assert not torch.equal(out[0, 0], out[0, 1])
    shared = outputs(made(dense, name, "weights"), x, 500)
    assert torch.equal(shared[:, 0], shared[:, 1])
    assert (correlation(shared) > 7).all()


@pytest.mark.parametrize("forward", forwards.FORWARDS)
@pytest.mark.parametrize("name", ["normal", "radial"])
def test_the_spread_of_the_output_does_not_depend_on_the_batch(forward, name):
    """256 equal data; the deviation of the first from its mean has the known variance."""
    bnn = made(LAYERS["dense without bias"][0], name, forward)
    x, q = randn(1, 4), bnn.latents["weight"].posterior
    mean, variance = (x @ q.mean.T).detach(), (x**2 @ (q.stddev**2).T).detach()
    for size in (1, 256):
        torch.manual_seed(2)
        with torch.no_grad():
            out = torch.stack([bnn(x.expand(size, 4))[:1] for _ in range(30 if forward == "per_example" else 300)])
        assert (z_score((out - mean).square(), variance).abs() < 5).all()


@pytest.mark.filterwarnings(POSITIONS)
@pytest.mark.parametrize("forward", WAYS)
@pytest.mark.parametrize("layer", ["dense", "conv2d"])
def test_without_noise_it_is_deterministic(forward, layer):
    build, shape = LAYERS[layer]
    torch.manual_seed(0)
    plain = build().double()
    x, wanted = randn(3, *shape), plain(randn(3, *shape)).detach()
    bnn = bayesian(plain, "normal", start_std=1e-12, **way(forward))
    torch.testing.assert_close(bnn(x), wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.filterwarnings(POSITIONS)
@pytest.mark.parametrize("forward", WAYS)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_gradient_is_there(forward, layer):
    build, shape = LAYERS[layer]
    bnn = made(build, "normal", forward)
    out = bnn(randn(3, *shape))
    (out * torch.linspace(0.5, 2, out.numel()).reshape(out.shape)).sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in bnn.parameters())


@pytest.mark.filterwarnings(POSITIONS)
@pytest.mark.parametrize("forward", ["local", "flipout", "antithetic", "rank1"])
@pytest.mark.parametrize("layer", LAYERS)
def test_one_example_without_a_batch(forward, layer):
    build, shape = LAYERS[layer]
    bnn, x = made(build, "normal", forward), randn(*shape)
    torch.manual_seed(1)
    alone = bnn(x)
    torch.manual_seed(1)
    torch.testing.assert_close(alone, bnn(x.unsqueeze(0)).squeeze(0))


def test_dead_inputs_have_a_finite_gradient():
    bnn = made(dense, "normal", "local")
    bnn(torch.zeros(2, 4).double()).sum().backward()
    assert all(p.grad.isfinite().all() for p in bnn.parameters())


@pytest.mark.parametrize("forward", ["local", "flipout", "antithetic", "rank1"])
def test_some_layers_may_stay_deterministic(forward):
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    for select in ("0.weight", "0.bias", ["0", "2.weight"])[:: 2 if forward == "rank1" else 1]:  # whose biases are not
        bnn = bayesian(copy.deepcopy(net), "normal", select=select, **way(forward))
        assert not torch.equal(bnn(randn(5, 4)), bnn(randn(5, 4)))


# ---- refusals

REFUSED = {
    "local laplace": (dense, "laplace", "local", "no distribution that can be drawn at once"),
    "local radial conv": (LAYERS["conv2d"][0], "radial", "local", "no distribution that can be drawn at once"),
    "local embedding": (lambda: nn.Embedding(3, 2), "normal", "local", "neither dense nor convolutional"),
    "flipout lstm": (lambda: nn.LSTM(3, 2), "normal", "flipout", "neither dense nor convolutional"),
    "flipout attention": (lambda: nn.MultiheadAttention(4, 2), "normal", "flipout", "neither dense nor"),
    "flipout loggamma": (dense, "loggamma", "flipout", "not symmetric"),
    "antithetic lstm": (
        lambda: nn.LSTM(3, 2),
        "normal",
        "antithetic",
        "forward='antithetic': LSTM is neither dense nor",
    ),
    "antithetic loggamma": (dense, "loggamma", "antithetic", "not symmetric"),
    "per_example lstm": (lambda: nn.LSTM(3, 2), "normal", "per_example", "examples in dimension 1"),
    "per_example attention": (lambda: nn.MultiheadAttention(4, 2), "normal", "per_example", "examples in dimension 1"),
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=list(REFUSED))
def test_refused(ask):
    build, name, forward, words = ask
    with pytest.raises(MethodError, match=words):
        bayesian(build(), name, forward=forward)


@pytest.mark.parametrize("name", ["lognormal", "gamma"])
@pytest.mark.parametrize("forward", ["local", "flipout", "antithetic"])
def test_positive_weights_are_refused(name, forward):
    with pytest.raises(MethodError, match="forward='weights'"):
        bayesian(dense(), posterior(name), "gamma", signs="keep", forward=forward)


@pytest.mark.parametrize("forward", ["local", "flipout", "antithetic", "rank1"])
def test_tied_weights_are_refused(forward):
    shared = nn.Linear(3, 3)
    with pytest.raises(MethodError, match=r"0\.weight and as 2\.weight"):
        bayesian(nn.Sequential(shared, nn.Tanh(), shared), "normal", **way(forward))


class Again(nn.Module):
    """Calls a layer twice; the calls of its functions are told apart from those of its modules."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) - self.first(x))


@pytest.mark.parametrize("forward", ["local", "flipout"])
@pytest.mark.parametrize("select", [None, "first.bias"])
def test_a_layer_that_is_called_twice_is_refused(forward, select):
    bnn = bayesian(Again(nn.Linear(3, 3)), "normal", forward=forward, select=select)
    for _ in range(2):  # the refusal of one forward leaves nothing to the next
        with pytest.raises(MethodError, match=r"with first\.\w+: its layer is called twice in one forward"):
            bnn(torch.ones(2, 3))
    assert bayesian(Again(nn.Linear(3, 3)), "normal")(torch.ones(2, 3)).shape == (2, 3)
    once = bayesian(Again(nn.Tanh()), "normal", forward=forward)
    for _ in range(2):
        once(torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(4, 3), (2, 5, 4)), (nn.Conv1d(4, 3, 1), (2, 4, 5))])
def test_local_noise_of_positions_is_warned_about_once(layer, shape):
    bnn = bayesian(nn.Sequential(copy.deepcopy(layer)), "normal", forward="local")
    with pytest.warns(UserWarning, match=r"averaged over positions has too little noise .* forward='flipout'") as seen:
        bnn(torch.ones(shape))
    assert len(seen) == 1
    bnn(torch.ones(shape))
    bayesian(nn.Sequential(copy.deepcopy(layer)), "normal", forward="flipout")(torch.ones(shape))
    bayesian(nn.Sequential(copy.deepcopy(layer)), "normal", forward="local", select="*bias")(torch.ones(shape))


class Reads(nn.Module):
    """Uses a weight otherwise than in its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert self.layer.weight.shape == (3, 3)  # looking is allowed
        return self.layer(x) + self.layer.weight.sum()


@pytest.mark.parametrize("forward", ["local", "flipout", "antithetic", "rank1"])
def test_a_weight_that_is_read_otherwise_is_never_silently_deterministic(forward):
    bnn = bayesian(Reads(), "normal", **way(forward))
    with pytest.raises(MethodError, match="sum on a weight"):
        bnn(torch.ones(2, 3))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_antithetic_halves_have_opposite_noise(layer, batch):
    """A layer is linear in its weights: the noise of equal examples cancels exactly between the halves."""
    build, shape = LAYERS[layer]
    bnn, x = made(build, "radial", "antithetic"), randn(1, *shape)
    with torch.no_grad(), bnn.frozen("mean"):
        mean = bnn(x)
    noise = bnn(x.expand(batch, *shape)).detach() - mean
    signs = torch.tensor([1.0] * -(-batch // 2) + [-1.0] * (batch // 2)).double().reshape(-1, *[1] * (noise.dim() - 1))
    assert noise.abs().max() > 1e-3
    torch.testing.assert_close(noise, signs * noise[:1])


def test_antithetic_signs_belong_to_examples_and_not_to_rows():
    """Two layers, of which the second meets three rows of every example, use one sign for each example."""
    net = nn.Sequential(
        nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), nn.Flatten(0, 1), nn.Linear(2, 2), nn.Unflatten(0, (-1, 3))
    )
    torch.manual_seed(0)
    bnn = bayesian(net.double(), "normal", forward="antithetic", start_std=0.5)
    out = bnn(randn(1, 4).expand(3, 4))
    assert torch.equal(out[0], out[1])
    assert not torch.equal(out[1], out[2])


def test_a_layer_with_factors_that_is_called_twice_has_the_same_ones():
    bnn = made(lambda: Again(nn.Linear(3, 3)), "normal", "rank1", select="*.weight")
    torch.testing.assert_close(bnn(randn(4, 3)), bnn.net.second.bias.expand(4, 3))


def test_an_antithetic_layer_that_is_called_twice_has_one_sample():
    """first(x) - first(x) is exactly 0, so that the second layer gives its own bias."""
    torch.manual_seed(0)
    bnn = bayesian(Again(nn.Linear(3, 3)).double(), "normal", forward="antithetic", start_std=0.5)
    out = bnn(randn(4, 3))
    assert torch.equal(out[0], out[1])
    assert torch.equal(out[2], out[3])
    assert not torch.equal(out[1], out[2])


def test_antithetic_refuses_rows_that_belong_to_no_example():
    """Three rows of a batch of two, which no batch of three can be made into."""
    net = nn.Sequential(nn.Flatten(0, 1), nn.Unflatten(0, (3, 4)), nn.Linear(4, 2))
    with pytest.raises(MethodError, match="3 rows for a batch of 2 examples"):
        bayesian(net, "normal", forward="antithetic")(torch.ones(2, 6))


def test_local_radial_refuses_rows_that_share_a_draw():
    bnn = made(dense, "radial", "local")
    with pytest.raises(MethodError, match="3 dimensions"):
        bnn(randn(2, 5, 4))
    assert math.isfinite(bnn(randn(2, 4)).sum().item())


# ---- auto


class CalledTwice(nn.Module):
    """One layer in two places, with a norm layer and dropout between them."""

    def __init__(self):
        super().__init__()
        self.twice, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.twice(nn.functional.dropout(self.norm(self.twice(x)))).relu())


class Outside(nn.Module):
    """A weight that is used outside of its layer."""

    def __init__(self):
        super().__init__()
        self.used, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(x @ self.used.weight.T)


class Bag(nn.Module):
    """One output for all rows of its input."""

    def __init__(self):
        super().__init__()
        self.each, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.each(x).relu().mean(0, keepdim=True))


BOTH = {"last.weight", "last.bias"}
AUTO = {  # a network, its input, a posterior, other options, and the weights with noise of their own for every example
    "dense": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False)), (5, 4), "normal", {},
              {"0.weight", "0.bias", "1.weight"}),
    "radial": (lambda: nn.Linear(4, 3), (5, 4), "radial", {}, {"weight", "bias"}),
    "laplace": (lambda: nn.Linear(4, 3), (5, 4), "laplace", {}, set()),  # no sum of its noise that is drawn at once
    "images": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(8, 2, bias=False)),
               (5, 1, 4, 4), "normal", {}, {"2.weight"}),
    "rows of sequences": (lambda: nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3)), (5, 6, 4), "normal", {}, set()),
    "sequences": (lambda: nn.Linear(4, 3), (5, 6, 4), "normal", {}, set()),
    "one example": (lambda: nn.Linear(4, 3), (4,), "normal", {}, {"weight", "bias"}),
    "a bag": (Bag, (5, 4), "normal", {}, set()),
    "gamma": (lambda: nn.Linear(4, 3), (5, 4), "gamma", {"signs": "keep", "prior": "gamma"}, set()),
    "recurrent": (lambda: nn.LSTM(3, 2), (5, 2, 3), "normal", {}, set()),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 3, batch_first=True), (5, 6, 4), "normal", {}, set()),
    "called twice": (CalledTwice, (5, 4), "normal", {}, BOTH),
    "outside of a layer": (Outside, (5, 4), "normal", {}, BOTH),
}  # fmt: skip


@pytest.mark.parametrize("case", AUTO)
def test_auto_gives_every_layer_the_least_noise_that_it_allows(case):
    build, shape, name, options, expected = AUTO[case]
    bnn = bayesian(build(), name, forward="auto", **options)
    first, again = (bnn(torch.ones(shape)) for _ in range(2))
    assert bnn.examplewise == expected
    parts = [out[0] if isinstance(out, tuple) else out for out in (first, again)]
    assert not torch.equal(*parts)
    parts[0].sum().backward()
    assert all(t.log_scale.grad is not None for t in random_tensors(bnn).values())


def test_auto_has_the_distribution_of_one_sample_and_noise_of_its_own_for_every_example():
    """Standard errors of 4,000 repetitions: the std of 28 outputs by 1.1 %, correlations by .016; z < 5, 1e-5 each."""
    torch.manual_seed(0)
    bnn, x = bayesian(nn.Linear(3, 4), "normal", forward="auto", initial_std=0.5), torch.rand(1, 3).expand(7, 3)
    outs = torch.stack([bnn(x) for _ in range(4000)]).detach()  # (repetitions, examples, outputs)
    bnn.mode = "weights"
    one = torch.stack([bnn(x) for _ in range(4000)]).detach()
    torch.testing.assert_close(outs.std(0), one.std(0), rtol=0.08, atol=0)
    torch.testing.assert_close(outs.mean(0), one.mean(0), rtol=0, atol=0.15 * float(one.std()))
    between = torch.corrcoef(outs[:, :, 0].T) - torch.eye(len(x))
    assert between.abs().max() < 0.08
    assert torch.corrcoef(one[:, :, 0].T).min() > 0.99


def test_a_first_forward_that_is_taken_back_leaves_no_trace():
    bnn = bayesian(CalledTwice(), "normal", forward="auto")
    other = copy.deepcopy(bnn)
    other.examplewise, other.tried = set(BOTH), True
    outs = []
    for net in (bnn, other):
        torch.manual_seed(3)
        outs.append(net(torch.ones(6, 4)))
    assert bnn.examplewise == BOTH
    assert torch.equal(*outs)
    assert torch.equal(bnn.net.norm.running_mean, other.net.norm.running_mean)
    assert bnn.net.norm.num_batches_tracked == 1


def test_a_first_forward_runs_thrice_however_many_layers_share_a_sample():
    """Once on the batch and once on a larger one to look, and once for its output."""
    net, runs = nn.TransformerEncoderLayer(4, 2, 3, batch_first=True), []
    layers = nn.Sequential(*(copy.deepcopy(net) for _ in range(3)))
    layers[0].register_forward_pre_hook(lambda *_: runs.append(1))
    bnn = bayesian(layers, "normal", forward="auto")
    for forwards_so_far in (3, 4):
        bnn(torch.ones(5, 6, 4))
        assert len(runs) == forwards_so_far


def test_other_rows_later_on_cost_the_noise_of_examples_nothing():
    bnn = bayesian(nn.Linear(4, 3), "normal", forward="auto")
    for shape in ((5, 4), (4,), (5, 6, 4), (5, 4)):
        bnn(torch.ones(shape))
    same = bnn(torch.ones(5, 4))
    assert bnn.examplewise == {"weight", "bias"}
    assert not torch.equal(same[0], same[1])
    sequence = bnn(torch.ones(1, 6, 4))
    assert torch.equal(sequence[0, 0], sequence[0, 1])  # one sample of the weights


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(("build", "shape"), [(lambda: nn.Linear(4, 2), (5, 3, 4)), (CalledTwice, (5, 4))])
def test_a_network_that_is_compiled_before_it_ran_has_one_sample(build, shape, fullgraph):
    bnn = bayesian(build(), "normal", forward="auto").eval()
    compiled = torch.compile(bnn, backend="eager", fullgraph=fullgraph)
    first, again = (compiled(torch.ones(shape)) for _ in range(2))
    assert not torch.equal(first, again)
    if len(shape) == 3:  # and no dropout
        assert torch.equal(first[0], first[1])


@pytest.mark.parametrize("forward", ["local", "flipout"])
def test_rows_that_a_network_makes_of_an_example_are_warned_of(forward):
    net = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3), nn.Unflatten(0, (5, 6)))
    with pytest.warns(UserWarning, match="independent noise"):
        bayesian(net, "normal", forward=forward)(torch.ones(5, 6, 4))


def test_auto_is_saved_as_what_it_was(tmp_path):
    mcrepar.save(bayesian(dense(), "normal", forward="auto"), tmp_path / "model")
    assert mcrepar.load(tmp_path / "model", dense()).mode == "auto"
