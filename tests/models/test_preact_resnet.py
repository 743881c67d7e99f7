"""PreActResNet has the sizes that are known of it."""

import pytest
import torch

from mcrepar.models import preact_resnet


@pytest.mark.parametrize(("depth", "millions"), [(18, 22.34), (34, 42.54), (50, 46.98), (101, 84.91), (152, 116.15)])
def test_trainable_numbers_of_the_bayesian_network(depth, millions):
    """Two numbers per weight, no biases, norm layers once."""
    with torch.device("meta"):
        net = getattr(preact_resnet, f"preact_resnet{depth}")()
    named = dict(net.named_parameters())
    norms = sum(p.numel() for name, p in named.items() if "norm" in name)
    weights = sum(p.numel() for name, p in named.items() if "norm" not in name and "bias" not in name)
    assert (2 * weights + norms) / 1e6 == pytest.approx(millions, abs=0.006)


def test_forward():
    net = preact_resnet.PreActResNet((1, 1, 1, 1), True, classes=7, channels=1).eval()
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
