"""Dense networks for images, volumes and rows of numbers."""

import pytest
import torch
from torch import nn

from mcrepar import ParameterError
from mcrepar.models import model


@pytest.mark.parametrize("size", [(), (5,), (4, 6), (2, 3, 4)])
def test_any_shape(size):
    net = model("fcnet", classes=2, channels=3, size=size, hidden=[8, 6])
    x = torch.randn(4, 3, *size)
    assert net(x).shape == (4, 2)
    assert torch.equal(net(x), net(x.flatten(1)))
    assert [m.out_features for m in net.modules() if isinstance(m, nn.Linear)] == [8, 6, 2]


def test_no_hidden_layer_is_a_linear_model():
    net = model("fcnet", classes=2, channels=5, size=(), hidden=(), bias=False)
    x = torch.randn(3, 5)
    torch.testing.assert_close(net(x), x @ net.layers[0].weight.T)


def test_data_of_another_size():
    with pytest.raises(
        ParameterError, match=r"FCNet on data of 784 numbers: it was built for 3072\. Use channels= and"
    ):
        model("fcnet")(torch.zeros(2, 1, 28, 28))
