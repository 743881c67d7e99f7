"""VGG: its layers, its dense part, its pooling."""

import pytest
import torch
from torch import nn

from mcrepar.models import MODELS, model

SMALL = {"width": 4, "dense": 8}


@pytest.mark.parametrize("layers", [11, 13, 16, 19])
@pytest.mark.parametrize("suffix", ["", "_bn"])
def test_the_number_in_the_name_is_that_of_layers_with_weights(layers, suffix):
    net = model(f"vgg{layers}{suffix}", **SMALL)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    dense = [m for m in net.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(convolutions) + len(dense) == layers
    assert len(norms) == (len(convolutions) if suffix else 0)
    assert all((m.bias is None) == bool(suffix) for m in convolutions)  # a norm has a bias of its own
    assert [m.out_features for m in dense] == [8, 8, 10]
    assert MODELS[f"vgg{layers}"].options["dense"] == 2048


def test_the_widths():
    with torch.device("meta"):
        net = model("vgg11")
    assert [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)] == [64, 128, 256, 256, *[512] * 4]


@pytest.mark.parametrize("side", [32, 64])
def test_rounding_up_changes_nothing_at_multiples_of_32(side):
    torch.manual_seed(0)
    net, x = model("vgg11", **SMALL), torch.randn(2, 3, side, side)
    logits = net(x)
    for module in net.modules():
        if isinstance(module, nn.MaxPool2d):
            module.ceil_mode = False
    assert torch.equal(net(x), logits)


def test_pooling_to_7_copies_the_only_pixel_of_32():
    torch.manual_seed(0)
    seven, one = model("vgg11", bias=False, **SMALL), model("vgg11", bias=False, pooled=1, **SMALL)
    one.features.load_state_dict(seven.features.state_dict())
    with torch.no_grad():
        first = seven.classifier[0].weight.reshape(8, -1, 49).sum(2)  # (dense, channels, pixels)
        one.classifier[0].weight.copy_(first)
        for k in (2, 4):
            one.classifier[k].weight.copy_(seven.classifier[k].weight)
        x = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(one(x), seven(x))
