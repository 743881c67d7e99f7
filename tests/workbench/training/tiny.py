"""A training that takes a fraction of a second: made-up images, a small residual network with BatchNorm."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.task import Facts, read_data


def write_images(folder: Path, count: int = 60, seed: int = 0) -> Path:
    """Two classes of 8 x 8 images: bright above, or bright below."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = rng.integers(0, 120, (count, 1, 8, 8))
    x[y == 0, :, :4] += 120
    x[y == 1, :, 4:] += 120
    return _write(folder, x.astype(np.uint8), y)


def write_numbers(folder: Path, count: int = 200, seed: int = 0) -> Path:
    """A regression in the units of thousands: y = 5000 + 300 x0 - 200 x1 + noise of 50."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3)).astype(np.float32)
    y = 5000 + 300 * x[:, 0] - 200 * x[:, 1] + 50 * rng.normal(size=count)
    return _write(folder, x, y.astype(np.float32))


def _write(folder: Path, x: np.ndarray, y: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    cut = 4 * len(x) // 5
    path = folder / "data.npz"
    np.savez(path, x_train=x[:cut], y_train=y[:cut], x_test=x[cut:], y_test=y[cut:])
    return path


def options(folder: Path, name: str = "run", **changed: Any) -> dict[str, Any]:
    """Three epochs of three steps with all that a checkpoint must hold: norm statistics, crops, validation."""
    given: dict[str, Any] = {
        "data": "arrays", "root": str(folder / "data.npz"), "model": "resnet20", "model_options": {"blocks": 1},
        "augment": "crop_flip", "validation": 0.25, "calibration": 8, "validation_draws": 2, "kl_schedule": "linear",
        "beta": 0.1, "posterior": "radial", "prior": "normal", "prior_options": {"scale": "learned"},
        "forward": "weights", "epochs": 3, "batch_size": 12, "lr_schedule": "onecycle",
        "lr": 0.01, "scale_lr": 2.0, "out": str(folder / name), "progress": "none", "checkpoint_minutes": 5.0,
    }  # fmt: skip
    return {**given, **changed}


def config(folder: Path, name: str = "run", **changed: Any) -> TrainConfig:
    """The same as options of `train`."""
    return TrainConfig(**options(folder, name, **changed))


def words(folder: Path, name: str = "run", **changed: Any) -> list[str]:
    """The same as words of the command line, the options in a file."""
    path = folder / f"{name}.yaml"
    path.write_text(config(folder, name, **changed).to_yaml())
    return ["train", "--config", str(path)]


def log_of(folder: Path) -> list[dict[str, str]]:
    """The rows of log.csv without the clock."""
    with (folder / "log.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def model_of(folder: Path) -> dict[str, bytes]:
    """The files of the model; that of the tensors is named by its content."""
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


def facts_of(c: TrainConfig) -> Facts:
    dataset, training, _ = read_data(c)
    return Facts.of(dataset, training)
