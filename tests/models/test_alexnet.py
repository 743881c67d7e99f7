"""AlexNet at 32 x 32 is the paper's; other sizes pass too."""

import torch
from torch import nn

from mcrepar.models.alexnet import AlexNet


def test_rounding_up_and_averaging_change_nothing_at_32():
    torch.manual_seed(0)
    net, x = AlexNet(), torch.randn(2, 3, 32, 32)
    logits = net(x)
    for module in net.modules():
        if isinstance(module, nn.MaxPool2d):
            module.ceil_mode = False
    features = net.features(x)
    assert features.shape == (2, 128, 1, 1)
    torch.testing.assert_close(logits, net.classifier(features.flatten(1)))


def test_larger_images_are_averaged():
    assert AlexNet(classes=4)(torch.zeros(1, 3, 100, 64)).shape == (1, 4)
