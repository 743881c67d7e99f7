"""Trainings that a trial can kill, damage and continue, and the ones that nothing happened to."""

from __future__ import annotations

import csv
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mcrepar.workbench.cli import main
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.run_folder import read_run

SECONDS = 120.0  # in which any try ends
REFUSED = 2  # the exit code
OPTIONS = {
    "data": "arrays", "model": "resnet20", "model_options": {"blocks": 1}, "augment": "crop_flip", "validation": 0.25,
    "calibration": 8, "validation_draws": 2, "kl_schedule": "linear", "beta": 0.1, "epochs": 3, "batch_size": 12,
    "lr_schedule": "onecycle", "lr": 0.01, "prior": "normal", "prior_options": {"scale": "learned"},
    "progress": "none", "threads": 1,
}  # fmt: skip
VARIANTS = (
    {"checkpoint_minutes": 0.0},
    {"checkpoint_minutes": 0.005, "deterministic_epochs": 1},
    {"checkpoint_minutes": 0.005, "patience": 2, "epochs": 5},
)


class Ended(NamedTuple):
    """How a command ended: its exit code (None where it was killed), and what it wrote on stderr."""

    code: int | None
    said: str

    @property
    def why(self) -> str:
        """The same as a sentence."""
        return f"exit code {self.code}: {self.said.strip()[-200:]}"


def command(words: Sequence[str], kill_after: float = SECONDS, most_bytes: int | None = None) -> Ended:
    """Run `mcrepar` in a forked process, killed after a time, or with files that cannot grow beyond a size."""
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:  # torch is imported, so that kills come at the work and not at the imports
            try:
                os.dup2(errors.fileno(), 2)
                if most_bytes is not None:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(
                        resource.RLIMIT_FSIZE, (most_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
                    )
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os._exit(main(words))
            finally:
                os._exit(99)
        end = time.monotonic() + kill_after
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                errors.seek(0)
                return Ended(os.waitstatus_to_exitcode(status), errors.read().decode(errors="replace"))
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Ended(None, "killed")


class Runs:
    """A folder with data, and runs that nothing happened to.

    Args:
        folder: where all of it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rng = np.random.default_rng(0)
        y = np.arange(60) % 2
        x = rng.integers(0, 120, (60, 1, 8, 8)) + 120 * (np.arange(8)[:, None] // 4 == y[:, None, None, None])
        np.savez(folder / "data.npz", x_train=x[:48].astype(np.uint8), y_train=y[:48], x_test=x[48:], y_test=y[48:])
        self.seconds: dict[int, float] = {}

    def words(self, variant: int, out: Path) -> list[str]:
        """The command of a run."""
        options = {**OPTIONS, "root": str(self.folder / "data.npz"), **VARIANTS[variant]}
        path = self.folder / f"{variant}.yaml"
        path.write_text(TrainConfig(**options).to_yaml())
        return ["train", "--config", str(path), "--out", str(out)]

    def wanted(self, variant: int) -> Path:
        """The run as it ends where nothing happens."""
        out = self.folder / f"wanted-{variant}"
        if not out.exists():
            start = time.monotonic()
            ended = command(self.words(variant, out))
            self.seconds[variant] = time.monotonic() - start
            assert ended.code == 0, ended.said
        return out

    def unfinished(self, variant: int, out: Path) -> Path:
        """A copy of that run that has not finished: of its model nothing is there."""
        shutil.copytree(self.wanted(variant), out)
        text = (out / "run.json").read_text()
        (out / "run.json").write_text(text.replace('"finished"', '"running"'))
        if "patience" not in VARIANTS[variant]:
            shutil.rmtree(out / "model")
        return out

    def differs(self, variant: int, out: Path) -> str:
        """How a run that has ended differs from the one that nothing happened to; "" where it does not."""
        wanted = self.wanted(variant)
        if read_run(out).get("status") != "finished":
            return f"its status is {read_run(out).get('status')!r}"
        models = [{path.name: path.read_bytes() for path in (run / "model").iterdir()} for run in (out, wanted)]
        if models[0] != models[1]:
            return "the model differs"
        return "" if rows(out) == rows(wanted) else "the log differs"


def rows(folder: Path) -> list[dict[str, str]]:
    """The log without the clock."""
    with (folder / "log.csv").open() as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@contextmanager
def some_runs() -> Iterator[Runs]:
    """Runs in a folder that goes when they are over."""
    torch.set_num_threads(1)  # threads do not survive a fork
    with tempfile.TemporaryDirectory() as name:
        yield Runs(Path(name))


def contents(folder: Path) -> dict[str, object]:
    """Every file of a folder, with its bytes; links and other kinds by what they are."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else str(path.lstat().st_mode)
    return {name: value for name, value in found.items() if name != ".lock"}
