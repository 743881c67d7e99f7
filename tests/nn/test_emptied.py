"""A network whose weights are elsewhere: tied tensors, rows that are held, layers that run without their weights."""

from __future__ import annotations

import pytest
import torch
from tests.nn.networks import Tied
from torch import nn

from mcrepar import MethodError, bayesian, kl


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


def test_running_the_emptied_network_is_refused():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    with pytest.raises(MethodError, match="its weight is random"):
        bnn.net(torch.zeros(1, 4))
