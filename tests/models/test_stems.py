"""Both stems: the sides that come out, and what stands in them."""

import pytest
import torch
from torch import nn

from mcrepar.models import model
from mcrepar.models.stems import STEMS, stem


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
