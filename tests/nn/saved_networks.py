"""Networks for the tests of save and load, and when two of them are the same. Import from tests.nn.saved_networks."""

import torch
from torch import nn

from tests.conftest import seeded


def small(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)


def shaken(bnn):
    """The network after some training: nothing is at its start value."""
    torch.manual_seed(3)
    with torch.no_grad():
        for p in bnn.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for b in bnn.net.buffers():
            if b.is_floating_point():
                b.add_(torch.rand_like(b))
    return bnn


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


def assert_same(a, b):
    one, two = a.state_dict(), b.state_dict()
    assert list(one) == list(two)
    for name in set(one) - {"_extra_state"}:  # the priors, which are compared below
        assert one[name].dtype == two[name].dtype
        assert torch.equal(bits(one[name]), bits(two[name])), name
    assert (a.mode, a.names) == (b.mode, b.names)
    for (_, x), (_, y) in zip(a.latents.items(), b.latents.items(), strict=True):
        assert x.options.estimator == y.options.estimator
        assert x.options.posterior.fixed.keys() == y.options.posterior.fixed.keys()
        assert [getattr(x.options, k) for k in ("initial_std", "pretrained", "signs")] == [
            getattr(y.options, k) for k in ("initial_std", "pretrained", "signs")
        ]
    assert torch.equal(a.kl(generator=seeded(1)), b.kl(generator=seeded(1)))
    first, second = a.draw(seeded(2)), b.draw(seeded(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
