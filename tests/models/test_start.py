"""Start values: the size of a signal survives the layers."""

import pytest
import torch

from mcrepar.models import model


@pytest.mark.parametrize("name", ["fcnet", "small_conv", "alexnet", "vgg19"])
def test_signals_neither_fade_nor_explode_where_there_is_no_norm(name):
    """Each layer keeps E x^2, so logits stay within a factor of 10 of the images; torch's own start values lose 1e3."""
    torch.manual_seed(0)
    x = torch.randn(16, 3, 32, 32)
    net = model(name, **({"width": 32, "dense": 256, "pooled": 1} if name == "vgg19" else {}))
    with torch.no_grad():
        size = net(x).square().mean().sqrt()
    assert 0.1 < size < 10
