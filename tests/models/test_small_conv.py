"""The demo's network: its size, the images it takes, and that it learns digits."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import mcrepar
from mcrepar.models import model


def test_its_size():
    net = model("small_conv", channels=1)
    assert 30_000 < sum(p.numel() for p in net.parameters()) < 40_000
    assert not any("norm" in type(m).__name__.lower() for m in net.modules())


def test_the_last_pooling_has_nothing_to_do_at_the_least_size():
    net, seen = model("small_conv", channels=1), []
    pool = next(m for m in net.modules() if isinstance(m, nn.AdaptiveMaxPool2d))
    pool.register_forward_hook(lambda _, args, out: seen.append(torch.equal(args[0], out)))
    net(torch.randn(2, 1, 8, 8))
    net(torch.randn(2, 1, 10, 8))
    assert seen == [True, False]


def test_it_learns_digits():
    """Without random weights, by a second of training on the first half; chance is 0.1."""
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
    net = model("small_conv", channels=1, size=(8, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(10):
        for batch in torch.randperm(900).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    assert (net(x[900:]).argmax(1) == y[900:]).double().mean() > 0.9


@pytest.mark.filterwarnings("ignore:forward='local' gives the positions")
@pytest.mark.parametrize("forward", ["weights", "local", "flipout", "per_example"])
def test_every_way_to_draw(forward):
    torch.manual_seed(0)
    posterior = "normal" if forward in ("local", "flipout") else "radial"
    bnn = mcrepar.bayesian(model("small_conv", channels=1), posterior=posterior, forward=forward)
    x, y = torch.randn(4, 1, 12, 9), torch.randint(10, (4,))
    mcrepar.elbo(bnn, mcrepar.likelihoods.Categorical(), x, y, data_size=4).loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in bnn.parameters())
