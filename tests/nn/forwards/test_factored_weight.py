"""Factors of attention: each example has a network of its own, in all layouts, and a draw is one network."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mcrepar
from mcrepar import MethodError, bayesian, predict
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.rank1 import RankOne, factors
from tests.conftest import seeded

D = torch.float64
BATCH = 3
PADDING = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=D, generator=seeded(seed))


def attention(first: bool, **options: Any) -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=first, **options)


def block(kind: type[nn.Module], first: bool, **options: Any) -> nn.Module:
    return kind(8, 2, 16, dropout=0.0, batch_first=first, **options)


X, KEYS, OTHER = randn(BATCH, 5, 8), randn(BATCH, 4, 8, seed=1), randn(BATCH, 4, 6, seed=2)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5, dtype=D)
# a network for batch_first or not, its inputs with the batch first, and what it takes by keyword
NETWORKS: dict[str, tuple[Any, tuple[Tensor, ...], dict[str, Any]]] = {
    "self": (attention, (X, X, X), {"need_weights": False}),
    "self, causal": (attention, (X, X, X), {"need_weights": False, "attn_mask": CAUSAL, "is_causal": True}),
    "cross": (attention, (X, KEYS, KEYS), {"key_padding_mask": PADDING}),
    "three inputs": (attention, (X, KEYS, KEYS + 1), {"average_attn_weights": False}),
    "other sizes": (lambda first: attention(first, kdim=6, vdim=8), (X, OTHER, KEYS), {}),
    "without biases": (lambda first: attention(first, bias=False), (X, X, X), {"attn_mask": randn(6, 5, 5, seed=3)}),
    "extra keys": (lambda first: attention(first, add_bias_kv=True, add_zero_attn=True), (X, KEYS, KEYS),
                   {"key_padding_mask": PADDING, "attn_mask": torch.ones(5, 4).triu(2).bool()}),
    "in a sequence": (lambda first: nn.Sequential(block(nn.TransformerEncoderLayer, first)), (X,), {}),
    "encoder": (lambda first: nn.TransformerEncoder(block(nn.TransformerEncoderLayer, first), 2), (X,),
                {"mask": CAUSAL, "is_causal": True}),
    "decoder": (lambda first: nn.TransformerDecoder(block(nn.TransformerDecoderLayer, first), 2), (X, KEYS),
                {"memory_key_padding_mask": PADDING}),
    "transformer": (lambda first: nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=first), (KEYS, X),
                    {"tgt_mask": CAUSAL}),
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def made(build: Any, first: bool, **options: Any) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    return bayesian(build(first).to(D), structure="rank1", initial_std=0.5, **options)


def called(net: Any, first: bool, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The output, (batch, length, features), and the weights of attention where there are any."""
    moved = {id(x): x if first else x.transpose(0, 1) for x in inputs}  # one tensor stays one
    out = net(*(moved[id(x)] for x in inputs), **named)
    out, weights = out if isinstance(out, tuple) else (out, None)
    return out if first else out.transpose(0, 1), weights


def of_example(bnn: mcrepar.BayesianModule, found: dict[str, Any], b: int) -> dict[str, Tensor]:
    """Wbar o (r s^T) of an example, from the definition: all weights are matrices here."""
    weights = {}
    for (name, *_), tensor in random_tensors(bnn).items():
        r, s = found[name]
        assert isinstance(tensor, RankOne)
        weights[name] = tensor.weight * r[b][:, None] * s[b][None, :]
    return weights


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_example_has_a_network_of_its_own(name, first):
    """The row of an example, and its weights of attention, are those of the plain network with its factors' weights."""
    build, inputs, named = NETWORKS[name]
    bnn = made(build, first)
    torch.manual_seed(5)
    found = factors(bnn, BATCH)
    torch.manual_seed(5)
    out, weights = called(bnn, first, inputs, named)
    assert not torch.allclose(*(called(bnn, first, inputs, named)[0] for _ in range(2)))
    for b in range(BATCH):
        plain, wanted = called(bnn.to_module(of_example(bnn, found, b)), first, inputs, named)
        torch.testing.assert_close(out[b], plain[b])
        if weights is not None:
            torch.testing.assert_close(weights[b], wanted[b])


@pytest.mark.parametrize("select", ["in_proj_weight", "out_proj.weight", "*_proj_weight"])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 8}])
def test_some_projections_may_stay_as_they_are(select, sizes):
    if sizes and select == "in_proj_weight":
        select = "k_proj_weight"
    inputs = (X, OTHER if sizes else KEYS, KEYS)
    bnn = made(lambda first: attention(first, **sizes), True, select=select)
    torch.manual_seed(5)
    found = factors(bnn, BATCH)
    torch.manual_seed(5)
    out, weights = called(bnn, True, inputs, {})
    for b in range(BATCH):
        plain, wanted = called(bnn.to_module(of_example(bnn, found, b)), True, inputs, {})
        torch.testing.assert_close((out[b], weights[b]), (plain[b], wanted[b]))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("build", [attention, lambda first: block(nn.TransformerEncoderLayer, first)])
def test_one_example_without_a_batch(build, first):
    bnn = made(build, first)
    inputs = (X[0],) * (3 if isinstance(bnn.net, nn.MultiheadAttention) else 1)
    torch.manual_seed(1)
    alone = bnn(*inputs)
    torch.manual_seed(1)
    batch = bnn(*[inputs[0].unsqueeze(0 if first else 1)] * len(inputs))
    if isinstance(alone, tuple):
        torch.testing.assert_close(alone[1], batch[1].squeeze(0))
        alone, batch = alone[0], batch[0]
    torch.testing.assert_close(alone, batch.squeeze(0 if first else 1))


def test_gradients_are_those_of_the_formula():
    """Of Wbar, biases, loc and log_scale, against plain autograd through one network for each example."""
    bnn = made(lambda first: block(nn.TransformerEncoderLayer, first), True)
    torch.manual_seed(3)
    found = torch.autograd.grad(bnn(X).square().sum(), list(bnn.parameters()))
    torch.manual_seed(3)
    rows, plain = factors(bnn, BATCH), bnn.to_module()
    others = {name: p for name, p in bnn.net.named_parameters() if name not in rows}
    out = [torch.func.functional_call(plain, {**others, **of_example(bnn, rows, b)}, X[b : b + 1]) for b in range(3)]
    expected = torch.autograd.grad(torch.cat(out).square().sum(), list(bnn.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_in_eval_mode_padded_sequences_keep_their_factors():
    """Torch's fast path, which knows no factors, is not taken for a batch of other lengths."""
    bnn = made(lambda first: nn.TransformerEncoder(block(nn.TransformerEncoderLayer, first), 2), True).eval()
    with torch.no_grad():
        torch.manual_seed(5)
        found = factors(bnn, BATCH)
        torch.manual_seed(5)
        out = bnn(KEYS, src_key_padding_mask=PADDING)
        for b, hidden in enumerate(PADDING):
            plain = bnn.to_module(of_example(bnn, found, b))(KEYS, src_key_padding_mask=PADDING)
            torch.testing.assert_close(out[b, ~hidden], plain[b, ~hidden])


@pytest.mark.parametrize("first", [True, False])
def test_an_empty_batch_has_an_empty_output(first):
    bnn = made(lambda first: block(nn.TransformerEncoderLayer, first), first)
    assert called(bnn, first, (X[:0],), {})[0].shape == (0, 5, 8)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = attention(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0] - self.attention(x, x, x, need_weights=False)[0]


def test_a_layer_that_is_called_twice_has_the_same_factors():
    torch.testing.assert_close(made(lambda first: Twice(), True)(X), torch.zeros_like(X))


def test_a_draw_is_one_network(tmp_path):
    """predict, frozen, to_module, save and load, deepcopy; every weight and no bias is random."""
    bnn = made(lambda first: block(nn.TransformerEncoderLayer, first), True)
    empty = block(nn.TransformerEncoderLayer, True).to(D)
    assert {name for names in bnn.names.values() for name in names} == {
        "self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"
    }  # fmt: skip
    bnn.eval()
    same = X[:1].expand(4, -1, -1)
    samples = predict(bnn, same, draws=3, generator=seeded(1)).samples
    torch.testing.assert_close(samples, samples[:, :1].expand_as(samples))
    assert not torch.allclose(samples[0], samples[1])
    draw = bnn.draw(seeded(2))
    with bnn.frozen(draw):
        torch.testing.assert_close(bnn.to_module(draw)(X), bnn(X))
    mcrepar.save(bnn, tmp_path / "model")
    for twin in (mcrepar.load(tmp_path / "model", empty).eval(), copy.deepcopy(bnn)):
        assert torch.equal(predict(twin, same, draws=3, generator=seeded(1)).samples, samples)
        outputs = []
        for net in (twin, bnn):
            torch.manual_seed(3)
            outputs.append(net(X))
        torch.testing.assert_close(*outputs)


@pytest.mark.parametrize(("name", "first"), [("encoder", True), ("three inputs", False), ("other sizes", False)])
def test_it_compiles_as_one_graph(name, first):
    """With factors that hardly vary and are not 1, a graph has the output of eager, and gradients reach everything."""
    build, inputs, named = NETWORKS[name]
    torch.manual_seed(0)
    bnn = bayesian(build(first).to(D), structure="rank1", initial_std=1e-9)
    with torch.no_grad():
        for tensor in random_tensors(bnn).values():
            for factor in tensor.tensors:
                factor.loc.uniform_(0.5, 1.5, generator=seeded(len(factor.loc)))
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend="aot_eager", fullgraph=True)
    out, _ = called(compiled, first, inputs, named)
    torch.testing.assert_close(out, called(bnn, first, inputs, named)[0])
    out.square().sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())


@pytest.mark.parametrize("static", ["static_k", "static_v"])
def test_what_replaces_projections_is_refused(static):
    class Static(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Any:
            weights = self.in_proj_weight, self.in_proj_bias, None, None, False, 0.0, self.out_proj.weight, None
            return F.multi_head_attention_forward(x, x, x, 8, 2, *weights, **{static: x})

    with pytest.raises(MethodError, match="static_k or static_v of multi_head_attention_forward"):
        made(lambda first: Static(8, 2), False)(X)


def test_a_network_that_begins_with_positions_is_told_to_put_the_batch_first():
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    with pytest.raises(MethodError, match=r"3 rows in dimension 1 for a batch of 5 examples.*batch_first=True"):
        made(lambda first: Positions(), False)(X.transpose(0, 1))
