"""PreActResNet: its layers, and a shortcut that is the identity wherever it can be."""

import pytest
import torch
from torch import nn

from mcrepar.models import model
from mcrepar.models.preact_resnet import Block


@pytest.mark.parametrize("layers", [18, 34, 50, 101, 152])
def test_the_number_in_the_name_is_that_of_layers_with_weights(layers):
    net = model(f"preact_resnet{layers}", width=4)
    names = [name for name, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sum("shortcut" not in name for name in names) == layers
    assert sum("shortcut" in name for name in names) == (4 if layers >= 50 else 3)


def test_a_block_without_weights_is_the_identity():
    block = Block(3, (3, 3), (3, 3), stride=1)
    nn.init.zeros_(block.convs[1].weight)
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(block(x), x)


def test_depths_of_ones_own_choice():
    net = model("preact_resnet50", classes=7, channels=1, depths=(1, 1, 1, 1), width=4).eval()
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
