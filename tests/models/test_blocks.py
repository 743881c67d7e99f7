"""What networks share: refused inputs in three parts, the sides that stems leave, and signals that survive."""

import pytest
import torch
from torch import nn

from mcrepar import ParameterError
from mcrepar.models import model
from mcrepar.models.blocks import STEMS, Inputs, stem


@pytest.mark.parametrize("shape", [(1, 3, 17, 17), (5, 3, 200, 18), (0, 3, 17, 17)])
def test_taken(shape):
    Inputs("VGG", 3, 2, least=17).check(shape)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 32, 32), r"VGG on a tensor of shape \(3, 32, 32\): it takes images, 4 dimensions"),
        ((1, 3, 32, 32, 32), "it takes images"),
        ((1, 1, 32, 32), "images with 1 channels: it was built for 3. Use channels=1"),
        ((1, 3, 32, 16), "images of 32 x 16: it takes 17 x 17 and more. Use larger images"),
    ],
)
def test_refused(shape, words):
    with pytest.raises(ParameterError, match=words):
        Inputs("VGG", 3, 2, least=17).check(shape)


def test_volumes():
    with pytest.raises(
        ParameterError, match=r"volumes of 20 x 20 x 12: it takes 13 x 13 x 13 and more\. Use larger vol"
    ):
        Inputs("UNet3DEncoder", 1, 3, least=13).check((2, 1, 20, 20, 12))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("kind", STEMS)
def test_it_shrinks_by_its_factor(kind, norm):
    made = stem(kind, 3, 8, norm)
    for side in (28, 32, 33):
        expected = -(-side // STEMS[kind])
        assert made(torch.zeros(2, 3, side, side)).shape == (2, 8, expected, expected)
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in made) == (norm and kind == "7x7")
    assert made[0].kernel_size == (int(kind[0]),) * 2


@pytest.mark.parametrize(("name", "width"), [("preact_resnet18", {"width": 4}), ("densenet121", {"growth": 2})])
def test_the_stem_sets_the_least_size(name, width):
    least = {kind: model(name, stem=kind, **width).inputs.least for kind in STEMS}
    assert least == {"3x3": 5, "7x7": 17}
    for kind, side in least.items():
        assert model(name, stem=kind, **width).eval()(torch.zeros(1, 3, side, side)).shape == (1, 10)


@pytest.mark.parametrize("name", ["fcnet", "small_conv", "alexnet", "vgg19"])
def test_signals_neither_fade_nor_explode_where_there_is_no_norm(name):
    """Each layer keeps E x^2, so logits stay within a factor of 10 of the images; torch's own loses 1e3."""
    torch.manual_seed(0)
    x = torch.randn(16, 3, 32, 32)
    net = model(name, **({"width": 32, "dense": 256, "pooled": 1} if name == "vgg19" else {}))
    with torch.no_grad():
        size = net(x).square().mean().sqrt()
    assert 0.1 < size < 10


def test_options_may_be_text():
    layers = [m for m in model("fcnet", size=(2,), hidden="5,6").modules() if isinstance(m, nn.Linear)]
    assert [layer.out_features for layer in layers[:2]] == [5, 6]
