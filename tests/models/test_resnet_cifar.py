"""The residual networks for 32 x 32 images: layers, sizes, and the shortcut without weights."""

import pytest
import torch
from torch import nn

from mcrepar.models import model
from mcrepar.models.resnet_cifar import Block


@pytest.mark.parametrize(("layers", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_the_printed_sizes(layers, millions):
    """Table 6 of He et al. (2016)."""
    net = model(f"resnet{layers}")
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in net.modules()) == layers
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.006)


def test_a_smaller_identity_is_cut_and_padded():
    block = Block(2, 4, stride=2).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 2, 5, 5)
    out = block(x)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert not out[:, [0, 3]].any()
