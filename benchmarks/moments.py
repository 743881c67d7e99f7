"""How far the pass of moments is from many draws: mean and variance at every layer and at the output.

python benchmarks/moments.py [--draws 10000] [--only PART_OF_A_NAME] [--out FOLDER]; the others stay as they are

Networks for digits are trained first (deterministic, a few hundred steps), the others are at their initialisation; all
become Bayesian with initial_std=0.1 (Normal weights) or 0.05 (rank-1 factors). The draws use the norm statistics that
the pass uses. Factors are fitted to 128 draws on other inputs than those that are measured.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import machine
from torch import Tensor, nn

import mcrepar
from mcrepar.models import model
from mcrepar.nn.moments.moment_calibration import calibrate_moments, sampled_moments
from mcrepar.nn.moments.moment_pass import Scaling
from mcrepar.nn.moments.rules import settling
from mcrepar.nn.moments.tensor import MomentTensor
from mcrepar.nn.prediction_passes import holding

CHUNK = 10  # draws at once; more are slower
MEASURED, FITTED = 8, 64  # inputs that are measured, and that factors are fitted to


def digits(size: int, channels: int) -> tuple[Tensor, Tensor]:
    """scikit-learn's digits as images of this size."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    x = F.interpolate(x, size=(size, size), mode="bilinear").repeat(1, channels, 1, 1)
    return x, torch.tensor(found.target)


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int = 200) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net.train()(x[batch]), y[batch]).backward()
        optimizer.step()
    return net.eval()


def lenet() -> nn.Module:
    convolutions = nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
    dense = nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    return nn.Sequential(*convolutions, *dense)


class Encoder(nn.Module):
    """Two layers of torch's transformer over 12 tokens, a class from their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.words, self.head = nn.Embedding(50, 32), nn.Linear(32, 5)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.words(tokens)).mean(1))
        return out


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=5, max_position_embeddings=16, **sizes))


def monai_densenet() -> nn.Module:
    from monai.networks.nets import DenseNet

    return DenseNet(3, 1, 4, init_features=8, growth_rate=4, block_config=(2, 2))


def volumes(count: int) -> Tensor:
    return F.interpolate(torch.randn(count, 1, 5, 5, 5), size=(16, 16, 16), mode="trilinear")


def with_statistics(net: nn.Module, x: Tensor) -> nn.Module:
    """Norm layers that have seen the inputs."""
    with torch.no_grad():
        for _ in range(20):
            net.train()(x)
    return net.eval()


Case = tuple[nn.Module, Tensor]


def on_digits(make: Callable[[], nn.Module], size: int, channels: int = 1, flat: bool = False) -> Case:
    x, y = digits(size, channels)
    x = x.flatten(1) if flat else x
    return trained(make(), x, y), x[torch.randperm(len(x))[: MEASURED + FITTED]]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10))


def encoder3d() -> Case:
    x = volumes(MEASURED + FITTED)
    return with_statistics(model("unet3d_encoder", classes=4, channels=1, width=4), x), x


def tokens() -> Tensor:
    return torch.randint(50, (MEASURED + FITTED, 12))


def monai() -> Case:
    x = volumes(MEASURED + FITTED)
    return with_statistics(monai_densenet(), x), x


CASES: dict[str, tuple[Callable[[], Case], dict[str, Any]]] = {
    "MLP 64-50-50-10": (lambda: on_digits(mlp, 8, flat=True), {}),
    "MLP, radial": (lambda: on_digits(mlp, 8, flat=True), {"posterior": "radial"}),
    "MLP, laplace": (lambda: on_digits(mlp, 8, flat=True), {"posterior": "laplace"}),
    "LeNet": (lambda: on_digits(lenet, 28), {}),
    "ResNet-8": (lambda: on_digits(lambda: model("resnet20", blocks=1), 32, 3), {}),
    "ResNet-8, rank-1": (
        lambda: on_digits(lambda: model("resnet20", blocks=1), 32, 3),
        {"structure": "rank1", "initial_std": 0.05},
    ),
    "3D U-Net encoder": (encoder3d, {}),
    "transformer, 2 layers": (lambda: (Encoder().eval(), tokens()), {}),
    "BERT of transformers, 2 layers": (lambda: (bert().eval(), tokens()), {}),
    "DenseNet of MONAI, 3D": (monai, {}),
}


Moments = list[tuple[str, Tensor, Tensor]]  # of every operation: its name, mean and variance


class Recording:
    """Sums over draws at every operation.

    Args:
        scaling: applies the factors, where there are any.
    """

    def __init__(self, scaling: Scaling | None = None) -> None:
        self.scaling, self.count = scaling, 0
        self.passed: Moments = []  # what the pass says
        self.sums: list[list[Any]] = []  # number of draws, and the sums of their distances from it and of the squares

    def restart(self) -> None:
        """A new pass, with other draws."""
        self.count = 0

    def __call__(self, name: str, result: MomentTensor) -> MomentTensor:
        out = result if self.scaling is None else self.scaling(name, result)
        if self.count == len(self.passed):
            self.passed.append((name, out.expectation.double(), out.variance.double()))
            self.sums.append([0, 0.0, 0.0])
        row, samples = self.sums[self.count], out.samples
        if samples:
            away = torch.stack(samples).double() - self.passed[self.count][1]
            row[0], row[1], row[2] = row[0] + len(away), row[1] + away.sum(0), row[2] + away.square().sum(0)
        self.count += 1
        return out

    def drawn(self) -> Moments:
        """Mean and variance of the draws."""
        found = []
        for (name, centre, _), (n, first, second) in zip(self.passed, self.sums, strict=True):
            shift = first / n
            spread = ((second / n - shift.square()) * (n / (n - 1))).clamp_min(1e-30)
            found.append((name, centre + shift, spread))
        return found


def errors(passed: Moments, drawn: Moments) -> list[dict[str, Any]]:
    """For every operation: the error of means in standard deviations, the ratio of variances."""
    found = []
    for (name, mean, variance), (_, true, spread) in zip(passed, drawn, strict=True):
        used = spread > 1e-6 * spread.max()
        rms = float(((mean - true).square() / spread)[used].mean().sqrt())
        found.append({"operation": name, "mean": rms, "variance": float(variance.sum() / spread.sum())})
    return found


@torch.no_grad()
def from_draws(bnn: mcrepar.BayesianModule, x: Tensor, draws: int) -> Recording:
    """The pass without factors, and draws beside it."""
    recording, generator = Recording(), torch.Generator().manual_seed(5)
    for _ in range(draws // CHUNK):
        recording.restart()
        with holding({bnn: sampled_moments(bnn, CHUNK, generator)}), settling(recording):
            bnn(x)
    return recording


@torch.no_grad()
def from_factors(bnn: mcrepar.BayesianModule, x: Tensor) -> Moments:
    """The pass with the factors that the network keeps."""
    recording = Recording(Scaling(bnn.calibration.moment_factors))
    with holding({bnn: sampled_moments(bnn, 2, torch.Generator().manual_seed(5))}), settling(recording):
        bnn(x)
    return recording.passed


def case(name: str, draws: int) -> dict[str, Any]:
    """One network, without and with factors, which do not change the draws."""
    torch.manual_seed(0)
    make, options = CASES[name]
    net, x = make()
    bnn = mcrepar.bayesian(net, **({"posterior": "normal", "initial_std": 0.1} | options)).eval()
    bnn.calibration.warned = True
    recording = from_draws(bnn, x[:MEASURED], draws)
    drawn, plain = recording.drawn(), recording.passed
    output = "logits" if "BERT" in name else None
    calibrate_moments(bnn, x[MEASURED:], generator=torch.Generator().manual_seed(1), output=output)
    fitted = from_factors(bnn, x[:MEASURED])
    return {"name": name, "draws": draws, "plain": errors(plain, drawn), "fitted": errors(fitted, drawn)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    file, where = options.out / "moments.json", machine()
    before = json.loads(file.read_text())["networks"] if file.exists() else []
    found = {network["name"]: network for network in before}
    for name in CASES:
        if options.only in name:
            found[name] = case(name, options.draws)
            last = [found[name][kind][-1] for kind in ("plain", "fitted")]
            print(name, *(f"mean {row['mean']:.3f} variance {row['variance']:.3f}" for row in last), flush=True)
            content = {"machine": where, "networks": [found[known] for known in CASES if known in found]}
            file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
