"""log.csv: one row per epoch, rewritten whole from the rows that a checkpoint keeps; and the same for TensorBoard."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from mcrepar.errors import ParameterError
from mcrepar.user_files import read_text, write_file
from mcrepar.workbench.training.config import TrainConfig

Row = dict[str, float | None]
WHOLE = ("epoch", "step")
MOST_ROWS, MOST_COLUMNS = 20_000, 64  # that are read


def columns(score: str) -> tuple[str, ...]:
    """The columns of log.csv; `score` is accuracy or rmse.

    >>> columns("accuracy")[:4]
    ('epoch', 'step', 'loss', 'nll')
    """
    return (
        "epoch", "step", "loss", "nll", "kl", "beta", "lr", score, "val_loss", "val_nll", "val_lpd", f"val_{score}",
        "seconds",
    )  # fmt: skip


@dataclass
class Sums:
    """What is summed over the steps of an epoch on one process.

    Args:
        steps: how many.
        data: the number of examples that they saw.
        loss: summed over steps.
        nll: summed over steps.
        kl: summed over steps.
        score: right answers, or squared errors, summed over examples.
        seconds: wall-clock time.
    """

    steps: float = 0.0
    data: float = 0.0
    loss: float = 0.0
    nll: float = 0.0
    kl: float = 0.0
    score: float = 0.0
    seconds: float = 0.0


@dataclass
class Position:
    """Where a run stands; with the tensors, all that a checkpoint holds.

    Args:
        epoch: how many are done.
        batch: how many steps of the present epoch are done.
        sums: of the present epoch, on this process.
        rows: of log.csv.
        best: the smallest validation loss, of those that early stopping compares.
        waited: epochs since then.
    """

    epoch: int = 0
    batch: int = 0
    sums: Sums = field(default_factory=Sums)
    rows: list[Row] = field(default_factory=list)
    best: float = float("inf")
    waited: int = 0


def write_log(path: Path, rows: Sequence[Mapping[str, float | None]], score: str) -> None:
    """Write all rows; empty cells where there is no value.

    Args:
        path: of log.csv.
        rows: by column.
        score: accuracy or rmse.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns(score))
    for row in rows:
        writer.writerow([_cell(name, row.get(name)) for name in columns(score)])
    write_file(path, text.getvalue())


def read_log(path: Path) -> dict[str, list[float]]:
    """The columns of log.csv, NaN where a cell is empty.

    Args:
        path: of log.csv.

    Raises:
        FileNotFoundError: where there is none.
        ParameterError: where it is damaged.
    """

    def damaged(why: str) -> ParameterError:
        return ParameterError(f"{path}", why, "the file as mcrepar train wrote it")

    try:
        lines = csv.reader(io.StringIO(read_text(path), newline=""))
        header = next(lines, [])
        rows = [row for row in islice(lines, MOST_ROWS + 1) if row]
    except csv.Error as error:
        raise damaged(f"it is no table ({error})") from None
    if len(header) > MOST_COLUMNS or len(rows) > MOST_ROWS:
        raise damaged(f"it has more than {MOST_ROWS:,} rows or {MOST_COLUMNS} columns")
    try:
        cells = zip(*rows, strict=True) if rows else ([] for _ in header)
        found = zip(header, cells, strict=True)
        return {name: [float(cell) if cell else math.nan for cell in column] for name, column in found}
    except ValueError as error:
        raise damaged(f"its cells are no numbers of {len(header)} columns ({error})") from None


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if name in WHOLE else f"{value:.8g}"


class Board:
    """Where the rows go that TensorBoard shows.

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
