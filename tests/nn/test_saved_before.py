"""Folders that version 0.1.0 wrote before its packages were renamed: they load, and give the same numbers."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import mcrepar
from mcrepar.nn.random_tensor import each_named

FOLDER = Path(__file__).parent / "saved_before"


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))


# name: the network, its input, and how it was made Bayesian
SAVED = {
    "mlp": (mlp, (5, 3), {"posterior": "normal", "prior": mcrepar.prior("normal", scale="learned")}),
    "convolutional": (convolutional, (5, 1, 4, 4), {"posterior": "radial", "prior": "mixture"}),
    "rank1": (mlp, (6, 3), {"structure": "rank1", "members": 2}),
}


def inputs(shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def numbers(bnn, x):
    """The mean weights' output, the KL, and one frozen draw's output."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # norm statistics are pooled
        with bnn.frozen("mean"):
            mean = bnn(x)
        generator = torch.Generator().manual_seed(1)
        one_by_one = each_named(bnn, lambda tensor: tensor.draw(generator)) if not bnn.members else None  # as then
        with bnn.frozen(one_by_one or bnn.draw(generator)):
            drawn = bnn(x)
    return {"mean": mean, "drawn": drawn, "kl": mcrepar.kl(bnn, generator=torch.Generator().manual_seed(2)).detach()}


@pytest.mark.parametrize("name", SAVED)
def test_a_folder_of_before_gives_the_same_numbers(name):
    make, shape, _ = SAVED[name]
    bnn = mcrepar.load(FOLDER / name, make()).eval()
    expected = load_file(FOLDER / name / "expected.safetensors")
    for key, value in numbers(bnn, inputs(shape)).items():
        # Convolutions of another processor round differently (4e-7 seen); another draw differs by 0.1 and more.
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=2e-6)


def write():
    """Write the folders anew: only when a version cannot read its predecessor's."""
    torch.manual_seed(0)
    for name, (make, shape, options) in SAVED.items():
        bnn, x = mcrepar.bayesian(make(), **options), inputs(shape)
        for parameter in bnn.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        bnn.calibrate(x)
        mcrepar.save(bnn.eval(), FOLDER / name)
        loaded = mcrepar.load(FOLDER / name, make()).eval()
        save_file(numbers(loaded, x), FOLDER / name / "expected.safetensors")


if __name__ == "__main__":
    sys.exit(write())
