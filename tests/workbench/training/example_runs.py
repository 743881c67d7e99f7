"""Runs of networks that nobody trained, on data that nobody stored: what evaluation and report are tried on."""

import json

import numpy as np
import torch
from torch import nn

import mcrepar
from mcrepar.data.dataset import Dataset, Split
from mcrepar.likelihoods import Categorical, Normal
from mcrepar.trained_model import TrainedModel
from mcrepar.workbench.evaluation import EvaluateOptions
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.setup import Run
from mcrepar.workbench.training.task import Facts
from tests.conftest import seeded

CLASSES = ("cat", "dog", "owl")


def split(n, shape=(3, 6, 6), classes=3, seed=0, dtype=torch.uint8):
    x = torch.randint(0, 256, (n, *shape), generator=seeded(seed)).to(torch.uint8)
    y = torch.arange(n) % max(classes, 1)
    if not classes:
        y = x.float().flatten(1).mean(1) / 100 + torch.randn(n, generator=seeded(seed + 1))
    return Split(x if dtype == torch.uint8 else x.float() / 255, y)


def a_dataset(shape=(3, 6, 6), classes=CLASSES, **facts):
    parts = [split(n, shape, len(classes), seed=n) for n in (30, 24)]
    return Dataset("mine", parts[0], None, parts[1], tuple(classes), **{"source": "mine.npz", **facts})


def a_run(folder, dataset=None, net=None, likelihood=None, note=""):
    """A run as open_run gives it, of a network that nobody trained."""
    dataset = dataset or a_dataset()
    torch.manual_seed(0)
    outputs, inputs = len(dataset.classes) or 1, dataset.test.x[0].numel()
    net = net or nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    bnn = mcrepar.bayesian(net, "radial", "normal", start_std=0.7).eval()
    likelihood = likelihood or (Categorical() if dataset.classes else Normal(0.5))
    folder.mkdir(exist_ok=True)
    facts = Facts.of(dataset, dataset.train)
    model = TrainedModel(bnn, likelihood, facts.preparation(TrainConfig()))
    run = Run(folder, TrainConfig(), facts, model, note)
    run.__dict__["dataset"] = dataset  # the cached property, which would read files
    return run


def options(folder, **given):
    return EvaluateOptions(
        **{"folder": str(folder), "draws": 12, "batch_size": 10, "progress": False, "images": 4, **given}
    )


def results(folder):
    with np.load(folder / "predictions.npz", allow_pickle=False) as file:
        return json.loads((folder / "metrics.json").read_text()), {name: file[name] for name in file.files}


def npz(folder, name="other.npz", **arrays):
    np.savez(folder / name, **arrays)
    return f"arrays,root={folder / name}"
