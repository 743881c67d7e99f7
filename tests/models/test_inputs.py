"""What a network refuses to take, in three parts."""

import pytest

from mcrepar import ParameterError
from mcrepar.models.inputs import Inputs


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
