"""Draws that run at once give what draws one after the other give, and what cannot run at once is left as it is."""

import pickle
import warnings
from fnmatch import fnmatch

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import bayesian, elbo, predict
from mcrepar.likelihoods import Likelihood, Normal
from mcrepar.nn import stacks
from mcrepar.nn.calibration import complete
from mcrepar.nn.swap import run
from tests.conftest import seeded
from tests.nn.networks import NETS, randn


class Recording(nn.Module):
    """A layer that keeps something of its forward, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.layer, self.way, self.calls, self.log = nn.Linear(4, 2), way, 0, []
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        out = self.layer(x)
        if self.way == "counts":
            self.calls += 1
        elif self.way == "lists":
            self.log.append(out.detach())
        elif self.way == "keeps":
            self.last = out
        elif self.way == "buffer":
            self.total += 1
        elif self.way == "decides" and out.sum() > 0:
            out = -out
        elif self.way == "draws":
            out = out + torch.randn_like(out)
        elif self.way == "dropout":
            out = nn.functional.dropout(out, 0.5, training=True)
        return out


WAYS = ["counts", "lists", "keeps", "buffer", "decides", "draws", "dropout"]
MAPPED = {"linear", "mlp", "embedding", "padded embedding", "attention", "tied", "shared", "norm"} | {
    f"{kind}{dimensions}d" for kind in ("conv", "transposed") for dimensions in (1, 2, 3)}  # fmt: skip


def first(out):
    return out[0] if isinstance(out, tuple) else out


def arguments(x):
    return ((), x) if isinstance(x, dict) else (x, {})


def one_by_one(monkeypatch, call):
    with monkeypatch.context() as patch:
        for place in ("nn.stacks", "objective"):
            patch.setattr(f"mcrepar.{place}.stack_size", lambda *args, **kwargs: 1)
        return call()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore:the network has BatchNorm")
def test_predictions_are_those_of_the_loop(name, monkeypatch):
    torch.manual_seed(0)
    make, x = NETS[name]
    bnn = bayesian(make().double(), "radial").eval()
    output = (lambda out: out["a"]) if name == "keywords" else first

    def call():
        return predict(bnn, x, draws=5, batch_size=3, generator=seeded(1), output=output)

    torch.testing.assert_close(call().samples, one_by_one(monkeypatch, call).samples)
    size = stacks.stack_size(bnn, *arguments(x), output)
    assert (size > 1) == (name in MAPPED)


@pytest.mark.parametrize("likelihood", [None, "normal", "categorical", "bernoulli", Normal("heteroscedastic")])
@pytest.mark.parametrize("posterior", ["normal", "radial", "laplace", "mixed", "rank1"])
def test_every_statistic_is_that_of_the_loop(likelihood, posterior, monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    if posterior == "rank1":
        bnn = bayesian(net, structure="rank1", members=2)
    elif posterior == "mixed":
        bnn = bayesian(net, overrides={"0.*": {"posterior": "laplace"}})
    else:
        bnn = bayesian(net, posterior, initial_std=0.8)
    monkeypatch.setattr(stacks, "MAX_BYTES", 3000)

    def call():
        return predict(bnn, randn(7, 4), draws=11, batch_size=4, generator=seeded(1), likelihood=likelihood)

    ours, theirs = call(), one_by_one(monkeypatch, call)
    for what in ("mean", "std", "aleatoric", "epistemic", "samples"):
        torch.testing.assert_close(getattr(ours, what), getattr(theirs, what))
    if ours.classes is not None:
        for what in ("probs", "votes", "expected_entropy", "mutual_information"):
            torch.testing.assert_close(getattr(ours, what), getattr(theirs, what))
    if ours.noise is not None:
        torch.testing.assert_close(ours.interval(0.8), theirs.interval(0.8))


@pytest.mark.parametrize("way", WAYS)
def test_what_a_forward_leaves_behind_is_left_once_per_draw(way, monkeypatch):
    torch.manual_seed(0)
    net = Recording(way).double()
    bnn, x = bayesian(net).eval(), randn(5, 4)
    torch.manual_seed(3)
    ours = predict(bnn, x, draws=6, generator=seeded(1)).samples
    assert net.calls == (6 if way == "counts" else 0)
    assert len(net.log) == (6 if way == "lists" else 0)
    assert float(net.total) == (6 if way == "buffer" else 0)
    assert type(getattr(net, "last", x)) is torch.Tensor
    torch.manual_seed(3)
    torch.testing.assert_close(
        ours, one_by_one(monkeypatch, lambda: predict(bnn, x, draws=6, generator=seeded(1)).samples)
    )
    assert stacks.stack_size(bnn, (x,), {}, None) == 1


def test_a_hook_sees_every_draw():
    bnn, x, seen = bayesian(nn.Linear(4, 2)), torch.ones(3, 4), []
    predict(bnn, x, draws=4)
    bnn.net.register_forward_hook(lambda layer, args, out: seen.append(out.shape))
    predict(bnn, x, draws=4)
    assert seen == [(3, 2)] * 4


def test_a_change_of_the_network_is_tried_anew():
    bnn, x = bayesian(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))), torch.ones(3, 4)
    assert stacks.stack_size(bnn, (x,), {}, None) > 1
    bnn.net[1] = nn.Dropout(0.5)
    assert stacks.stack_size(bnn, (x,), {}, None) == 1
    bnn.eval()
    assert stacks.stack_size(bnn, (x,), {}, None) > 1
    with bnn.frozen("mean"):
        assert stacks.stack_size(bnn, (x,), {}, None) == 1
    with torch.autocast("cpu"):
        assert stacks.stack_size(bnn, (x,), {}, None) == 1
    assert stacks.stack_size(nn.Sequential(bnn), (x,), {}, None) == 1


def test_a_batch_calibrated_network_has_statistics_of_its_own_for_every_draw(monkeypatch):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double(), randn(6, 4)
    bnn = bayesian(net).calibrate(x).eval()
    assert stacks.stack_size(bnn, (x,), {}, None) == 1
    twin = bayesian(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()).eval()
    twin.load_state_dict(bnn.state_dict())  # pooled statistics, for all draws
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert stacks.stack_size(twin, (x,), {}, None) > 1
        ours = predict(twin, x, draws=4, generator=seeded(1)).samples
        theirs = one_by_one(monkeypatch, lambda: predict(twin, x, draws=4, generator=seeded(1)).samples)
    torch.testing.assert_close(ours, theirs)


def test_the_bound_on_bytes_is_kept(monkeypatch):
    monkeypatch.setattr(stacks, "MAX_BYTES", 10**6)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 100), nn.Tanh(), nn.Linear(100, 1)))
    sizes = [stacks.stack_size(bnn, (torch.ones(n, 4),), {}, None) for n in (10, 100, 1000)]
    assert sizes == [10**6 // (8 * 601 + 3 * 4 * 100 * n) or 1 for n in (10, 100, 1000)]
    assert stacks.stack_size(bnn, (torch.ones(10_000, 4),), {}, None) == 1  # one draw is work enough


def test_a_batch_that_differs_runs_one_after_the_other(monkeypatch):
    """Decided on the first batch; another one whose shape the network looks at fails under vmap alone."""

    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            out = self.layer(x)
            return out if len(x) > 2 else out * float(out.detach().sum() > -1e9)

    torch.manual_seed(0)
    bnn, x = bayesian(Picky().double()), randn(5, 4)

    def call():
        return predict(bnn, x, draws=4, batch_size=3, generator=seeded(1)).samples

    assert stacks.stack_size(bnn, (x[:3],), {}, None) > 1
    torch.testing.assert_close(call(), one_by_one(monkeypatch, call))


DENSE = {
    "activations": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 3), nn.GELU()), nn.ELU()
    ),
    "no bias": lambda: nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(inplace=True), nn.Linear(8, 2)),
    "one layer": lambda: nn.Linear(4, 2),
}


@pytest.mark.parametrize("select", [None, "*weight", "*bias", "2*"])
@pytest.mark.parametrize("name", DENSE)
def test_dense_layers_run_without_vmap(name, select, monkeypatch):
    torch.manual_seed(0)
    net, x = DENSE[name]().double(), randn(7, 4)
    if not any(fnmatch(n, select or "*") for n, _ in net.named_parameters()):
        pytest.skip("nothing is random")
    bnn = bayesian(net, select=select, initial_std=0.5)
    assert stacks._dense_layers(bnn.net) is not None
    monkeypatch.setattr(stacks, "vmap", None)  # which is tried already
    monkeypatch.setattr(stacks, "_largest", lambda *args: 8 * 56)
    monkeypatch.setattr(stacks, "CACHE", 6 * 8 * 56)  # three at once

    def call():
        return predict(bnn, x, draws=8, batch_size=4, generator=seeded(1)).samples

    torch.testing.assert_close(call(), one_by_one(monkeypatch, call))


@pytest.mark.parametrize("change", ["subclass", "forward", "other layer"])
def test_what_is_no_row_of_dense_layers_runs_by_vmap(change):
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    layers = [nn.Linear(4, 8), nn.Softmax(1) if change == "other layer" else nn.Tanh(), nn.Linear(8, 2)]
    net = Own(*layers) if change == "subclass" else nn.Sequential(*layers)
    if change == "forward":
        net.forward = lambda x: x
    assert stacks._dense_layers(net) is None


# ---- the objective


@pytest.mark.parametrize("posterior", ["normal", "radial", "gamma"])
@pytest.mark.parametrize("generator", [None, 5])
@pytest.mark.parametrize("likelihood", ["normal", "categorical"])
def test_an_elbo_of_many_draws_is_that_of_the_loop(posterior, generator, likelihood, monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    options = {"prior": "gamma", "signs": "keep"} if posterior == "gamma" else {}
    bnn = bayesian(net, posterior, forward="weights", **options)
    x, y = randn(7, 4), randn(7, 2) if likelihood == "normal" else torch.arange(7) % 2
    assert stacks.stack_size(bnn, (x,), {}, None) > 3

    def call():
        torch.manual_seed(2)
        given = None if generator is None else seeded(generator)
        e = elbo(bnn, likelihood, x, y, data_size=100, draws=3, generator=given)
        return [e.loss, e.nll, e.kl, *torch.autograd.grad(e.loss, list(bnn.parameters()))]

    torch.testing.assert_close(call(), one_by_one(monkeypatch, call))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(8)])
def test_layers_of_training_run_one_after_the_other(layer, monkeypatch):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 1)).double())
    x, y = randn(7, 4), randn(7, 1)

    def call():
        torch.manual_seed(2)
        return elbo(bnn, "normal", x, y, data_size=100, draws=3).loss

    before = [b.clone() for b in bnn.buffers()]
    ours = call()
    if isinstance(layer, nn.BatchNorm1d):
        assert int(layer.num_batches_tracked) == 3
    for buffer, value in zip(bnn.buffers(), before, strict=True):
        buffer.copy_(value)
    torch.testing.assert_close(ours, one_by_one(monkeypatch, call))


def test_a_likelihood_of_ones_own_sees_every_draw():
    class Own(Likelihood):
        seen = 0

        def log_prob(self, output, y):
            self.seen += 1
            return -(output - y).square().sum(1)

        def _check(self, output, y): ...

    own, bnn = Own(), bayesian(nn.Linear(4, 1))
    elbo(bnn, own, torch.ones(3, 4), torch.zeros(3, 1), data_size=10, draws=4)
    assert own.seen == 4


def test_errors_of_many_draws_are_those_of_one():
    bnn, x = bayesian(nn.Linear(4, 1)), torch.ones(3, 4)
    with pytest.raises(mcrepar.ParameterError, match=r"y has the shape \(3,\), and the output \(3, 1\)"):
        elbo(bnn, "normal", x, torch.zeros(3), data_size=10, draws=4)
    with pytest.raises(mcrepar.ParameterError, match="the first tensor that is not finite: x"):
        elbo(bnn, "normal", x * float("inf"), torch.zeros(3, 1), data_size=10, draws=4)


def perceptron(*more):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *more, nn.Linear(8, 2)).double()


@pytest.mark.parametrize("forward", ["auto", "local"])
def test_draws_of_examples_with_their_own_noise_are_one_repeated_batch(forward):
    bnn, x, y = bayesian(perceptron(), forward=forward), randn(6, 4), randn(6, 2, seed=1)
    bnn(x)  # whether examples have noise of their own is known after a forward
    torch.manual_seed(3)
    found = elbo(bnn, Normal(0.5), x, y, data_size=10, draws=4)
    torch.manual_seed(3)
    out = bnn(x.repeat(4, 1))
    wanted = -torch.distributions.Normal(out, 0.5).log_prob(y.repeat(4, 1)).sum(1).mean()
    torch.testing.assert_close(found.nll, wanted)
    assert len(out.reshape(4, 6, 2)[:, 0].unique(dim=0)) == 4  # draws differ
    assert stacks.run_repeated(bnn, 4, (x,), {}, None).shape == (4, 6, 2)


ALONE = {
    "batch norm": (lambda: perceptron(nn.BatchNorm1d(8).double()), {}),
    "one sample": (perceptron, {"forward": "weights"}),
    "shared sample and signs": (perceptron, {"forward": "flipout"}),
    "sequences": (perceptron, {"x": randn(6, 3, 4)}),
    "a posterior without local draws": (perceptron, {"posterior": "logistic"}),
    "memory": (perceptron, {"draws": 10**7}),
    "memory of wide inputs": (lambda: nn.Linear(20_000, 1).double(), {"x": randn(50, 20_000)}),
    "keyword": (perceptron, {"named": True}),
}


@pytest.mark.parametrize("case", ALONE)
def test_what_is_not_known_to_keep_examples_apart_is_not_repeated(case):
    net, options = ALONE[case]
    x, draws, named = options.pop("x", randn(6, 4)), options.pop("draws", 4), options.pop("named", False)
    bnn = bayesian(net(), **options)
    assert case != "a posterior without local draws" or not bnn.examplewise
    bnn(x)
    assert stacks.run_repeated(bnn, draws, *(((), {"input": x}) if named else ((x,), {})), None) is None


def test_a_network_that_has_not_run_and_one_with_hooks_are_not_repeated():
    bnn, x = bayesian(perceptron()), randn(6, 4)
    assert stacks.run_repeated(bnn, 4, (x,), {}, None) is None
    bnn(x)
    assert stacks.run_repeated(bnn, 4, (x,), {}, None) is not None
    bnn.net[0].register_forward_hook(lambda *args: None)
    assert stacks.run_repeated(bnn, 4, (x,), {}, None) is None


def test_members_with_norm_statistics_of_their_own_run_one_after_the_other():
    """Every draw of a prediction has those of its member."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    bnn, x = bayesian(net, structure="rank1", members=3), torch.randn(32, 3)
    twin = pickle.loads(pickle.dumps(bnn.calibrate(x))).eval()  # noqa: S301  # our own bytes
    twin.calibration.warned = True
    got = predict(twin, x, draws=6, generator=seeded(0)).samples
    rng = seeded(0)
    for k, out in enumerate(got):
        wanted = run(twin, complete(twin, twin.draw(rng, k % 3), k % 3), x)
        torch.testing.assert_close(out, wanted.detach())
