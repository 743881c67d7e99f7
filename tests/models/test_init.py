"""The table of networks: every row is built, has the known size, becomes Bayesian and learns; every refusal."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import ParameterError
from mcrepar.models import MODELS, model
from tests.models.conftest import images, reduced, weights_and_norms

COUNTS = {  # in millions, for 10 classes and 3 channels: two numbers per weight, no biases, norm layers once
    "alexnet": 4.35,
    "preact_resnet18": 22.34, "preact_resnet34": 42.54, "preact_resnet50": 46.98,
    "preact_resnet101": 84.91, "preact_resnet152": 116.15,
    "densenet121": 13.84, "densenet161": 52.77, "densenet169": 24.84, "densenet201": 36.00,
    "vgg11": 129.6, "vgg16": 140.6, "vgg19": 151.2,
}  # fmt: skip
NAMES = {
    "fcnet", "small_conv", "lenet5", "alexnet", "unet3d_encoder", "unet2d", "unet3d", "densenet100_12",
    "densenet_bc100_12",
    *(f"vgg{n}{norm}" for n in (11, 13, 16, 19) for norm in ("", "_bn")),
    *(f"preact_resnet{n}" for n in (18, 34, 50, 101, 152)),
    *(f"densenet{n}" for n in (121, 161, 169, 201)),
    *(f"resnet{n}" for n in (20, 32, 44, 56)),
}  # fmt: skip
SEGMENTING = ("unet2d", "unet3d")
IMAGES = [name for name, row in MODELS.items() if row.dimensions == 2]


def test_the_names():
    assert set(MODELS) == NAMES
    assert all(row.dimensions in (1, 2, 3) and row.summary for row in MODELS.values())
    assert len({row.summary for row in MODELS.values()}) == len(MODELS)
    with pytest.raises(TypeError):
        MODELS["mine"] = MODELS["fcnet"]


def test_the_table_needs_no_torch():
    code = "import sys, mcrepar.models as m; assert len(m.MODELS) > 20; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", COUNTS)
def test_trainable_numbers_of_the_bayesian_network(name):
    with torch.device("meta"):  # shapes without memory
        net = model(name, **({"bias": False} if "bias" in MODELS[name].options else {}))
    assert not any("bias" in n for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)
                   for n, _ in m.named_parameters(recurse=False))  # fmt: skip
    weights, norms = weights_and_norms(net)
    digits = 0.06 if "vgg" in name else 0.006  # as many as are printed
    assert (2 * weights + norms) / 1e6 == pytest.approx(COUNTS[name], abs=digits)


@pytest.mark.parametrize("name", MODELS)
def test_shapes(name):
    """As built by default, on images of 32 x 32 and volumes of two sizes; on meta, which does not compute."""
    sizes = [(35, 42, 35), (105, 127, 105)] if MODELS[name].dimensions == 3 else [(32, 32)]
    with torch.device("meta"):
        net = model(name, classes=7, size=sizes[0]).eval()
    for size in sizes:
        x = torch.empty(2, 3, *size, device="meta")
        assert net(x).shape == ((2, 7, *size) if name in SEGMENTING else (2, 7))


@pytest.mark.parametrize(
    ("name", "options"),
    [("vgg11", {}), ("vgg11_bn", {}), ("preact_resnet18", {"stem": "7x7"}), ("densenet121", {})],
)
def test_large_images(name, options):
    with torch.device("meta"):
        net = model(name, classes=7, size=(224, 224), **options).eval()
    for size in ((224, 224), (225, 300)):
        assert net(torch.empty(2, 3, *size, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", MODELS)
def test_one_step_of_the_bayesian_network(name):
    """On images of 28 x 28 with one channel, or volumes of 28 voxels a side."""
    torch.manual_seed(0)
    x = images(name, channels=1)
    net = model(name, classes=3, channels=1, size=x.shape[2:], **reduced(name))
    weights, norms = weights_and_norms(net)
    bnn = mcrepar.bayesian(net, posterior="radial", prior="normal")
    assert sum(p.numel() for p in bnn.parameters()) == 2 * weights + norms
    y = torch.randint(3, (2, *x.shape[2:]) if name in SEGMENTING else (2,))
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-3)
    before = [p.detach().clone() for p in bnn.parameters()]
    mcrepar.elbo(bnn, mcrepar.likelihoods.Categorical(), x, y, data_size=100).loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in bnn.parameters())
    optimizer.step()
    assert all(bool((p != old).any()) for p, old in zip(bnn.parameters(), before, strict=True))
    out = bnn.eval()(x)
    assert out.shape == ((2, 3, *x.shape[2:]) if name in SEGMENTING else (2, 3))
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if row.dimensions > 1])
def test_too_small(name):
    row = MODELS[name]
    net = model(name, **reduced(name)).eval()
    assert net.inputs.least == row.least
    net(images(name, size=(row.least,) * row.dimensions))
    small = (row.least - 1, *(row.least + 3,) * (row.dimensions - 1))
    said = " x ".join([str(row.least)] * row.dimensions)
    with pytest.raises(ParameterError, match=f"takes {said} and more. Use larger"):
        net(images(name, size=small))
    with pytest.raises(ParameterError, match=f"takes {said} and more. Use larger"):
        model(name, size=small, **reduced(name))


@pytest.mark.parametrize("name", [name for name in IMAGES if name not in ("small_conv", "lenet5")])
def test_the_least_size_is_the_one_at_which_every_halving_has_something_to_halve(name):
    net, sides = model(name, **reduced(name)).eval(), []
    for module in net.modules():
        stride = getattr(module, "stride", 1)
        if stride not in (1, (1, 1)) and not list(module.children()):
            module.register_forward_pre_hook(lambda _, args: sides.append(min(args[0].shape[2:])))
    net.inputs = dataclasses.replace(net.inputs, least=1)
    for size, shortest in ((MODELS[name].least, 2), (MODELS[name].least - 1, 1)):
        sides.clear()
        net(images(name, batch=1, size=(size, size)))
        assert min(sides) == shortest


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("vgg61", {}, "no such network. Use .*'vgg1"),
        ("PreActResNet18", {}, "no such network. Use 'preact_resnet18'"),
        ("vgg16", {"widht": 3}, "no such option. Use width"),
        ("alexnet", {"bias": True}, "no such option. Use none"),
        ("vgg16", {"width": 0}, "width=0: it counts something"),
        ("vgg16", {"dense": 8.0}, "dense=8.0: it counts something"),
        ("densenet121", {"width": -1}, "width=-1"),
        ("vgg16", {"classes": 0}, "classes=0"),
        ("fcnet", {"channels": "3"}, "channels='3'"),
        ("densenet121", {"stem": "5x5"}, "no such stem. Use '3x3'"),
        ("unet3d", {"norm": "instance"}, "no such norm. Use 'batch'"),
        ("unet2d", {"halvings": 9}, "8,192 channels, and patches at least 513 voxels a side. Use at most 7"),
        ("resnet20", {"size": (28, 28, 28)}, r"\(1, 3, 28, 28, 28\): it takes images"),
        ("unet3d_encoder", {"size": (32, 32)}, "it takes volumes"),
        ("small_conv", {"size": ()}, "it takes images"),
    ],
)
def test_refusals(name, options, words):
    with pytest.raises(ParameterError, match=words):
        model(name, **options)


def test_options_are_those_of_the_class_with_the_defaults_of_the_row():
    assert MODELS["densenet161"].options["growth"] == 48
    assert MODELS["densenet161"].options["stem"] == "7x7"
    assert {"classes", "channels"}.isdisjoint(MODELS["densenet161"].options)
    net = model("densenet121", depths=(1, 1), growth=4)
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == 6  # stem, transition, two layers of two
