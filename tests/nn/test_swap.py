"""A network whose weights are elsewhere: tied tensors, rows that are held, layers that run without their weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import mcrepar
from mcrepar import MethodError, bayesian, kl
from tests.nn.networks import Shared, Tied


def test_tied_weights_are_one_latent_drawn_and_counted_once():
    torch.manual_seed(0)
    bnn = bayesian(Tied(), prior="normal")
    assert sorted(bnn.names.values()) == [
        ("embedding.weight", "head.weight"), ("hidden.bias",), ("hidden.weight",)]  # fmt: skip
    draw = bnn.draw()
    assert draw["embedding.weight"] is draw["head.weight"]
    parts = [latent.divergence().item() for _, latent in bnn.latents.items()]
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


def put(module: nn.Module, name: str, value: object) -> None:
    setattr(module, name, value)


CHANGES = {
    "a layer": (lambda bnn: put(bnn.net[1], "1", nn.Linear(4, 4)), "1.1.weight"),
    "a block": (lambda bnn: put(bnn.net, "1", nn.Sequential(nn.Tanh(), nn.Linear(4, 4))), "1.1.weight"),
    "no layer": (lambda bnn: put(bnn.net, "0", nn.Identity()), "0.weight"),
    "a shorter network": (lambda bnn: bnn.net.__delitem__(1), "1.1.weight"),
    "a weight": (lambda bnn: put(bnn.net[0], "bias", nn.Parameter(torch.zeros(4))), "0.bias"),
    "the network": (lambda bnn: put(bnn, "net", nn.Linear(4, 4)), "0.weight"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("forward", ["weights", "per_example", "flipout"])
def test_what_is_put_in_the_place_of_a_random_weight_is_refused(change, forward, tmp_path):
    act, name = change
    bnn = bayesian(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4))), forward=forward)
    bnn = copy.deepcopy(bnn)  # a copy knows its own layers
    bnn(torch.zeros(2, 4))
    act(bnn)
    for use in (lambda: bnn(torch.zeros(2, 4)), bnn.to_module, lambda: mcrepar.save(bnn, tmp_path / "model")):
        with pytest.raises(MethodError, match=f"{name} is random, and what was put in its place would not be used"):
            use()


def test_other_layers_may_be_changed():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4))), start_std=1e-9)
    x = torch.randn(3, 4)
    inner = bnn.net[1]
    inner[0] = nn.ReLU()
    bnn.net[1] = nn.Sequential(*inner)  # the same layers in another box
    weights = bnn.mean()
    hidden = (x @ weights["0.weight"].T + weights["0.bias"]).relu()
    torch.testing.assert_close(bnn(x), hidden @ weights["1.1.weight"].T + weights["1.1.bias"])
    shared = bayesian(Shared())
    assert shared(x).shape == (3, 4)


def test_a_network_may_run_inside_its_own_forward():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    seen = []

    def once_more(_module, _args, out):
        if not seen:
            seen.append(None)
            seen[0] = bnn(torch.ones(1, 4))
        return out

    bnn.net[1].register_forward_hook(once_more)
    assert bnn(torch.zeros(2, 4)).shape == (2, 4)
    assert seen[0].shape == (1, 4)


def masked(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", 0.5)


@pytest.mark.parametrize("forward", ["weights", "per_example"])
@pytest.mark.parametrize("select", [None, "1"], ids=["random", "plain"])
@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, nn.utils.spectral_norm, masked])
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_a_weight_that_a_hook_computes_does_not_outlive_the_forward(wrap, select, forward):
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    bnn = bayesian(nn.Sequential(wrap(nn.Linear(4, 4)), nn.Linear(4, 2)), select=select, forward=forward)
    copy.deepcopy(bnn)
    bnn(x).sum().backward()
    assert all(p.grad is not None for p in bnn.parameters() if p.requires_grad)
    bnn.eval()
    twin = copy.deepcopy(bnn)
    draw = bnn.draw()
    with twin.frozen(draw):
        torch.testing.assert_close(bnn.to_module(draw)(x), twin(x))
    assert mcrepar.nn.ensemble(bnn, 2)(x).shape == (5, 2)


def test_a_layer_is_shown_with_the_bias_that_it_has():
    """nn.Linear and the convolutions print whether their bias is there; a random one is."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Conv1d(2, 2, 1), nn.Linear(2, 2, bias=False))
    layers = [repr(layer) for layer in net]
    shown = repr(bayesian(net))
    assert all(layer in shown for layer in layers)
    assert net[0].bias is None  # and it is empty again
    assert "in_features=3, out_features=2, bias=True" in repr(mcrepar.nn.Linear(3, 2))
