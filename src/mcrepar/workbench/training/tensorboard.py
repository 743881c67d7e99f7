"""The rows of log.csv for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcrepar.errors import ParameterError
from mcrepar.workbench.training.config import TrainConfig


class Board:
    """A place for rows.

    Args:
        writer: a SummaryWriter, or None to drop them.
    """

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def row(self, row: Mapping[str, float | None]) -> None:
        """One epoch."""
        for name, value in row.items():
            if self.writer is not None and value is not None and name not in ("epoch", "step"):
                part = "validation" if name.startswith("val_") else "training"
                self.writer.add_scalar(f"{part}/{name.removeprefix('val_')}", value, int(row["step"] or 0))

    def close(self) -> None:
        """Write what is left."""
        if self.writer is not None:
            self.writer.close()


def check_tensorboard(config: TrainConfig) -> None:
    """Refuse --tensorboard where it is not installed."""
    if config.tensorboard and find_spec("tensorboard") is None:
        raise ParameterError("--tensorboard", "it is not installed", "pip install tensorboard, or --no-tensorboard")


def tensorboard(config: TrainConfig, folder: Path, step: int, visible: bool) -> Board:
    """The board of a run; what a killed run wrote after `step` is dropped.

    Args:
        config: whether there is one.
        folder: of the run.
        step: from which it goes on.
        visible: whether this process writes.
    """
    if not config.tensorboard or not visible:
        return Board(None)
    from torch.utils.tensorboard import SummaryWriter

    return Board(SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1))
