"""DenseNet: its layers, the sizes of Huang et al. (2017), and what a layer keeps."""

import pytest
import torch
from torch import nn

from mcrepar.models import model
from mcrepar.models.densenet import Layer


@pytest.mark.parametrize(
    ("name", "layers"),
    [("densenet121", 121), ("densenet161", 161), ("densenet169", 169), ("densenet201", 201),
     ("densenet100_12", 100), ("densenet_bc100_12", 100)],
)  # fmt: skip
def test_the_number_in_the_name_is_that_of_layers_with_weights(name, layers):
    with torch.device("meta"):
        net = model(name)
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in net.modules()) == layers


@pytest.mark.parametrize(("name", "millions"), [("densenet100_12", 7.0), ("densenet_bc100_12", 0.8)])
def test_the_printed_sizes(name, millions):
    """Table 2 of Huang et al., to one digit."""
    with torch.device("meta"):
        net = model(name)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("bottleneck", [True, False])
def test_a_layer_keeps_what_came_in_and_adds_its_own(bottleneck):
    torch.manual_seed(0)
    layer, x = Layer(3, 2, bottleneck), torch.randn(4, 3, 5, 5)
    out = layer(x)
    assert out.shape == (4, 5, 5, 5)
    assert torch.equal(out[:, :3], x)
    kernels = [m.kernel_size[0] for m in layer if isinstance(m, nn.Conv2d)]
    assert kernels == ([1, 3] if bottleneck else [3])


def test_rounding_up_averages_what_is_there():
    """An odd side ends in a window of one row, which counts as one row."""
    pool = next(m for m in model("densenet121", growth=2).modules() if isinstance(m, nn.AvgPool2d))
    assert torch.equal(pool(torch.ones(1, 1, 7, 7)), torch.ones(1, 1, 4, 4))
