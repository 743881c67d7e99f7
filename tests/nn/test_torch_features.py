"""What torch does around a network: dtypes, autocast, memory layouts, compilation."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import bayesian, kl
from mcrepar.likelihoods import Normal, likelihood_of
from mcrepar.nn.random_tensor import each_named
from tests.conftest import seeded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 3, batch_first=True)))
    bnn.to(dtype)
    halves = (
        pytest.warns(UserWarning, match="no neighbour nearer than 0.03") if dtype == torch.bfloat16 else nullcontext()
    )
    with halves:  # steps smaller than that would train nothing
        assert bnn(torch.ones(2, 5, 4, dtype=dtype))[0].dtype == dtype
    assert bnn(torch.ones(2, 5, 4, dtype=dtype))[0].dtype == dtype  # said once
    assert kl(bnn).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


WAYS = ({"forward": "weights"}, {"forward": "local"}, {"forward": "flipout"}, {"structure": "rank1"})


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("posterior", ["normal", "radial"])
def test_bf16_autocast(way, posterior):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), posterior, **way)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, divergence = bnn(torch.ones(5, 4)), kl(bnn)
    assert out.dtype == torch.bfloat16  # as that of the plain network
    assert divergence.dtype == torch.float32
    torch.testing.assert_close(divergence, kl(bnn))
    (out.float().sum() + divergence).backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in bnn.parameters())


def test_channels_last_draws_have_the_strides_of_their_weights():
    net = nn.Sequential(nn.Conv2d(4, 6, 3)).to(memory_format=torch.channels_last)
    stride = net[0].weight.stride()
    bnn = bayesian(net, "radial")
    assert bnn.draw()["0.weight"].stride() == bnn.latents["0/weight"].noise().stride() == stride
    with torch.no_grad():
        later = bayesian(nn.Conv2d(4, 6, 3)).to(memory_format=torch.channels_last)
    assert later.draw()["weight"].stride() == stride


@pytest.mark.parametrize(
    ("forward", "backend"),
    [("weights", "eager"), ("weights", "aot_eager"), ("local", "aot_eager"), ("flipout", "eager"),
     ("per_example", "eager")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_torch_compile(forward, backend, monkeypatch):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "normal", forward=forward)
    x = torch.ones(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend=backend)
    torch.manual_seed(1)
    out = compiled(x)
    with monkeypatch.context() as patch:
        tensor_by_tensor(patch)
        torch.manual_seed(1)
        torch.testing.assert_close(out, bnn(x))
    assert not torch.equal(compiled(x), compiled(x))
    with bnn.frozen("mean"):
        torch.testing.assert_close(compiled(x), bnn(x))
    assert not torch.equal(compiled(x), compiled(x))
    out.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in bnn.parameters())
    assert bnn.slots.lock.lock.acquire(blocking=False)
    bnn.slots.lock.lock.release()


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_of_a_recurrent_network():
    torch.manual_seed(0)
    bnn, x = bayesian(nn.GRU(4, 3, batch_first=True)), torch.ones(2, 5, 4)
    torch._dynamo.reset()
    (torch.compile(bnn, backend="eager")(x)[0].square().sum() + kl(bnn)).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in bnn.parameters())
    assert not torch.equal(bnn(x)[0], bnn(x)[0])
    copy.deepcopy(bnn)


# ---- compiled, transformed, exported, scaled


def mlp(dtype=torch.float32):
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def tensor_by_tensor(monkeypatch):
    """Draws as a compiled graph has them, for the same noise from the same seed."""

    def draw(self, generator=None, member=None):
        return each_named(self, lambda tensor: tensor.draw(generator, member or 0))

    monkeypatch.setattr(mcrepar.BayesianModule, "draw", draw)


FAMILIES = [("normal", "normal"), ("radial", "normal"), ("laplace", "normal"), ("gamma", "gamma")]


def network(posterior, prior, **options):
    torch.manual_seed(0)
    return bayesian(mlp(), posterior, prior, signs="keep" if posterior == "gamma" else "", **options)


@pytest.mark.parametrize(("posterior", "prior"), FAMILIES)
def test_a_network_compiles_as_one_graph(posterior, prior):
    bnn, x = network(posterior, prior), torch.ones(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend="aot_eager", fullgraph=True)
    out = compiled(x)
    assert not torch.equal(out, compiled(x))  # fresh noise
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in bnn.parameters())
    bnn.double()  # another graph
    assert compiled(x.double()).dtype == torch.float64


def losses(bnn, likelihood, x, y, compiled=None, **options):
    def loss(x, y):
        return mcrepar.elbo(bnn, likelihood, x, y, data_size=50, **options).loss

    return loss if compiled is None else torch.compile(loss, **compiled)


@pytest.mark.parametrize(
    ("posterior", "prior", "likelihood"),
    [("normal", "normal", "categorical"), ("radial", "normal", "learned"), ("gamma", "gamma", "bernoulli")],
)
def test_a_step_compiles_as_one_graph(posterior, prior, likelihood, monkeypatch):
    bnn, x = network(posterior, prior), torch.linspace(-1, 1, 12).reshape(3, 4)
    y = torch.tensor([0, 1, 1]) if likelihood == "categorical" else torch.ones(3, 2)
    chosen = likelihood_of(likelihood) if likelihood != "learned" else Normal("learned")
    parameters = [*bnn.parameters(), *chosen.parameters()]
    bnn(x)  # which layers draw their output is known before it is compiled
    torch._dynamo.reset()
    compiled = losses(bnn, chosen, x, y, {"backend": "aot_eager", "fullgraph": True}, draws=2)
    torch.manual_seed(1)
    ours = compiled(x, y)
    assert not torch.equal(ours, compiled(x, y))
    tensor_by_tensor(monkeypatch)
    monkeypatch.setattr("mcrepar.objective.stack_size", lambda *args, **kwargs: 1)  # a graph has one draw after
    monkeypatch.setattr("mcrepar.objective.run_repeated", lambda *args, **kwargs: None)  # the other
    torch.manual_seed(1)
    theirs = losses(bnn, chosen, x, y, draws=2)(x, y)
    torch.testing.assert_close(ours, theirs)
    for one, two in zip(*(torch.autograd.grad(loss, parameters) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_step_compiles_by_inductor():
    """Its noise is its own: gradients are those of eager within |z| < 5 over 400 steps, the noise of the KL being 0."""
    bnn, x, y = network("radial", "normal"), torch.linspace(-1, 1, 12).reshape(3, 4), torch.ones(3, 2)
    bnn(x)
    torch._dynamo.reset()
    compiled = losses(bnn, Normal(), x, y, {"fullgraph": True})
    eager = losses(bnn, Normal(), x, y)
    weight = bnn.latents["0/weight"].log_scale
    found = [torch.stack([torch.autograd.grad(run(x, y), weight)[0] for _ in range(400)]) for run in (compiled, eager)]
    means, stds = ([statistic(f, 0) for f in found] for statistic in (torch.mean, torch.std))
    z = (means[0] - means[1]) / ((stds[0] ** 2 + stds[1] ** 2) / 400).sqrt()
    assert z.abs().max() < 5
    assert (stds[0] / stds[1] - 1).abs().max() < 0.5


REFUSED = {
    "a learned prior": (mcrepar.prior("normal", scale="learned"), {}, "the KL of 0.weight looks at values"),
    "a generator": ("normal", {"generator": seeded(1)}, "seeds the default RNG"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_graph_says_why_and_runs_in_parts(case):
    prior, options, words = REFUSED[case]
    bnn, x, y = bayesian(mlp(), "normal", prior), torch.ones(3, 4), torch.ones(3, 2)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
        losses(bnn, Normal(), x, y, {"backend": "eager", "fullgraph": True}, **options)(x, y)
    torch._dynamo.reset()
    loss = losses(bnn, Normal(), x, y, {"backend": "eager"}, **options)(x, y)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in bnn.parameters())


@pytest.mark.filterwarnings("ignore")
def test_a_frozen_network_is_no_graph():
    bnn, x = network("normal", "normal"), torch.ones(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend="eager", fullgraph=True)
    compiled(x)
    with bnn.frozen("mean"), pytest.raises(torch._dynamo.exc.Unsupported, match=r"compile bnn\.to_module"):
        compiled(x)
    assert not torch.equal(compiled(x), compiled(x))


@pytest.mark.parametrize(("posterior", "prior"), FAMILIES)
def test_gradients_of_torch_func(posterior, prior, monkeypatch):
    bnn, x, y = network(posterior, prior), torch.ones(3, 4), torch.zeros(3, 2)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.bnn = bnn

        def forward(self):
            return mcrepar.elbo(self.bnn, "normal", x, y, data_size=50).loss

    parameters = dict(Loss().named_parameters())
    torch.manual_seed(1)
    ours = torch.func.grad(lambda given: torch.func.functional_call(Loss(), given, ()))(parameters)
    tensor_by_tensor(monkeypatch)
    torch.manual_seed(1)
    Loss()().backward()
    for name, p in parameters.items():
        torch.testing.assert_close(ours[name], p.grad)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("posterior", ["normal", "radial"])
def test_vmap_over_draws(posterior, way):
    """Every row has noise of its own: mean and variance over rows are those of draws one by one, |z| < 5."""
    bnn, x = network(posterior, "normal", initial_std=0.5, **way), torch.ones(1, 4)
    with torch.no_grad():
        mapped = torch.func.vmap(lambda k: bnn(x), randomness="different")(torch.arange(1000))[:, 0]
        looped = torch.stack([bnn(x)[0] for _ in range(1000)])
        same = torch.func.vmap(lambda k: bnn(x), randomness="same")(torch.arange(3))
    assert torch.equal(same[0], same[2])
    for one, two in ((mapped, looped), ((mapped - mapped.mean(0)) ** 2, (looped - looped.mean(0)) ** 2)):
        z = (one.mean(0) - two.mean(0)) / ((one.var(0) + two.var(0)) / 1000).sqrt()
        assert z.abs().max() < 5


def test_what_torch_func_cannot_differentiate_is_refused():
    bnn = bayesian(mlp(), "normal", "mixture", "stream", 10)

    class KL(nn.Module):
        def __init__(self):
            super().__init__()
            self.bnn = bnn

        def forward(self):
            return kl(self.bnn)

    with pytest.raises(mcrepar.MethodError, match=r"the KL of 0\.weight in a transform of torch\.func"):
        torch.func.grad(lambda given: torch.func.functional_call(KL(), given, ()))(dict(KL().named_parameters()))


@pytest.mark.parametrize("structure", ["weights", "rank1"])
@pytest.mark.parametrize(("posterior", "prior"), FAMILIES)
def test_an_exported_network_draws_at_every_call(posterior, prior, structure):
    bnn, x = network(posterior, prior, structure=structure), torch.ones(3, 4)
    program = torch.export.export(bnn, (x,)).module()
    outs = torch.stack([program(x) for _ in range(400)]).detach()
    assert not torch.equal(outs[0], outs[1])
    eager = torch.stack([bnn(x) for _ in range(400)]).detach()
    z = (outs.mean(0) - eager.mean(0)) / ((outs.var(0) + eager.var(0)) / 400).sqrt()
    assert z.abs().max() < 5


def test_an_export_of_several_members_is_refused():
    with pytest.raises(mcrepar.MethodError, match=r"members=2: a graph cannot choose.*draw\(member=0\)"):
        torch.export.export(network("normal", "normal", structure="rank1", members=2), (torch.ones(3, 4),))


@pytest.mark.parametrize("way", [{"forward": "weights"}, {"forward": "local"}, {"structure": "rank1"}], ids=str)
def test_a_scaler_and_autocast_take_the_step_of_full_precision(way):
    steps = []
    for scaled in (False, True):
        bnn, x, y = (
            network("normal", "normal", **way),
            torch.linspace(-1, 1, 12).reshape(3, 4),
            torch.ones(3, 2),
        )
        optimizer = torch.optim.SGD(bnn.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10)
        for _ in range(3):
            optimizer.zero_grad()
            torch.manual_seed(1)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=scaled):
                e = mcrepar.elbo(bnn, "normal", x, y, data_size=50)
            assert e.loss.dtype == torch.float32
            scaler.scale(e.loss).backward()
            scaler.step(optimizer)
            scaler.update()
        steps.append([p.detach() for p in bnn.parameters()])
    for one, two in zip(*steps, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0.03)  # bfloat16 has 8 bits


def test_a_scaler_skips_a_step_that_overflows():
    bnn, x, y = network("normal", "normal"), torch.ones(3, 4), torch.ones(3, 2)
    optimizer, scaler = torch.optim.SGD(bnn.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = [p.detach().clone() for p in bnn.parameters()]
    scaler.scale(mcrepar.elbo(bnn, "normal", x, y * 1e3, data_size=50).loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(map(torch.equal, before, bnn.parameters()))
    assert scaler.get_scale() < 2.0**127
