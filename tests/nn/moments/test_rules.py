"""Every rule against samples of its own operation: independent Normal arguments, 10,000 draws in float64.

Exact rules: |z| < 5 for every mean and variance (false alarms: 6e-7 for each). Approximate rules state the error that
they are allowed, in standard deviations of the result and as a ratio of variances.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor, nn

from mcrepar import MethodError
from mcrepar.nn.moments.elementwise_rules import SMOOTH, smooth
from mcrepar.nn.moments.linear_rules import VIEWS
from mcrepar.nn.moments.rules import MOMENT_RULES
from mcrepar.nn.moments.tensor import SEEN, MomentTensor
from tests.conftest import seeded

DRAWS = 10_000
X, IMAGE, VOLUME, MATRIX = (2, 6), (2, 4, 6, 6), (1, 2, 4, 4, 4), (2, 3, 4)
MASK = torch.tensor([True, False, True, False, True, False])
INDEX = torch.tensor([2, 0])


def random(*shape: int, seed: int = 0, std: float = 0.7) -> MomentTensor:
    """Means of both signs, variances between 0.1 and 1 of std^2."""
    rng = seeded(seed)
    mean = torch.randn(*shape, generator=rng, dtype=torch.float64)
    return MomentTensor(mean, std**2 * (0.1 + 0.9 * torch.rand(*shape, generator=rng, dtype=torch.float64)))


@cache
def fixed(*shape: int, seed: int = 9) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def conv(function, d, transposed=False, **named):
    weight = (4, 3, *[3] * d) if transposed else (3, 4, *[3] * d)
    shapes = ((1, 4, *[5 if d < 3 else 3] * d), weight, (3,))
    return lambda x, w, b: function(x, w, b, stride=2, padding=1, **named), shapes


# name: (function, shapes of its random arguments); exact ones
EXACT = {
    "linear": (F.linear, (X, (3, 6), (3,))),
    "conv1d": conv(F.conv1d, 1),
    "conv2d": conv(F.conv2d, 2),
    "conv3d": conv(F.conv3d, 3),
    "conv_transpose1d": conv(F.conv_transpose1d, 1, True),
    "conv_transpose2d": conv(F.conv_transpose2d, 2, True, output_padding=1),
    "conv_transpose3d": conv(F.conv_transpose3d, 3, True),
    "embedding": (lambda w: F.embedding(INDEX, w), ((5, 3),)),
    "mul": (lambda a, b: a * b, (X, X)),
    "multiply": (lambda a: torch.multiply(a, fixed(6)), (X,)),
    "square": (lambda a: a * a, (X,)),
    "matmul": (lambda a, b: a @ b, (MATRIX, (2, 4, 3))),
    "__rmatmul__": (lambda a: fixed(3, 2) @ a, (X,)),
    "bmm": (torch.bmm, (MATRIX, (2, 4, 3))),
    "mm": (lambda a: torch.mm(a, fixed(6, 2)), (X,)),
    "mv": (lambda a: torch.mv(a, fixed(6)), (X,)),
    "dot": (lambda a: torch.dot(a, fixed(6)), ((6,),)),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (MATRIX, (2, 4, 3))),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=2, alpha=0.5), ((3,), X, (6, 3))),
    "div": (lambda a: a / 3, (X,)),
    "divide": (lambda a: torch.divide(a, 2.0), (X,)),
    "true_divide": (lambda a: torch.true_divide(a, 2.0), (X,)),
    "add": (lambda a, b: torch.add(a, b, alpha=2) + 1 + fixed(3, 2, 6), (X, X)),
    "sub": (lambda a, b: a - b - 1, (X, X)),
    "subtract": (lambda a: torch.subtract(a, 1.0), (X,)),
    "__rsub__": (lambda a: 1 - a, (X,)),
    "rsub": (lambda a: torch.rsub(a, 1.0), (X,)),
    "neg": (lambda a: -a, (X,)),
    "sum": (lambda a: a.sum((0, 2)), (MATRIX,)),
    "mean": (lambda a: a.mean((1, 2), keepdim=True), (MATRIX,)),
    "cat": (lambda a, b: torch.cat([a, fixed(2, 6), b], 1), (X, X)),
    "concat": (lambda a: torch.concat([a, a[:1]]), (X,)),
    "concatenate": (lambda a: torch.concatenate([a, a]), (X,)),
    "stack": (lambda a, b: torch.stack([a, b], 1), (X, X)),
    "hstack": (lambda a: torch.hstack([a, a]), (X,)),
    "vstack": (lambda a: torch.vstack([a, a]), (X,)),
    "dstack": (lambda a: torch.dstack([a, a]), (X,)),
    "pad": (lambda a: F.pad(a, (1, 2), value=3.0), (X,)),
    "where": (lambda a: torch.where(MASK, a, torch.tensor(0.5, dtype=torch.float64)), (X,)),
    "masked_fill": (lambda a: a.masked_fill(MASK, 7.0), (X,)),
    "relu": (F.relu, (X,)),
    "leaky_relu": (lambda a: F.leaky_relu(a, 0.2), (X,)),
    "prelu": (lambda a: F.prelu(a, torch.full((6,), 0.3, dtype=torch.float64)), (X,)),
    "glu": (F.glu, (X,)),
    "abs": (torch.abs, (X,)),
    "absolute": (torch.absolute, (X,)),
    "maximum": (torch.maximum, (X, X)),
    "minimum": (torch.minimum, (X, X)),
    "clamp": (lambda a: a.clamp(-0.3, 0.6), (X,)),
    "clip": (lambda a: a.clip(min=-0.3), (X,)),
    "hardtanh": (F.hardtanh, (X,)),
    "relu6": (lambda a: F.relu6(4 * a), (X,)),
    "hardsigmoid": (lambda a: F.hardsigmoid(3 * a), (X,)),
    **{name: (getattr(F, name.replace("log_s", "logs"), None) or getattr(torch, name), (X,)) for name in SMOOTH},
    "pow": (lambda a: a**3, (X,)),
    "exp": (torch.exp, (X,)),
    "avg_pool1d": (lambda a: F.avg_pool1d(a, 3, 2, padding=1, count_include_pad=False), (MATRIX,)),
    "avg_pool2d": (lambda a: F.avg_pool2d(a, 3, 2, padding=1), (IMAGE,)),
    "avg_pool3d": (lambda a: F.avg_pool3d(a, 2), (VOLUME,)),
    "adaptive_avg_pool1d": (lambda a: F.adaptive_avg_pool1d(a, 3), ((2, 3, 7),)),
    "adaptive_avg_pool2d": (lambda a: F.adaptive_avg_pool2d(a, (4, 3)), (IMAGE,)),
    "adaptive_avg_pool3d": (lambda a: F.adaptive_avg_pool3d(a, 1), (VOLUME,)),
    "max_pool1d": (lambda a: F.max_pool1d(a, 2), (MATRIX,)),
    "batch_norm": (lambda a: F.batch_norm(a, fixed(4), fixed(4).square(), fixed(4), fixed(4)), (IMAGE,)),
    "T": (lambda a: a.T, (X,)),
    "mT": (lambda a: a.mT, (MATRIX,)),
    "H": (lambda a: a.H, (X,)),
    "mH": (lambda a: a.mH, (MATRIX,)),
    "dropout": (lambda a: F.dropout(a, training=False), (X,)),
}
# (function, shapes, error of a mean in standard deviations, ratio of mean variances)
APPROXIMATE = {
    "max_pool2d": (lambda a: F.max_pool2d(a, 3, 2, padding=1), (IMAGE,), 0.1, 1.1),
    "max_pool3d": (lambda a: F.max_pool3d(a, 2, ceil_mode=True), (VOLUME,), 0.1, 1.1),
    "adaptive_max_pool1d": (lambda a: F.adaptive_max_pool1d(a, 2), (MATRIX,), 0.05, 1.05),
    "adaptive_max_pool2d": (lambda a: F.adaptive_max_pool2d(a, 3), (IMAGE,), 0.1, 1.1),
    "adaptive_max_pool3d": (lambda a: F.adaptive_max_pool3d(a, 2), (VOLUME,), 0.1, 1.1),
    "amax": (lambda a: a.amax((0, -1), keepdim=True), (X,), 0.1, 1.1),
    "interpolate": (lambda a: F.interpolate(a, scale_factor=2), (IMAGE,), 0.05, 1.05),
    "layer_norm": (lambda a: F.layer_norm(a, (40,), fixed(40), fixed(40)), ((2, 40),), 0.15, 1.2),
    "group_norm": (lambda a: F.group_norm(a, 2, fixed(4), fixed(4)), (IMAGE,), 0.1, 1.15),
    "instance_norm": (lambda a: F.instance_norm(a), (IMAGE,), 0.15, 1.2),
    "rms_norm": (lambda a: F.rms_norm(a, (40,)), ((2, 40),), 0.15, 1.2),
    "softmax": (lambda a: F.softmax(a, -1), (X,), 0.3, 1.3, 0.3),
    "log_softmax": (lambda a: F.log_softmax(a, -1), (X,), 0.3, 1.15, 0.3),
    "scaled_dot_product_attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((2, 2, 5, 4),) * 3, 0.4, 1.2, 0.4,
    ),
}  # fmt: skip
VIEW_CASES = {
    "view": lambda a: a.view(6, 2),
    "reshape": lambda a: a.reshape(3, 4),
    "flatten": torch.flatten,
    "unflatten": lambda a: a.unflatten(1, (2, 3)),
    "squeeze": lambda a: a[:1].squeeze(0),
    "unsqueeze": lambda a: a.unsqueeze(1),
    "transpose": lambda a: a.transpose(0, 1),
    "permute": lambda a: a.permute(1, 0),
    "swapaxes": lambda a: a.swapaxes(0, 1),
    "swapdims": lambda a: a.swapdims(0, 1),
    "movedim": lambda a: a.movedim(0, 1),
    "t": lambda a: a.t(),
    "expand": lambda a: a.expand(3, 2, 6),
    "expand_as": lambda a: a.expand_as(fixed(3, 2, 6)),
    "repeat": lambda a: a.repeat(2, 1),
    "repeat_interleave": lambda a: a.repeat_interleave(2, 0),
    "narrow": lambda a: a.narrow(1, 1, 2),
    "select": lambda a: a.select(1, 1),
    "index_select": lambda a: a.index_select(1, INDEX),
    "gather": lambda a: a.gather(1, INDEX[None]),
    "chunk": lambda a: a.chunk(2, 1)[1],
    "split": lambda a: a.split(2, 1)[2],
    "tensor_split": lambda a: a.tensor_split(2)[0],
    "unbind": lambda a: a.unbind(1)[3],
    "__getitem__": lambda a: a[:, ::2],
    "contiguous": lambda a: a.contiguous(),
    "clone": lambda a: a.clone(),
    "detach": lambda a: a.detach(),
    "to": lambda a: a.to(torch.float64),
    "float": lambda a: a.float().double(),
    "double": lambda a: a.double(),
    "half": lambda a: a.half().shape and a,
    "bfloat16": lambda a: a.bfloat16().shape and a,
    "type": lambda a: a.type(torch.float64),
    "type_as": lambda a: a.type_as(fixed(1)),
    "cpu": lambda a: a.cpu(),
    "flip": lambda a: a.flip(1),
    "roll": lambda a: a.roll(1, 0),
    "tile": lambda a: a.tile(2, 1),
    "take_along_dim": lambda a: a.take_along_dim(INDEX[None], 1),
    "diagonal": lambda a: a.diagonal(),
    "unfold": lambda a: a.unfold(1, 3, 2),
    "pixel_shuffle": lambda a: F.pixel_shuffle(a.view(1, 4, 1, 3), 2),
    "pixel_unshuffle": lambda a: F.pixel_unshuffle(a.view(1, 1, 2, 6), 2),
    "channel_shuffle": lambda a: F.channel_shuffle(a.view(1, 6, 1, 2), 2),
    "view_as": lambda a: a.view_as(fixed(4, 3)),
    "reshape_as": lambda a: a.reshape_as(fixed(4, 3)),
    "broadcast_to": lambda a: a.broadcast_to(2, 2, 6),
    "tril": torch.tril,
    "triu": torch.triu,
    "ravel": lambda a: a.ravel(),
    "atleast_1d": torch.atleast_1d,
    "data": lambda a: a.data,
    "rot90": torch.rot90,
    "adjoint": lambda a: a.adjoint(),
    "__iter__": lambda a: next(iter(a)),
}
UNTRIED = {
    "cuda", "requires_grad_", "__abs__", "__setitem__", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout", "multi_head_attention_forward", "max", "min",
}  # a device, other spellings, and what has tests of its own  # fmt: skip


def arguments(shapes) -> list[MomentTensor]:
    return [random(*shape, seed=k) for k, shape in enumerate(shapes)]


def sampled(function, inputs: list[MomentTensor]) -> Tensor:
    rng = seeded(1)
    draws = [
        x.expectation + x.variance.sqrt() * torch.randn(DRAWS, *x.shape, generator=rng, dtype=torch.float64)
        for x in inputs
    ]
    if len(inputs) == 3 and inputs[0].dim() == 4 and inputs[1].shape == inputs[2].shape:
        return function(*draws)  # attention has any number of leading dimensions
    return torch.vmap(function, chunk_size=2000)(*draws)


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_rule(name):
    function, shapes = EXACT[name]
    inputs = arguments(shapes)
    got, wanted = function(*inputs), sampled(function, inputs)
    assert isinstance(got, MomentTensor)
    assert got.shape == got.expectation.shape == got.variance.shape == wanted.shape[1:]
    spread = torch.maximum(got.variance, wanted.var(0))
    mean_error = (spread / DRAWS).sqrt()
    assert bool(((got.expectation - wanted.mean(0)).abs() <= 5 * mean_error + 1e-9).all())
    fourth = (wanted - wanted.mean(0)).pow(4).mean(0)
    error = ((fourth - wanted.var(0).square()).clamp_min(0) / DRAWS).sqrt()
    rounding = (2e-3 if name in SMOOTH else 1e-4) * spread.max()  # of 16 nodes; events rarer than one draw
    assert bool(((got.variance - wanted.var(0)).abs() <= 5 * error + rounding).all())


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_approximate_rule(name):
    function, shapes, most, ratio, *narrow = APPROXIMATE[name]
    inputs = [random(*shape, seed=k, std=narrow[0] if narrow else 0.7) for k, shape in enumerate(shapes)]
    got, wanted = function(*inputs), sampled(function, inputs)
    assert float(((got.expectation - wanted.mean(0)) / wanted.std(0).clamp_min(1e-9)).abs().max()) < most
    assert 1 / ratio < float(got.variance.mean() / wanted.var(0).mean()) < ratio


@pytest.mark.parametrize("name", VIEW_CASES)
def test_a_view_has_the_moments_of_its_numbers(name):
    x = random(*X)
    got = VIEW_CASES[name](x)
    for ours, plain in ((got.expectation, x.expectation), (got.variance, x.variance)):
        wanted = VIEW_CASES[name](plain)
        torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=0)


def test_every_rule_is_tried():
    assert set(MOMENT_RULES) == {*EXACT, *APPROXIMATE, *VIEW_CASES, *UNTRIED}
    assert set(VIEWS) <= set(MOMENT_RULES)


@pytest.mark.parametrize("name", [*EXACT, *APPROXIMATE])
def test_without_variance_it_is_the_operation(name):
    function, shapes, *_ = {**EXACT, **APPROXIMATE}[name]
    inputs = [MomentTensor(x.expectation, torch.zeros_like(x.variance)) for x in arguments(shapes)]
    got = function(*inputs)
    torch.testing.assert_close(got.expectation, function(*(x.expectation for x in inputs)), rtol=1e-9, atol=1e-9)
    assert float(got.variance.abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "leaky_relu", "clamp", "linear", "max_pool1d", "layer_norm"])
def test_gradients(name):
    function, shapes, *_ = {**EXACT, **APPROXIMATE}[name]
    inputs = arguments(shapes)
    leaves = [t.clone().requires_grad_() for x in inputs for t in (x.expectation, x.variance)]

    def run(*pairs: Tensor) -> tuple[Tensor, Tensor]:
        out = function(*(MomentTensor(m, v) for m, v in zip(pairs[::2], pairs[1::2], strict=True)))
        return out.expectation, out.variance

    torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("act", [F.relu, F.silu, F.gelu, F.leaky_relu])
def test_large_activations_in_blocks(act):
    x = random(3, 50_001)
    with torch.no_grad():
        whole, part = act(x), act(x[:, 40_000:40_010])
    torch.testing.assert_close(whole.expectation[:, 40_000:40_010], part.expectation)
    torch.testing.assert_close(whole.variance[:, 40_000:40_010], part.variance)


def test_small_variances_do_not_cancel():
    m = torch.full((1000,), 3.0)
    for act in (F.relu, torch.nn.functional.softplus, lambda x: torch.maximum(x, torch.zeros(1000))):
        got = act(MomentTensor(m, torch.full((1000,), 1e-10)))
        assert 0.8 < float(got.variance.mean() / 1e-10) < 1.01


def test_in_place_operations_write_where_views_see_it():
    x = random(*X)
    m, v = x.expectation.clone(), x.variance.clone()
    part = x[0]
    part += 1
    F.relu(x, inplace=True)
    wanted = F.relu(MomentTensor(torch.cat([m[:1] + 1, m[1:]]), v))
    torch.testing.assert_close(x.expectation, wanted.expectation)
    torch.testing.assert_close(x.variance, wanted.variance)
    x[0] = 2.0
    assert bool((x.expectation[0] == 2).all())
    assert float(x.variance[0].abs().sum()) == 0


def test_what_is_added_to_a_tensor_leaves_it_alone():
    x = random(*X)
    before = x.variance.clone()
    torch.relu_(x + 1)
    torch.relu_(-x)
    assert torch.equal(x.variance, before)


def test_a_random_slope_of_random_numbers():
    """Exact, so |z| < 5 for 12 means and 12 variances: false alarms 7e-6 together."""
    inputs = [random(*X), random(6, seed=1)]
    got, wanted = F.prelu(*inputs), sampled(lambda x, c: torch.where(x > 0, x, c * x), inputs)
    errors = wanted.std(0) / DRAWS**0.5, (wanted - wanted.mean(0)).square().std(0) / DRAWS**0.5
    assert bool(((got.expectation - wanted.mean(0)).abs() < 5 * errors[0]).all())
    assert bool(((got.variance - wanted.var(0)).abs() < 5 * errors[1]).all())


@pytest.mark.parametrize("minuend", [1.0, fixed(6)])
def test_a_factor_of_the_subtrahend(minuend):
    x = random(*X)
    torch.testing.assert_close(torch.rsub(x, minuend, alpha=3).variance, 9 * x.variance)
    torch.testing.assert_close(torch.sub(x, minuend, alpha=3).variance, x.variance)


def test_a_limit_at_infinity_is_none():
    x, inf = random(*X), float("inf")
    assert torch.equal(x.clamp(-inf, 0.5).variance, x.clamp(max=0.5).variance)
    assert torch.equal(x.clamp(0.5, inf).expectation, x.clamp(min=0.5).expectation)
    assert x.clamp(-inf, inf) is x


def test_arguments_by_name():
    x = random(*X)
    assert torch.equal(F.relu(input=x).variance, F.relu(x).variance)


def test_a_sum_with_itself():
    x = random(*X)
    torch.testing.assert_close((x + x).variance, 4 * x.variance)
    assert float((x - x).variance.abs().max()) == 0


def test_dropout_in_training_averages_over_masks():
    x = random(50)
    got = F.dropout(x, 0.3, training=True)
    rng = seeded(3)
    draws = x.expectation + x.variance.sqrt() * torch.randn(100_000, 50, generator=rng, dtype=torch.float64)
    wanted = F.dropout(draws, 0.3)
    torch.testing.assert_close(got.expectation, x.expectation)
    assert float((got.variance / wanted.var(0)).log().abs().max()) < 0.05


def test_batch_norm_in_training_uses_and_stores_expected_statistics():
    x, norm = random(64, 3), nn.BatchNorm1d(3).double()
    twin = nn.BatchNorm1d(3).double()
    draws = x.expectation + x.variance.sqrt() * torch.randn(500, 64, 3, generator=seeded(4), dtype=torch.float64)
    wanted = twin(draws.flatten(0, 1)).view(500, 64, 3)
    got = norm(x)
    got, wanted = MomentTensor(got.expectation.detach(), got.variance.detach()), wanted.detach()
    assert float((got.expectation - wanted.mean(0)).abs().max()) < 0.15
    assert float((got.variance / wanted.var(0)).log().abs().mean()) < 0.1
    torch.testing.assert_close(norm.running_mean, twin.running_mean, atol=0.01, rtol=0)
    torch.testing.assert_close(norm.running_var, twin.running_var, atol=0.02, rtol=0)


@pytest.mark.parametrize("separate", [False, True])
def test_multi_head_attention(separate):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6 if separate else None).double().eval()
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    key = fixed(2, 5, 6, seed=3) if separate else None

    def run(x, k=None):
        k = k if k is not None else x
        return layer(x, k, x, key_padding_mask=padding, attn_mask=causal)[0]

    x = random(2, 5, 8)
    inputs = MomentTensor(x.expectation, torch.zeros_like(x.variance)), key
    got = run(*inputs)
    torch.testing.assert_close(got.expectation, run(x.expectation, key))
    assert float(got.variance.detach().abs().max()) == 0
    assert float(run(x, key).variance.detach().min()) > 0


# ---- a rule of one's own, and refusals


def test_a_rule_of_ones_own():
    x = random(*X)
    with pytest.raises(
        MethodError, match=r"draws='moments' with the operation sinc: there is no rule.*MOMENT_RULES\['sinc'\]"
    ):
        torch.sinc(x)
    MOMENT_RULES["sinc"] = smooth
    try:
        got, wanted = torch.sinc(x), sampled(torch.sinc, [x])
    finally:
        del MOMENT_RULES["sinc"]
    assert float((got.expectation - wanted.mean(0)).abs().max()) < 0.02
    assert float((got.variance / wanted.var(0)).log().abs().max()) < 0.1


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: bool(x.sum()), lambda x: float(x.sum()), lambda x: x > 0, lambda x: x.argmax(),
        lambda x: x.sum().item(), lambda x: x.tolist(), lambda x: torch.topk(x, 1),
        lambda x: torch.isnan(x), lambda x: int(x.sum()),
    ],
)  # fmt: skip
def test_decisions_on_activations_are_refused(decide):
    with pytest.raises(MethodError, match="values of activations"):
        decide(random(*X))


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda x: 1 / x, "__rdiv__"),
        (lambda x: torch.einsum("ij,ij->i", x, x), "einsum of a tensor with itself"),
        (lambda x: F.avg_pool1d(x, 2, ceil_mode=True), r"MOMENT_RULES\['avg_pool1d'\]"),
        (lambda x: x / x, "div by random"), (lambda x: torch.fft.rfft(x), "fft_rfft"),
        (lambda x: F.max_pool2d(x.view(1, 1, 2, 6), 2, return_indices=True), "max_pool2d_with_indices"),
        (lambda x: fixed(2, 6).add_(x), "ordinary tensor"), (lambda x: x**0.5, "pow"),
        (lambda x: F.avg_pool1d(x, 2, ceil_mode=True), "ceil_mode"), (lambda x: torch.logsumexp(x, 1), "logsumexp"),
    ],
)  # fmt: skip
def test_what_has_no_rule_is_refused_by_name(run, name):
    with pytest.raises(MethodError, match=name):
        run(random(*X))


def test_looking_at_shapes_needs_no_rule():
    x = random(*X)
    assert (len(x), x.dim(), x.size(1), x.ndim, x.numel(), tuple(x.shape)) == (2, 2, 6, 2, 12, (2, 6))
    assert x.dtype is torch.float64
    assert x.is_contiguous()
    assert torch.zeros_like(x).shape == x.new_zeros(2, 6).shape
    assert SEEN


def test_alpha_dropout_is_refused_in_training():
    """Its mask puts in a number of its own, and dropout's rule would be wrong."""
    x = random(4, 3)
    assert F.alpha_dropout(x, 0.5, False) is x
    for func in (F.alpha_dropout, F.feature_alpha_dropout):
        with pytest.raises(MethodError, match="alpha_dropout in training mode"):
            func(x, 0.5, True)


def test_an_operation_in_place_forgets_what_outputs_shared():
    y = F.linear(random(4, 3), fixed(2, 3))
    assert y.mixing is not None
    y.mul_(2.0)
    assert y.mixing is None


SMOOTH_IN_PLACE = {
    "tanh_": lambda x: x.tanh_(),
    "sigmoid_": lambda x: x.sigmoid_(),
    "pow_": lambda x: x.pow_(3),
    "elu_": lambda x: F.elu_(x),
    "relu_": lambda x: x.relu_(),
    "mul_": lambda x: x.mul_(x),
    "silu": lambda x: F.silu(x, inplace=True),
}


@pytest.mark.parametrize("name", SMOOTH_IN_PLACE)
@pytest.mark.parametrize("grad", [False, True])
def test_operations_in_place_are_those_out_of_place(name, grad):
    """With gradients too, for which their input is saved."""
    out_of_place = {
        "tanh_": torch.tanh,
        "sigmoid_": torch.sigmoid,
        "pow_": lambda x: x.pow(3),
        "elu_": F.elu,
        "relu_": torch.relu,
        "mul_": lambda x: x * x,
        "silu": F.silu,
    }
    found = []
    for operation in (SMOOTH_IN_PLACE[name], out_of_place[name]):
        m, v = (t.clone().requires_grad_(grad) for t in (random(4, 3).expectation, random(4, 3).variance))
        with torch.set_grad_enabled(grad):
            y = operation(MomentTensor(m * 1.0, v * 1.0))
            gradients = torch.autograd.grad((y.expectation + 2 * y.variance).sum(), (m, v)) if grad else ()
        found.append((y.expectation.detach(), y.variance.detach(), *gradients))
    torch.testing.assert_close(*found)


def test_bicubic_interpolation_is_refused():
    with pytest.raises(MethodError, match="bicubic"):
        F.interpolate(random(1, 2, 4, 4), scale_factor=2, mode="bicubic")


@pytest.mark.parametrize("write", [lambda y: y.__setitem__((slice(None), 0), 0.0), lambda y: y[:, :1].mul_(0.0)])
def test_outputs_that_were_written_to_share_nothing(write):
    y = F.linear(random(4, 3), fixed(2, 3))
    assert y.mixed() is not None
    write(y)
    assert y.mixed() is None


LIKE = {"view_as": (3, 2), "reshape_as": (3, 2), "expand_as": (4, 2, 3), "type_as": (1,), "to": (1,)}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", LIKE)
def test_of_a_random_argument_a_view_takes_the_shape_or_the_dtype(name, named):
    dtype = torch.float32 if name in ("type_as", "to") else torch.float64
    x, shape = MomentTensor(fixed(2, 3), fixed(2, 3).square()), LIKE[name]
    like = MomentTensor(fixed(*shape).to(dtype), torch.ones(shape, dtype=dtype))
    x.samples, like.samples = (fixed(2, 3),), (fixed(*shape).to(dtype),)
    args, kwargs = ((), {"tensor" if name == "to" else "other": like}) if named else ((like,), {})
    y = getattr(x, name)(*args, **kwargs)
    wanted = getattr(x.expectation, name)(like.expectation)
    assert torch.equal(y.expectation, wanted)
    assert torch.equal(y.variance, getattr(x.variance, name)(like.expectation))
    assert torch.equal(y.samples[0], wanted)
    plain = getattr(nn.Parameter(x.expectation), name)(*args, **kwargs)
    assert not isinstance(plain, MomentTensor)
    assert torch.equal(plain, wanted)


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_softmax_without_a_dimension_takes_that_of_torch(function, shape):
    x = MomentTensor(fixed(*shape), fixed(*shape).square())
    found, wanted = function(x), function(x, dim=0 if len(shape) != 2 else 1)
    assert torch.equal(found.expectation, wanted.expectation)
    assert torch.equal(found.variance, wanted.variance)


def test_max_and_min_of_two_tensors():
    a, b = (MomentTensor(fixed(5), fixed(5).square()) for _ in range(2))
    assert torch.equal(torch.max(a, b).expectation, torch.maximum(a, b).expectation)
    assert torch.equal(torch.min(a, b).variance, torch.minimum(a, b).variance)
    with pytest.raises(MethodError, match="max of one tensor"):
        torch.max(a, 0)


def test_adaptive_max_pooling_that_keeps_a_dimension():
    x = MomentTensor(fixed(1, 2, 4, 6), fixed(1, 2, 4, 6).square())
    found, wanted = F.adaptive_max_pool2d(x, (None, 2)), F.adaptive_max_pool2d(x, (4, 2))
    assert torch.equal(found.expectation, wanted.expectation)


@pytest.mark.parametrize(("mean", "dtype"), [(-9.0, torch.float64), (-5.5, torch.float32), (-4.27, torch.float32)])
@pytest.mark.parametrize("act", [torch.relu, F.gelu])
def test_behind_a_dead_unit_the_gradient_vanishes(act, mean, dtype):
    """Rounding leaves a derivative of a variance that is 0; it would be divided by that variance's root."""
    m = torch.tensor([mean], dtype=dtype, requires_grad=True)
    act(torch.relu(MomentTensor(m, torch.ones_like(m)))).expectation.sum().backward()
    assert m.grad.abs() < 1e-3


@pytest.mark.parametrize("mean", [-6.0, -5.0, -4.27, -3.0, -1.0, 0.0, 2.0, 6.0])
def test_relu_of_a_unit_that_is_nearly_off_is_right_in_single_precision(mean):
    first, second = (quad(lambda x, k=k: x**k * norm.pdf(x, mean), 0, mean + 12, epsabs=0)[0] for k in (1, 2))
    found = torch.relu(MomentTensor(torch.tensor([mean]), torch.ones(1)))
    assert found.expectation.item() == pytest.approx(first, rel=1e-4)
    assert found.variance.item() == pytest.approx(second - first**2, rel=1e-3)


@pytest.mark.parametrize("act", [torch.relu, F.gelu, torch.tanh])
def test_the_result_of_an_activation_may_be_written_to_in_training(act):
    grads = []
    for double in (lambda x: x.mul_(2), lambda x: x * 2):
        m = fixed(5).clone().requires_grad_()
        x = double(act(MomentTensor(m, fixed(5).square())))
        (x.expectation + x.variance).sum().backward()
        grads.append(m.grad)
    torch.testing.assert_close(*grads)


def test_smooth_functions_have_the_same_gradient_in_half_precision():
    grads = []
    for dtype in (torch.float16, torch.float64):
        v = torch.tensor([1e-4], dtype=dtype, requires_grad=True)
        F.gelu(MomentTensor(torch.zeros(1, dtype=dtype), v)).variance.sum().backward()
        grads.append(v.grad.item())
    assert grads[0] == pytest.approx(grads[1], rel=2e-3)


def test_half_precision_has_no_least_standard_deviation():
    zero = torch.zeros(3, dtype=torch.float16)
    out = F.leaky_relu(MomentTensor(zero, zero), 0.1)
    assert out.dtype == torch.float16
    assert not out.expectation.any()
    assert not out.variance.any()


def test_an_embedding_that_normalises_its_rows_is_refused():
    with pytest.raises(MethodError, match="embedding with max_norm"):
        F.embedding(INDEX, random(5, 3), max_norm=1.0)


def test_instance_norm_in_training_stores_its_statistics():
    x = random(3, 4, 6)
    noisy, still, wanted = (nn.InstanceNorm1d(4, track_running_stats=True).double() for _ in range(3))
    still(MomentTensor(x.expectation, torch.zeros_like(x.expectation)))
    wanted(x.expectation)
    torch.testing.assert_close(still.running_mean, wanted.running_mean)
    torch.testing.assert_close(still.running_var, wanted.running_var)
    noisy(x)
    torch.testing.assert_close(noisy.running_mean, wanted.running_mean)
    # unbiased: the mean of 1 / (n - 1) sum (x_k - mean x)^2 is that of the variances, with the momentum 0.1
    torch.testing.assert_close(noisy.running_var, wanted.running_var + 0.1 * x.variance.mean((0, 2)))


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        s = (x := ctx.saved_tensors[0]).sigmoid()
        return grad * (s + x * s * (1 - s))


def test_the_gradient_of_an_autograd_function_is_refused_and_its_values_are_not():
    x = random(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(Swish.apply(x).expectation, (x * x.sigmoid()).expectation)
    x = MomentTensor(x.expectation.requires_grad_(), x.variance)
    with pytest.raises(MethodError, match="the gradient of Swish, an autograd"):
        Swish.apply(x) + 1


def test_a_full_backward_hook_is_refused_by_its_name():
    layer = nn.Linear(3, 2).double()
    layer.register_full_backward_hook(lambda module, before, after: None)
    x = random(2, 3)
    with pytest.raises(MethodError, match=r"a full backward hook on a module.*remove the hook"):
        torch.relu(layer(MomentTensor(x.expectation.requires_grad_(), x.variance)))


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_what_goes_past_the_rules_has_a_sentence():
    with pytest.raises(MethodError, match=r"detach.default, an operation below torch's functions"):
        torch.tensor(random(2, 3))


def test_arguments_may_have_the_names_that_torch_gives_them():
    a, b = random(2, 4), random(2, 4, seed=1)
    pairs = [
        (torch.cat(tensors=[a, b], dim=1), torch.cat([a, b], 1)),
        (torch.stack(tensors=[a, b]), torch.stack([a, b])),
        (torch.add(a, other=b), a + b),
        (torch.mul(input=a, other=b), a * b),
        (torch.div(a, other=2.0), a / 2.0),
        (torch.maximum(a, other=b), torch.maximum(a, b)),
        (torch.minimum(a, other=b), torch.minimum(a, b)),
        (torch.max(a, other=b), torch.maximum(a, b)),
        (torch.matmul(a, other=b.mT), a @ b.mT),
        (torch.where(condition=MASK[:4], input=a, other=b), torch.where(MASK[:4], a, b)),
        (torch.amax(a, axis=1), torch.amax(a, 1)),
        (torch.mean(a, axis=1, keepdims=True), a.mean(1, keepdim=True)),
    ]
    for found, wanted in pairs:
        torch.testing.assert_close(found.expectation, wanted.expectation)
        torch.testing.assert_close(found.variance, wanted.variance)
    with pytest.raises(MethodError, match="add with out="):
        torch.add(a, b, out=a)


@pytest.mark.parametrize("rule", [lambda func, x: func(x.expectation), lambda func, x: None])
def test_a_rule_of_ones_own_that_returns_no_moments_is_told(rule, monkeypatch):
    monkeypatch.setitem(MOMENT_RULES, "atan", rule)
    with pytest.raises(MethodError, match=r"MOMENT_RULES\['atan'\]: the rule returned a \w+, which has no variance"):
        torch.atan(random(3))


def test_weights_of_attention_that_are_used_are_refused_by_name():
    attention, x = nn.MultiheadAttention(4, 2).double(), random(3, 1, 4)
    out, weights = attention(x, x, x)
    assert isinstance(out, MomentTensor)
    for use in (lambda: weights @ x, lambda: weights[0], lambda: torch.matmul(weights, x.expectation)):
        with pytest.raises(MethodError, match="whose weights are used"):
            use()


def test_group_norm_of_no_example():
    x = random(2, 4, 3)[:0]
    assert F.group_norm(x, 2).variance.shape == (0, 4, 3)
