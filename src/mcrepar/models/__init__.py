"""Plain deterministic networks, for `bayesian` to take: one row per name; importing this imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from mcrepar.errors import ParameterError
from mcrepar.validation import check_option, closest, from_text

if TYPE_CHECKING:
    from torch import nn

VGG: dict[int, tuple[int, ...]] = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
RESNET: dict[int, tuple[int, ...]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
DENSENET: dict[int, tuple[int, ...]] = {
    121: (6, 12, 24, 16),
    161: (6, 12, 36, 24),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
}


@dataclass(frozen=True, eq=False)
class ModelRow:
    """What can be built under a name.

    Args:
        home: "module.Class" in this package.
        dimensions: of an example: 1 for numbers in a row, 2 for images, 3 for volumes.
        least: the shortest side that the network takes, with its defaults.
        summary: one line for tables and help.
        given: arguments of the class that make it this network; `build` may override them.
    """

    home: str
    dimensions: int
    least: int
    summary: str
    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def make(self) -> Callable[..., nn.Module]:
        """The class, imported when it is asked for."""
        module, _, name = self.home.rpartition(".")
        made: Callable[..., nn.Module] = getattr(import_module(f"{__name__}.{module}"), name)
        return made

    @property
    def options(self) -> dict[str, Any]:
        """What `build` takes beside classes and channels, with the defaults of this row."""
        own = {name: p.default for name, p in inspect.signature(self.make).parameters.items()}
        return {name: value for name, value in {**own, **self.given}.items() if name not in ("classes", "channels")}

    def build(self, classes: int = 10, channels: int = 3, **options: Any) -> nn.Module:
        """The network, its arguments unchecked."""
        return self.make(classes=classes, channels=channels, **{**self.given, **options})


def _rows() -> Iterator[tuple[str, ModelRow]]:
    yield "fcnet", ModelRow("fcnet.FCNet", 1, 1, "dense layers and ReLU, for data of any one size")
    yield "small_conv", ModelRow("small_conv.SmallConv", 2, 8, "three convolutions and two dense layers: a CPU's size")
    yield "lenet5", ModelRow("lenet.LeNet5", 2, 12, "LeNet-5 with ReLU and max pooling, for 28 x 28")
    yield "alexnet", ModelRow("alexnet.AlexNet", 2, 17, "the paper's AlexNet for small images, without biases")
    for layers, depths in VGG.items():
        for suffix, norm in (("", False), ("_bn", True)):
            summary = f"VGG-{layers}, dense layers halved to 2048, {'with' if norm else 'without'} BatchNorm"
            yield f"vgg{layers}{suffix}", ModelRow("vgg.VGG", 2, 17, summary, {"depths": depths, "batch_norm": norm})
    for layers, depths in RESNET.items():
        given = {"depths": depths, "bottleneck": layers >= 50}
        summary = f"PreActResNet-{layers}, 3x3 stem (7x7 for large images)"
        yield f"preact_resnet{layers}", ModelRow("preact_resnet.PreActResNet", 2, 5, summary, given)
    for blocks in (3, 5, 7, 9):
        summary = f"ResNet-{6 * blocks + 2} for images of 32 x 32"
        yield f"resnet{6 * blocks + 2}", ModelRow("resnet_cifar.ResNetCifar", 2, 3, summary, {"blocks": blocks})
    for layers, depths in DENSENET.items():
        growth = {"depths": depths, "growth": 48 if layers == 161 else 32}
        summary = f"DenseNet-{layers}, 7x7 stem (3x3 for small images)"
        yield f"densenet{layers}", ModelRow("densenet.DenseNet", 2, 17, summary, growth)
    small = {"growth": 12, "stem": "3x3"}
    plain = {**small, "depths": (32, 32, 32), "bottleneck": False, "compression": 1.0, "width": 16}
    yield "densenet100_12", ModelRow("densenet.DenseNet", 2, 3, "DenseNet (L=100, k=12) for images of 32 x 32", plain)
    thin = {**small, "depths": (16, 16, 16)}
    yield "densenet_bc100_12", ModelRow("densenet.DenseNet", 2, 3, "DenseNet-BC (L=100, k=12), a ninth of it", thin)
    yield "unet3d_encoder", ModelRow("unet.UNet3DEncoder", 3, 13, "the paper's 3D U-Net encoder: a class per volume")
    yield "unet2d", ModelRow("unet.UNet2D", 2, 17, "2D U-Net: a class per pixel, for images of any size")
    yield "unet3d", ModelRow("unet.UNet3D", 3, 17, "3D U-Net: a class per voxel, for volumes of any size")


MODELS: Mapping[str, ModelRow] = MappingProxyType(dict(_rows()))


def model(
    name: str, classes: int = 10, channels: int = 3, size: Sequence[int] | None = None, **options: Any
) -> nn.Module:
    """A network by its name, with random initial values.

    Args:
        name: a key of MODELS.
        classes: the length of the output; 1 for one number.
        channels: of the images or volumes.
        size: the sides of an example, () where it is a row of numbers (`channels` counts them). `fcnet` is built for
            it; the others are checked against it at once instead of at the first forward.
        **options: those of the network, MODELS[name].options.

    >>> sum(p.numel() for p in model("resnet20").parameters())
    269722
    >>> sorted(MODELS["vgg16"].options)
    ['batch_norm', 'bias', 'dense', 'depths', 'pooled', 'width']
    """
    asked = f"model({name!r})"
    row = MODELS.get(name)
    if row is None:
        near = closest(name, MODELS)
        raise ParameterError(asked, "there is no such network", " or ".join(map(repr, near)))
    for option in options:
        if option not in row.options:
            near = closest(option, row.options) or ["none"]
            raise ParameterError(f"{asked} with {option}=", "the network has no such option", ", ".join(near))
    kinds = get_type_hints(row.make.__init__)
    options = {option: from_text(value, kinds[option]) for option, value in options.items()}
    for option, value in {"classes": classes, "channels": channels, **options}.items():
        counts = type(row.options.get(option, 1)) is int  # so do classes and channels
        if (counts and type(value) is not int) or (type(value) is int and value < 1):
            raise ParameterError(f"{asked} with {option}={value!r}", "it counts something", "1, 2, 3, ...")
        check_option(f"{asked} with {option}=", value, kinds[option])
    if row.dimensions == 1:
        return row.build(classes, channels, **({} if size is None else {"size": tuple(size)}), **options)
    net = row.build(classes, channels, **options)
    if size is not None:
        net.inputs.check((1, channels, *size))  # type: ignore[operator, union-attr]  # every class here has Inputs
    return net
