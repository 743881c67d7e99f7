"""From options to a run folder: `train`, and what its loop is made of; importing it imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcrepar.workbench.training.config import TrainConfig


def train(config: TrainConfig) -> Path:
    """Train a network as the options say, or go on with a run, and return its folder; that of all runs with `seeds`.

    Args:
        config: all options; every one has a default.
    """
    from mcrepar.workbench.training.loop import run

    config.check()
    for each in config.runs():
        run(each)
    return Path(config.out)
