"""Attention between its projections, against torch's own function with the same projections around it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcrepar import ParameterError, bayesian
from mcrepar.nn.forwards.attention import attend
from tests.conftest import seeded

LENGTHS, BATCH, HEADS, SIZE = (5, 4), 3, 2, 8
D = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=D, generator=seeded(sum(shape)))


def hidden(*shape: int) -> Tensor:
    """A mask that leaves the first key to all."""
    mask = torch.rand(*shape, generator=seeded(2)) < 0.4
    mask[..., 0] = False
    return mask


MASKS: dict[str, dict[str, Tensor]] = {
    "no mask": {},
    "bool": {"attn_mask": hidden(*LENGTHS)},
    "float": {"attn_mask": randn(*LENGTHS)},
    "of every head": {"attn_mask": randn(BATCH * HEADS, *LENGTHS)},
    "padding": {"key_padding_mask": hidden(BATCH, LENGTHS[1])},
    "both": {"attn_mask": hidden(BATCH * HEADS, *LENGTHS), "key_padding_mask": hidden(BATCH, LENGTHS[1])},
}


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("weights", [{"need_weights": False}, {}, {"average_attn_weights": False}], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_it_is_torch_s_attention(mask, weights, extra):
    """With and without extra keys; with dropout both drop the same weights for a seed."""
    torch.manual_seed(0)
    net = nn.MultiheadAttention(SIZE, HEADS, dropout=0.3, add_bias_kv=extra, add_zero_attn=extra).to(D)
    query, key, value = (randn(n, BATCH, SIZE) for n in (*LENGTHS, LENGTHS[1]))
    thirds = zip((query, key, value), net.in_proj_weight.chunk(3), net.in_proj_bias.chunk(3), strict=True)
    parts = [F.linear(x, w, b) for x, w, b in thirds]
    for training in (False, True):
        net.train(training)
        torch.manual_seed(1)
        wanted = net(query, key, value, **MASKS[mask], **weights)
        torch.manual_seed(1)
        out, found = attend(*parts, HEADS, net.bias_k, net.bias_v, extra, 0.3, training, **MASKS[mask], **weights)
        torch.testing.assert_close((net.out_proj(out), found), wanted)


def test_a_mask_that_is_announced_and_missing_is_refused():
    x = randn(5, BATCH, SIZE)
    with pytest.raises(ParameterError, match="is_causal=True: it only says what attn_mask is"):
        attend(x, x, x, HEADS, None, None, False, 0.0, is_causal=True)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_causal_mask_may_be_announced(need_weights):
    net, x = nn.MultiheadAttention(SIZE, HEADS).to(D), randn(5, BATCH, SIZE)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=D)
    parts = F.linear(x, net.in_proj_weight, net.in_proj_bias).chunk(3, -1)
    options = {"need_weights": need_weights, "attn_mask": mask, "is_causal": True}
    out, found = attend(*parts, HEADS, None, None, False, 0.0, **options)
    torch.testing.assert_close((net.out_proj(out), found), net(x, x, x, **options))


@pytest.mark.parametrize(
    "options", [{"select": "layers.1*"}, {"select": "layers.1.linear*.weight", "structure": "rank1"}]
)
def test_an_encoder_whose_first_layer_is_plain_takes_padded_inputs(options):
    """Torch's fast path would make a nested tensor there, which the next layer refuses."""
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    bnn, x = bayesian(net, "normal", **options).eval(), torch.ones(2, 5, 8)
    with torch.no_grad():
        out = bnn(x, src_key_padding_mask=torch.tensor([[False] * 4 + [True], [False] * 5]))
    assert out.shape == x.shape
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    assert bayesian(plain, "normal").net.use_nested_tensor  # what needs no change is left as it is
