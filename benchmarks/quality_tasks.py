"""The work on which methods are compared: data in four parts, a network, a budget.

Settings are chosen on the validation part; `quality.py choose` looks at no other. Most runs are older than this command
and were scored on the test part as well, while later settings were chosen (docs/posterior_quality.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcrepar.data import load
from mcrepar.data.batches import augment, channel_statistics, hold_out, standardise
from mcrepar.data.dataset import Split
from mcrepar.models import model

CORRUPTED = 2000  # images of every corruption
VALIDATION = 5000  # training images that are held out


@dataclass(frozen=True, eq=False)
class Parts:
    """Data, ready for a network.

    Args:
        train: the training part, as it was read.
        prepare: from what was read to the network's input.
        validation: on which choices are made.
        test: predicted once by every run, after training.
        ood: out-of-distribution sets, by name.
        corrupted: corrupted test sets with their labels, by name.
        kind: of augmentation.
    """

    train: Split
    prepare: Callable[[Tensor], Tensor]
    validation: Split
    test: Split
    ood: Mapping[str, Tensor]
    corrupted: Mapping[str, Split]
    kind: str

    def batch(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a training batch, augmented."""
        x = augment(self.train.x[index], self.kind, generator=generator)
        return self.prepare(x), self.train.y[index]


@dataclass(frozen=True)
class Task:
    """One piece of work.

    Args:
        read: the data, from the folder that holds them.
        network: a fresh network.
        epochs: the budget of every method.
        batch_size: of a training step.
        learning_rate: of SGD with momentum for the deterministic network; the others are relative to it.
        weight_decay: of the deterministic network.
        draws: of a prediction.
    """

    read: Callable[[Path], Parts]
    network: Callable[[], nn.Module]
    epochs: int
    batch_size: int = 128
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    draws: int = 20


def _blur(x: Tensor) -> Tensor:
    return F.avg_pool2d(F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), 3, 1, 1, count_include_pad=False)


def _noise(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


def _contrast(x: Tensor) -> Tensor:
    middle = x.mean((1, 2, 3), keepdim=True)
    return middle + 0.4 * (x - middle)


def _pixelate(x: Tensor) -> Tensor:
    return F.interpolate(F.avg_pool2d(x, 2), scale_factor=2)


CORRUPTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gaussian noise": _noise,
    "blur": _blur,
    "contrast": _contrast,
    "pixelate": _pixelate,
}  # of images between 0 and 1, one severity each


def corrupted(part: Split) -> dict[str, Split]:
    """The first images of a part, corrupted in every way."""
    x, y = part.x[:CORRUPTED].float() / 255, part.y[:CORRUPTED]
    return {name: Split((255 * f(x).clamp(0, 1)).round().byte(), y) for name, f in CORRUPTIONS.items()}


def _images(name: str, folder: Path, ood: Mapping[str, Tensor], kind: str) -> Parts:
    data = load(name, folder)
    assert data.train is not None
    train, validation = hold_out(data.train, VALIDATION / len(data.train), seed=0)
    mean, std = channel_statistics(train)

    def prepare(x: Tensor) -> Tensor:
        return standardise(x, mean, std).contiguous(memory_format=torch.channels_last)

    return Parts(train, prepare, validation, data.test, ood, corrupted(data.test), kind)


def read_cifar(root: Path) -> Parts:
    """CIFAR-10, 45,000 images to train on; the out-of-distribution images are SVHN's."""
    crops = torch.from_numpy(np.load(root / "svhn_train_head_nolabels.npz")["x"]).permute(0, 3, 1, 2)
    return _images("cifar10", root, {"svhn": crops}, "crop_flip")


def read_fashion(root: Path) -> Parts:
    """Fashion-MNIST, 55,000 images to train on; the out-of-distribution images are MNIST's."""
    digits = load("mnist", root / "mnist").test.x
    return _images("fashion_mnist", root / "fashion-mnist", {"mnist": digits}, "none")


def _resnet(blocks: int) -> Callable[[], nn.Module]:
    return lambda: model("resnet20", blocks=blocks).to(memory_format=torch.channels_last)


TASKS: Mapping[str, Task] = {
    "cifar10-resnet8": Task(read_cifar, _resnet(1), epochs=8),
    "cifar10-resnet20": Task(read_cifar, _resnet(3), epochs=24),
    "fashion-lenet5": Task(read_fashion, lambda: model("lenet5", channels=1), epochs=20, learning_rate=0.02),
}
