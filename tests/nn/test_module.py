"""Any network becomes Bayesian: one table of networks, each drawn, trained, frozen, copied and exported (float64).

Statistical tests fix their seeds; |z| > 5 by chance: 6e-7.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import pickle

import pytest
import torch
from tests.conftest import seeded
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import mcrepar
from mcrepar import MethodError, ParameterError, bayesian, kl
from mcrepar.kl.graph import saved_bytes
from mcrepar.nn.emptied import Guard


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.embedding(x)).tanh())


class Shared(nn.Module):
    """One layer under two names, inside a nested module, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Tanh(), nn.Sequential(self.first, nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(self.first(x)))


class Keywords(nn.Module):
    """Keyword arguments, a dict as output, buffers, a parameter of its own, and lists of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.shift = nn.Parameter(torch.linspace(-1, 1, 3))
        self.factors = nn.ParameterList([nn.Parameter(torch.linspace(0.5, 1.5, 3))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.linspace(1, 2, 3))})
        self.register_buffer("offset", torch.full((3,), 0.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, *, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        self.calls += 1
        out = scale * self.layer(x) + self.offset + self.shift
        return {"a": out * self.factors[0], "b": (out * self.named["a"]).tanh()}


class Bag(nn.Module):
    """Layers that are neither dense nor convolutional."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.bilinear, self.cell = nn.EmbeddingBag(7, 4), nn.Bilinear(4, 4, 3), nn.GRUCell(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bag(x)
        return self.cell(self.bilinear(h, h.tanh()), h[:, :3])


def randn(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 7, shape, generator=seeded(6))


IMAGE, SERIES, VOLUME = (2, 4, 6, 6), (2, 4, 7), (2, 4, 4, 4, 4)
NETS = {
    "linear": (lambda: nn.Linear(4, 3), (randn(5, 4),)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (randn(5, 4),)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=2, padding_mode="circular", dilation=2, groups=2), (randn(*SERIES),)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", stride=2, groups=2), (randn(*IMAGE),)),
    "conv3d": (lambda: nn.Conv3d(4, 2, 3, padding=1, padding_mode="replicate", dilation=1), (randn(*VOLUME),)),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2), (randn(*SERIES),)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 2, 3, 2, output_padding=1, dilation=2), (randn(*IMAGE),)),
    "transposed3d": (lambda: nn.ConvTranspose3d(4, 2, 2, stride=2, padding=1), (randn(*VOLUME),)),
    "embedding": (lambda: nn.Embedding(7, 3), (tokens(4, 5),)),
    "padded embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), (tokens(4, 5),)),
    "lstm": (lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True), (randn(2, 5, 4),)),
    "gru": (lambda: nn.GRU(4, 3, num_layers=2, bidirectional=True, batch_first=True), (randn(2, 5, 4),)),
    "attention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (randn(2, 3, 4),) * 3),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (randn(2, 3, 4),)),
    "tied": (Tied, (tokens(4, 5),)),
    "shared": (Shared, (randn(5, 4),)),
    "keywords": (Keywords, {"x": randn(5, 4), "scale": 2.0}),
    "bag": (Bag, (tokens(4, 5),)),
    "norm": (lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2)),
             (randn(*IMAGE),)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (randn(5, 4),)),
}  # fmt: skip


@pytest.fixture(params=NETS)
def named(request):
    """A network of the table, in float64, and a function that calls it."""
    build, given = NETS[request.param]
    torch.manual_seed(0)
    net = build().double()

    def call(module: nn.Module) -> Tensor:
        out = module(**given) if isinstance(given, dict) else module(*given)
        return torch.cat([leaf.flatten() for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)])

    return net, call


# ---- the table


def test_every_parameter_gets_a_gradient_from_the_first_forward(named):
    net, call = named
    bnn = bayesian(net)
    out = call(bnn)
    (out * torch.linspace(0.5, 2, len(out))).sum().backward()
    for name, p in bnn.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


def test_the_kl_has_a_gradient_for_every_random_tensor(named):
    bnn = bayesian(named[0])
    kl(bnn).backward()
    for _, latent in bnn._latents():
        assert latent.log_scale.grad.any()
        assert latent.loc.grad.isfinite().all()
        assert latent.loc.grad.any() or not latent.loc.any()  # zeros are the prior's own mean
    assert all(p.grad is None for p in bnn.net.parameters())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_it_is_random_unless_frozen(named, training, grad):
    net, call = named
    bnn = bayesian(net).train(training)
    ignoring = pytest.warns(UserWarning, match="BatchNorm") if _warns(bnn) else contextlib.nullcontext()
    with torch.set_grad_enabled(grad):
        assert not torch.equal(call(bnn), call(bnn))
        with ignoring, bnn.frozen("mean"):
            assert torch.equal(call(bnn), call(bnn))
        with bnn.frozen(bnn.draw()):
            assert torch.equal(call(bnn), call(bnn))
        assert not torch.equal(call(bnn), call(bnn))


def _warns(bnn: mcrepar.BayesianModule) -> bool:
    return bool(bnn.calibration.layers) and not bnn.training


def test_it_starts_as_the_network_it_was(named):
    """With next to no noise a draw is the network; the means are its weights, exactly."""
    net, call = named
    twin = copy.deepcopy(net).eval()
    weights = {n: p.detach().clone() for n, p in net.named_parameters(remove_duplicate=False)}
    bnn = bayesian(net, start_std=1e-9).eval()
    torch.testing.assert_close(call(bnn), call(twin), atol=1e-6, rtol=1e-6)
    assert all(torch.equal(w, weights[n]) for n, w in bnn.mean().items())
    assert all(w.stride() == weights[n].stride() for n, w in bnn.draw().items())


def test_an_export_is_an_ordinary_module(named):
    net, call = named
    twin = copy.deepcopy(net).eval()
    bnn = bayesian(net).eval()
    call(bnn)
    with pytest.warns(UserWarning, match="BatchNorm") if _warns(bnn) else contextlib.nullcontext():
        plain = bnn.to_module("mean")
    torch.testing.assert_close(call(plain), call(twin), atol=1e-12, rtol=1e-12)
    ours, theirs = dict(plain.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == theirs.keys()  # tied weights are listed once: they are still one
    assert all(p.shape == theirs[n].shape and type(p) is nn.Parameter for n, p in ours.items())
    assert not any(isinstance(hook, Guard) for m in plain.modules() for hook in m._forward_pre_hooks.values())
    assert not torch.equal(call(bnn.to_module("draw")), call(bnn.to_module("draw")))
    draw = bnn.draw()
    with bnn.frozen(draw):
        torch.testing.assert_close(call(bnn.to_module(draw)), call(bnn))


def test_copies_are_apart_and_the_same(named):
    net, call = named
    bnn = bayesian(net)
    call(bnn)  # a copy after a forward must not hold its draw
    buffer = io.BytesIO()
    torch.save(bnn.state_dict(), buffer)
    buffer.seek(0)
    fresh = copy.deepcopy(bnn)
    for p in fresh.parameters():
        p.data.add_(1.0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    twins, state = [copy.deepcopy(bnn), fresh], copy.deepcopy(bnn.state_dict())
    if not torch.nn.utils.parametrize.is_parametrized(bnn.net):  # which torch itself does not pickle
        twins.append(pickle.loads(pickle.dumps(bnn)))  # noqa: S301
    for twin in twins:
        bnn.load_state_dict(state)  # a call may count in a buffer
        assert all(torch.equal(t, state[n]) for n, t in twin.state_dict().items())
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in bnn.parameters()}
        torch.manual_seed(1)
        one = call(bnn)
        torch.manual_seed(1)
        assert torch.equal(call(twin), one)
        assert torch.equal(kl(twin, generator=seeded(2)), kl(bnn, generator=seeded(2)))


def test_no_parameter_is_stored_twice(named):
    """Two numbers for every random weight, one for every other, and nothing is left behind by a forward."""
    net, call = named
    chosen = bayesian(copy.deepcopy(net))
    random = sum(latent.log_scale.numel() for _, latent in chosen._latents())
    everything = sum(p.numel() for p in net.parameters())
    buffers = sum(b.numel() for b in net.buffers())
    fixed = sum(p.numel() for p in chosen.net.parameters())
    padding = sum(latent.held.numel() for _, latent in chosen._latents() if latent.held is not None)
    assert random + fixed + padding == everything
    call(chosen)
    tensors = [*chosen.parameters(), *chosen.buffers()]
    assert sum(t.numel() for t in tensors) == 2 * random + fixed + padding + buffers
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    assert len(set(storages)) == len(storages)
    for module in chosen.net.modules():
        assert not any(type(v) is Tensor for v in vars(module).values())
        assert all(w is None or isinstance(w, nn.Parameter) for w in vars(module).get("_flat_weights", []))


# ---- one tensor under several names, rows that are held


def test_tied_weights_are_one_latent_drawn_and_counted_once():
    torch.manual_seed(0)
    bnn = bayesian(Tied(), prior="normal")
    assert sorted(bnn.names.values()) == [
        ("embedding.weight", "head.weight"), ("hidden.bias",), ("hidden.weight",)]  # fmt: skip
    draw = bnn.draw()
    assert draw["embedding.weight"] is draw["head.weight"]
    parts = [latent.divergence().item() for _, latent in bnn._latents()]
    assert kl(bnn).item() == pytest.approx(sum(parts), rel=1e-6)
    plain = bnn.to_module("draw")
    assert plain.head.weight is plain.embedding.weight


def test_a_shared_part_counts_once_and_parts_of_a_larger_network_add_up():
    torch.manual_seed(0)
    part, other = bayesian(nn.Linear(3, 3)), bayesian(nn.Linear(3, 3))
    whole = nn.Sequential(part, nn.Tanh(), other, part)
    assert kl(whole).item() == pytest.approx((kl(part) + kl(other)).item(), rel=1e-6)
    assert whole(torch.zeros(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("posterior", ["radial", "normal", "lognormal", "error"])
@pytest.mark.parametrize("row", [0, 3, -1])
def test_the_padding_row_is_the_network_s_own(posterior, row):
    torch.manual_seed(0)
    net = nn.Embedding(7, 4, padding_idx=row)
    bnn = bayesian(net, posterior, "lognormal" if posterior == "lognormal" else "normal", signs="keep")
    latent = bnn.latents["weight"]
    assert latent.log_scale.shape == (6, 4)  # the KL and Radial's d know nothing of the row
    optimizer = torch.optim.AdamW(bnn.parameters(), lr=0.1)
    for _ in range(3):
        out = bnn(torch.arange(7))
        assert torch.equal(out[row % 7], torch.zeros(4))
        assert bnn.mean()["weight"][row % 7].eq(0).all()
        assert (out != 0).sum() == 24
        (out.square().sum() + kl(bnn)).backward()
        optimizer.step()
    assert torch.equal(bnn.to_module("draw").weight[row % 7], torch.zeros(4))


def test_a_padding_row_that_is_also_a_class_is_random():
    net = Tied()
    net.embedding.padding_idx = 0
    assert bayesian(net).latents["embedding/weight"].hold is None


def test_recurrent_options_are_kept():
    torch.manual_seed(0)
    bnn = bayesian(nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True))
    out, (h, _) = bnn(torch.zeros(2, 5, 4))
    assert out.shape == (2, 5, 6)
    assert h.shape == (4, 2, 3)
    assert len(bnn.latents) == 16
    assert kl(bnn).item() == pytest.approx(sum(latent.divergence().item() for _, latent in bnn._latents()), rel=1e-6)


# ---- one noise, one draw


def test_two_forwards_and_one_backward_are_the_sum_of_two():
    net, x = NETS["mlp"][0]().double(), randn(5, 4)
    bnn = bayesian(net)

    def gradients(*losses: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(sum(losses), list(bnn.parameters())))

    torch.manual_seed(1)
    together = gradients(bnn(x).square().sum(), bnn(2 * x).sum())
    torch.manual_seed(1)
    apart = [gradients(bnn(x).square().sum()), gradients(bnn(2 * x).sum())]
    for both, first, second in zip(together, *apart, strict=True):
        torch.testing.assert_close(both, first + second, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["normal", "laplace", "logistic", "horseshoe", "radial", "error"])
def test_the_noise_of_the_forward_is_that_of_the_kl(name):
    """One object: the KL's posterior draws what the forward draws, from the same generator."""
    torch.manual_seed(0)
    bnn = bayesian(nn.Linear(4, 3).double(), name)
    draw = bnn.draw(seeded(3))
    generator = seeded(3)
    for key, latent in bnn._latents():
        torch.testing.assert_close(draw[key], latent.posterior.draw(generator=generator))
        assert latent.posterior.noise == latent.options.posterior.row.noise(latent.posterior.fixed, draw[key].numel())


def test_a_generator_decides_the_draw_and_leaves_the_default_alone():
    bnn = bayesian(nn.Linear(4, 3))
    state = torch.get_rng_state()
    one, two = bnn.draw(seeded(1)), bnn.draw(seeded(1))
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(bnn.draw(seeded(2))["weight"], one["weight"])


def test_frozen_contexts_nest_and_belong_to_their_network():
    torch.manual_seed(0)
    bnn, other, x = bayesian(nn.Linear(4, 3)), bayesian(nn.Linear(4, 3)), torch.ones(1, 4)
    draw = bnn.draw()
    with bnn.frozen("mean"):
        mean = bnn(x)
        with bnn.frozen(draw):
            assert not torch.equal(bnn(x), mean)
        assert torch.equal(bnn(x), mean)
        assert not torch.equal(other(x), other(x))
        mean.sum().backward()  # the mean is differentiable
        assert bnn.latents["weight"].loc.grad is not None
    with pytest.raises(ZeroDivisionError), bnn.frozen("mean"):
        raise ZeroDivisionError
    assert not torch.equal(bnn(x), bnn(x))


# ---- what surrounds a network


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 3, batch_first=True)))
    bnn.to(dtype)
    assert bnn(torch.ones(2, 5, 4, dtype=dtype))[0].dtype == dtype
    assert kl(bnn).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("forward", ["weights", "local", "flipout"])
@pytest.mark.parametrize("posterior", ["normal", "radial"])
def test_bf16_autocast(forward, posterior):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), posterior, forward=forward)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, divergence = bnn(torch.ones(5, 4)), kl(bnn)
    assert out.dtype == torch.bfloat16  # as that of the plain network
    assert divergence.dtype == torch.float32
    torch.testing.assert_close(divergence, kl(bnn))
    (out.float().sum() + divergence).backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in bnn.parameters())


def test_running_the_emptied_network_is_refused():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    with pytest.raises(MethodError, match="its weight is random"):
        bnn.net(torch.zeros(1, 4))


def test_channels_last_draws_have_the_strides_of_their_weights():
    net = nn.Sequential(nn.Conv2d(4, 6, 3)).to(memory_format=torch.channels_last)
    stride = net[0].weight.stride()
    bnn = bayesian(net, "radial")
    assert bnn.draw()["0.weight"].stride() == bnn.latents["0/weight"].noise().stride() == stride
    with torch.no_grad():
        later = bayesian(nn.Conv2d(4, 6, 3)).to(memory_format=torch.channels_last)
    assert later.draw()["weight"].stride() == stride


def test_the_kl_saves_nothing_that_grows_with_m():
    bnn = bayesian(nn.Linear(40, 30), "radial", "normal")
    sizes = {saved_bytes(lambda m=m: kl(bnn, "stats", m)) for m in (100, 1000, 10**6)}
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("forward", "backend"),
    [("weights", "eager"), ("weights", "aot_eager"), ("local", "aot_eager"), ("flipout", "eager"),
     ("per_example", "eager")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_torch_compile(forward, backend):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "normal", forward=forward)
    x = torch.ones(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend=backend)
    torch.manual_seed(1)
    out = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(out, bnn(x))
    assert not torch.equal(compiled(x), compiled(x))
    with bnn.frozen("mean"):
        torch.testing.assert_close(compiled(x), bnn(x))
    assert not torch.equal(compiled(x), compiled(x))
    out.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in bnn.parameters())
    assert bnn._lock.lock.acquire(blocking=False)
    bnn._lock.lock.release()


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_of_a_recurrent_network():
    torch.manual_seed(0)
    bnn, x = bayesian(nn.GRU(4, 3, batch_first=True)), torch.ones(2, 5, 4)
    torch._dynamo.reset()
    (torch.compile(bnn, backend="eager")(x)[0].square().sum() + kl(bnn)).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in bnn.parameters())
    assert not torch.equal(bnn(x)[0], bnn(x)[0])
    copy.deepcopy(bnn)


# ---- refusals


def build(**options):
    return lambda: bayesian(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), **options)


REFUSED = {
    "no network": (lambda: bayesian("net"), ParameterError, "not an nn.Module"),
    "no parameters": (lambda: bayesian(nn.ReLU()), ParameterError, "no parameters"),
    "nothing selected": (build(select=lambda name, p: False), ParameterError, "selects no trainable parameter"),
    "unknown pattern": (build(select="head*"), ParameterError, "no parameter matches"),
    "nothing trainable": (lambda: bayesian(nn.Linear(2, 2).requires_grad_(False)), ParameterError, "no trainable"),
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


def test_an_optimizer_that_was_built_before_is_refused():
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ParameterError, match=r"an optimizer .* holds weight"):
        bayesian(net)
    del optimizer
    bayesian(net)


@pytest.mark.parametrize("ask", ["median", "Mean"])
def test_a_frozen_word_is_mean_or_draw(ask):
    with pytest.raises(MethodError, match="neither"), bayesian(nn.Linear(2, 2)).frozen(ask):
        pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda draw: {"weight": draw["weight"]}, "it has no bias; use"),
        (lambda draw: None, "a frozen NoneType: it names no weights; use 'mean'"),
        (lambda draw: 3, "a frozen int"),
        (lambda draw: {**draw, "bias": torch.zeros(4)}, r"its bias has the shape \(4,\), not .* \(3,\)"),
        (lambda draw: {**draw, "weight": draw["weight"].T}, r"its weight has the shape \(4, 3\)"),
        (lambda draw: {**draw, "bias": 0.0}, "its bias has the type float"),
    ],
)
def test_a_frozen_draw_is_one_of_the_network(change, words):
    bnn = bayesian(nn.Linear(4, 3))
    for use in (bnn.complete, bnn.to_module):
        with pytest.raises(ParameterError, match=words):
            use(change(bnn.draw()))


def test_nothing_bayesian_has_no_kl():
    with pytest.raises(ParameterError, match="nothing in it is Bayesian"):
        kl(nn.Linear(2, 2))


def test_a_kl_that_is_not_finite_names_its_tensor():
    bnn = bayesian(nn.Linear(2, 2))
    with torch.no_grad():
        bnn.latents["bias"].loc[0] = math.nan
    with pytest.raises(mcrepar.McreparError):
        kl(bnn)
