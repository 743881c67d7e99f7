"""What a user sees while a run goes on: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mcrepar.workbench.training.config import TrainConfig

EVERY = 30.0  # seconds between lines within a long epoch


class Display(ABC):
    """A view of a run."""

    @abstractmethod
    def step(self, epoch: int, batch: int, loss: float) -> None:
        """A step is done; both numbers count from 1."""

    @abstractmethod
    def say(self, text: str) -> None:
        """A line that stays."""

    def row(self, row: Mapping[str, float | None], epochs: int) -> None:
        """An epoch is done."""
        names = [name for name in row if name not in ("epoch", "step", "seconds") and row[name] is not None]
        cells = "  ".join(f"{name} {row[name]:.4g}" for name in names)
        self.say(f"epoch {int(row['epoch'] or 0):>{len(str(epochs))}}/{epochs}  {cells}  {row['seconds']:.1f} s")

    def warn(self, text: str) -> None:
        """A line for whoever looks at errors."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """The run is over."""
        return


class Quiet(Display):
    """Nothing but warnings."""

    def step(self, epoch: int, batch: int, loss: float) -> None:
        return

    def say(self, text: str) -> None:
        return


class Lines(Display):
    """A line per epoch, and one now and then within a long epoch.

    Args:
        epochs: of the run.
        batches: of an epoch.
    """

    def __init__(self, epochs: int, batches: int) -> None:
        self.epochs, self.batches, self.last = epochs, batches, time.monotonic()

    def step(self, epoch: int, batch: int, loss: float) -> None:
        if time.monotonic() - self.last >= EVERY:
            self.say(f"epoch {epoch}/{self.epochs}  step {batch}/{self.batches}  loss {loss:.4g}")

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.last = time.monotonic()


class Bars(Display):
    """One bar for the epochs and one for the steps, below the lines.

    Args:
        epochs: of the run.
        batches: of an epoch.
        done: epochs before.
    """

    def __init__(self, epochs: int, batches: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns: tuple[Any, ...] = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )  # fmt: skip
        self.batches = batches
        self.progress = Progress(*columns, transient=True)
        self.run = self.progress.add_task("run", total=epochs * batches, completed=done * batches, loss="")
        self.epoch = self.progress.add_task("epoch", total=batches, loss="")
        self.progress.start()

    def step(self, epoch: int, batch: int, loss: float) -> None:
        self.progress.update(self.run, completed=(epoch - 1) * self.batches + batch)
        self.progress.update(self.epoch, completed=batch, loss=f"loss {loss:.4g}")

    def say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self.progress.stop()


def display_of(config: TrainConfig, batches: int, done: int, visible: bool) -> Display:
    """The view that was asked for.

    Args:
        config: which one, and the number of epochs.
        batches: of an epoch.
        done: epochs before.
        visible: whether this process is the one that is seen.
    """
    kind = config.progress
    if kind == "none" or not visible:
        return Quiet()
    if kind == "bar" or (kind == "auto" and sys.stdout.isatty()):
        try:
            return Bars(config.epochs, batches, done)
        except ImportError:  # rich is an extra
            pass
    return Lines(config.epochs, batches)
