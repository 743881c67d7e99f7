"""Activation checkpointing around and inside a network: the gradients of the first run, or a refusal (float64)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import mcrepar
from mcrepar import MethodError, bayesian
from mcrepar.nn import checkpointing
from tests.conftest import seeded

X = torch.randn(4, 5, 8, generator=seeded(1), dtype=torch.float64)


class Region(nn.Module):
    """A block, a region of torch.utils.checkpoint or not, and a head."""

    def __init__(self, block: nn.Module, **options: Any) -> None:
        super().__init__()
        self.block, self.head, self.options = block, nn.Linear(8, 2), options

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.block, x, **self.options) if self.options else self.block(x)
        return self.head(h.tanh())


class First(nn.Module):
    def forward(self, out: tuple[Tensor, Any]) -> Tensor:
        return out[0]


class Method(nn.Module):
    """It owns its parameters, and a part of its own forward is the region."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.eye(8)), nn.Parameter(torch.ones(8))
        self.inner, self.options = nn.Linear(8, 8), options

    def part(self, x: Tensor) -> Tensor:
        return self.inner(nn.functional.linear(x, self.weight, self.bias).tanh())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x, **self.options) if self.options else self.part(x)


BLOCKS = {
    "dense": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 8)),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "recurrent": lambda: nn.Sequential(nn.LSTM(8, 8, batch_first=True), First()),
}
APART = {"use_reentrant": False}


def gradients(net: nn.Module, draws: int = 2, training: bool = True, **options: Any) -> list[Tensor]:
    """Of the sum over several forwards: every region must get back the draw of its own forward."""
    torch.manual_seed(0)
    bnn = bayesian(net.double(), **options).train(training)
    torch.manual_seed(2)
    loss = torch.stack([bnn(X.clone().requires_grad_()).square().sum() for _ in range(draws)]).sum()
    loss.backward()
    return [p.grad for p in bnn.parameters()]


def built(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(3)
    return Region(BLOCKS[name](), **options)


@pytest.mark.parametrize("reentrant", [True, False])
def test_around_a_network(reentrant):
    """The recomputation draws the same weights, for torch restores its default RNG."""
    torch.manual_seed(0)
    bnn = bayesian(built("dense").double())

    def found(run) -> list[Tensor]:
        torch.manual_seed(1)
        bnn.zero_grad()
        run(X.clone().requires_grad_()).square().sum().backward()
        return [p.grad.clone() for p in bnn.parameters()]

    for one, two in zip(found(lambda x: checkpoint(bnn, x, use_reentrant=reentrant)), found(bnn), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("select", [None, "*bias*"])  # a bias that is missing would be no error of torch
@pytest.mark.parametrize("name", BLOCKS)
def test_inside_a_network(name, select):
    for training in (True, False):
        wanted = gradients(built(name), training=training, select=select)
        got = gradients(built(name, **APART), training=training, select=select)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:forward='local' gives the positions")
@pytest.mark.parametrize("forward", ["local", "flipout", "per_example"])
def test_under_every_forward(forward):
    options = {"posterior": "normal", "forward": forward}
    for a, b in zip(gradients(built("dense", **APART), **options), gradients(built("dense"), **options), strict=True):
        torch.testing.assert_close(a, b)


def test_a_region_inside_a_layer_and_inside_a_region():
    def layered(outer: dict[str, Any], **inner: Any) -> nn.Module:
        torch.manual_seed(3)
        return Region(Method(**inner), **outer)

    wanted = gradients(layered({}))
    for net in (layered({}, **APART), layered({}, **APART, early_stop=False), layered(APART, **APART)):
        for a, b in zip(gradients(net), wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_tied_weights_in_a_region_and_outside_of_it():
    def tied(**options: Any) -> nn.Module:
        torch.manual_seed(3)
        layer = nn.Linear(8, 8)
        return Region(nn.Sequential(layer, Region(layer, **options), nn.Linear(2, 8)))

    for a, b in zip(gradients(tied(**APART)), gradients(tied()), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", BLOCKS)
def test_reentrant_regions_inside_a_network_are_refused(name):
    """By the time of the backward the draw is gone: an error, never another draw."""
    with pytest.raises(
        MethodError, match=r"outside of its Bayesian neural network.*or checkpoint\(.*use_reentrant=False"
    ):
        gradients(built(name, use_reentrant=True), select="*bias*")


def test_without_a_way_to_find_the_region_it_is_refused(monkeypatch):
    monkeypatch.setattr(checkpointing, "_frame", lambda: None)
    with pytest.raises(MethodError, match="running a Linear outside of its Bayesian neural network"):
        gradients(built("dense", **APART))


def test_the_network_is_empty_again_after_the_backward():
    bnn = bayesian(built("dense", **APART).double())
    loss = bnn(X).sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in bnn.parameters()]
    loss.backward()
    for p, once in zip(bnn.parameters(), first, strict=True):
        torch.testing.assert_close(p.grad, 2 * once)
    assert not list(bnn.net.parameters())
    with pytest.raises(MethodError, match="its weight is random"):
        bnn.net(X)


def test_a_frozen_network_in_a_region_stays_frozen_in_the_backward():
    """Also when that runs after the context."""
    torch.manual_seed(0)
    bnn = bayesian(built("dense").double(), start_std=1.0).eval()
    parts = nn.Sequential(mcrepar.nn.Linear(8, 8, start_std=1.0), nn.Tanh(), mcrepar.nn.Linear(8, 2)).double()

    def found(net: nn.Module, frozen: list[mcrepar.BayesianModule], run) -> list[Tensor]:
        net.zero_grad()
        with frozen[0].frozen("mean"), frozen[-1].frozen("mean"):
            out = run(X.clone().requires_grad_())
        out.square().sum().backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    for net, frozen in ((bnn, [bnn]), (parts, [parts[0], parts[2]])):
        around = found(net, frozen, lambda x, net=net: checkpoint(net, x, use_reentrant=False))
        for a, b in zip(around, found(net, frozen, net), strict=True):
            torch.testing.assert_close(a, b)


def test_other_hooks_of_saved_tensors_are_no_regions():
    with save_on_cpu():
        assert checkpointing._frame() is None
        for a, b in zip(gradients(built("dense")), gradients(built("dense", **APART)), strict=True):
            torch.testing.assert_close(a, b)


def test_a_foreign_network_that_checkpoints_itself():
    hf = pytest.importorskip("transformers", reason="transformers is not installed: pip install mcrepar[peers]")
    tokens = torch.randint(1, 20, (4, 8), generator=seeded(2))
    found = []
    for whether in (False, True):
        torch.manual_seed(0)
        config = hf.GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=8, use_cache=False)
        net = hf.GPT2LMHeadModel(config)
        if whether:
            net.gradient_checkpointing_enable({"use_reentrant": False})
        bnn = bayesian(net).train()
        torch.manual_seed(1)
        bnn(input_ids=tokens).logits.square().mean().backward()
        found.append([p.grad for p in bnn.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
