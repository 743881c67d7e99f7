"""LeNet-5 has the published number of weights, and runs on images of other sizes."""

import pytest
import torch

from mcrepar.errors import ParameterError
from mcrepar.models import model


def test_the_number_of_weights():
    assert sum(p.numel() for p in model("lenet5", channels=1).parameters()) == 61_706


@pytest.mark.parametrize("side", [12, 28, 32, 40])
def test_images_of_other_sizes(side):
    assert model("lenet5", classes=3, channels=2, size=(side, side))(torch.zeros(1, 2, side, side)).shape == (1, 3)


def test_at_28_pixels_the_last_pooling_does_nothing():
    net, x = model("lenet5", channels=1), torch.randn(2, 1, 28, 28)
    before = net.features[:-1](x)
    assert before.shape[-2:] == (5, 5)
    assert torch.equal(net.features(x), before)


def test_a_smaller_image_is_refused():
    with pytest.raises(ParameterError, match="LeNet5"):
        model("lenet5", size=(8, 8))
