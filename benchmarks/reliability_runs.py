"""Attempts to break a training: kills, damaged files, full disks, and links out of its folder.

Every try is the command `mcrepar train` in a forked process with a time limit, and is judged by what is left: the files
of the model, bit by bit, and the log of a run that nothing happened to.
"""

from __future__ import annotations

import csv
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from reliability_trial import Part, Trial

from mcrepar.workbench.cli import main
from mcrepar.workbench.training.checkpoint import NAME
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.run_folder import read_run

SECONDS = 120.0  # in which any try ends
REFUSED = 2  # the exit code
OPTIONS = {
    "data": "arrays", "model": "resnet20", "model_options": {"blocks": 1}, "augment": "crop_flip", "validation": 0.25,
    "calibration": 8, "validation_draws": 2, "kl_schedule": "linear", "beta": 0.1, "epochs": 3, "batch_size": 12,
    "lr_schedule": "onecycle", "lr": 0.01, "prior_options": {"scale": "learned"}, "progress": "none", "threads": 1,
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


# ---- kills


def kills(chance: random.Random, tries: int) -> Trial:
    """Kills at random moments of a run and of its continuations, and the end that it comes to."""
    failures: list[str] = []
    killed = number = 0
    with some_runs() as runs:
        while killed < tries and number < 2 * tries:  # a run may end before it is killed
            variant, out = number % len(VARIANTS), runs.folder / f"killed-{number}"
            runs.wanted(variant)
            ended = Ended(None, "")
            for _ in range(min(tries - killed, chance.randint(1, 6))):
                ended = resumed(runs, variant, out, chance.uniform(0.0, runs.seconds[variant]))
                killed += ended.code is None
                if ended.code is not None:
                    break
            if ended.code is None:
                ended = resumed(runs, variant, out, SECONDS)
            if why := runs.differs(variant, out) if ended.code == 0 else ended.why:
                failures.append(f"run {number}: {why}")
            number += 1
    promise = (
        "A training that is killed at any moment goes on with `--resume` and ends bit by bit as if nothing had been."
    )
    how = f"SIGKILL at random moments of {number} trainings by `mcrepar train` and of their continuations"
    return Trial(promise, how, killed, failures)


def resumed(runs: Runs, variant: int, out: Path, seconds: float) -> Ended:
    """`--resume --out` alone; what was killed before it could say what it is must be refused, and begins anew."""
    before = (out / "config.yaml").exists()
    ended = command(["train", "--resume", "--out", str(out)], seconds)
    if before or ended.code is None:
        return ended
    if ended.code != REFUSED:
        return Ended(98, "--resume trained something that nobody had asked for")
    return command([*runs.words(variant, out), "--resume"], seconds)


# ---- damaged files


def flipped(chance: random.Random, raw: bytes) -> bytes:
    """One bit is another."""
    place = chance.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << chance.randrange(8)]) + raw[place + 1 :]


def zeroed(chance: random.Random, raw: bytes) -> bytes:
    """A block of zeros."""
    first = chance.randrange(len(raw))
    length = min(len(raw) - first, chance.randint(1, 4096))
    return raw[:first] + bytes(length) + raw[first + length :]


BYTES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "a bit": flipped,
    "cut short": lambda chance, raw: raw[: chance.randrange(len(raw))],
    "empty": lambda chance, raw: b"",
    "zeros": zeroed,
    "more bytes": lambda chance, raw: raw + chance.randbytes(chance.randint(1, 100)),
    "other bytes": lambda chance, raw: chance.randbytes(len(raw)),
}
KINDS: dict[str, Callable[[Path], None]] = {
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


def damage(chance: random.Random, path: Path) -> str:
    """Change a file in one way, and say in which."""
    how = chance.choice([*BYTES, *KINDS])
    raw = path.read_bytes()
    path.unlink()
    if how in BYTES:
        path.write_bytes(BYTES[how](chance, raw))
    else:
        KINDS[how](path)
    return f"{path.name}: {how}"


def damaged_checkpoints(chance: random.Random, tries: int) -> Trial:
    """The newest checkpoint is no checkpoint."""
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            out = runs.unfinished(0, runs.folder / "damaged")
            newest = max(path for path in (out / "checkpoints").iterdir() if NAME.fullmatch(path.name))
            how = damage(chance, newest)
            ended = command(["train", "--resume", "--out", str(out)])
            why = runs.differs(0, out) if ended.code == 0 else ended.why
            if "warning" not in ended.said and not why:
                why = "nothing was said"
            if why:
                failures.append(f"try {number}, {how}: {why}")
            shutil.rmtree(out)
    promise = (
        "A damaged checkpoint is named and left out: the one before it is taken, and the run ends bit by bit the same."
    )
    return Trial(promise, f"the newest checkpoint {_ways()}", tries, failures)


def damaged_options(chance: random.Random, tries: int) -> Trial:
    """config.yaml is not what was written."""
    promise = (
        "A damaged or changed `config.yaml` never makes a run go on with other options: it is refused without a change "
        "to any file, or nothing that matters was changed and the end is the same."
    )
    return _damaged_text("config.yaml", promise, chance, tries)


def damaged_facts(chance: random.Random, tries: int) -> Trial:
    """run.json is not what was written."""
    promise = (
        "A damaged `run.json` is restored from the checkpoint and the run comes to the same end, or it is refused "
        "without a change to any file."
    )
    return _damaged_text("run.json", promise, chance, tries)


def _damaged_text(name: str, promise: str, chance: random.Random, tries: int) -> Trial:
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            out = runs.unfinished(0, runs.folder / "damaged")
            how, before = damage(chance, out / name), contents(out)
            ended = command(["train", "--resume", "--out", str(out)])
            if ended.code == REFUSED:
                why = "" if contents(out) == before else "it was refused, but files changed"
            else:
                why = runs.differs(0, out) if ended.code == 0 else ended.why
            if why:
                failures.append(f"try {number}, {how}: {why}")
            shutil.rmtree(out)
    return Trial(promise, f"`{name}` {_ways()}", tries, failures)


def _ways() -> str:
    return f"damaged in one of {len(BYTES)} ways, or replaced by one of {len(KINDS)} other kinds of files"


# ---- disks and links


def full_disks(chance: random.Random, tries: int) -> Trial:
    """Files cannot grow beyond a random size, then they can."""
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            variant, out = number % len(VARIANTS), runs.folder / "full"
            largest = max(path.stat().st_size for path in runs.wanted(variant).rglob("*") if path.is_file())
            words = [*runs.words(variant, out), "--resume"]
            ended = command(words, most_bytes=chance.randrange(int(1.2 * largest)))
            finished = out.exists() and read_run(out).get("status") == "finished"
            why = ""
            if finished != (ended.code == 0):
                why = f"exit code {ended.code} and {'' if finished else 'not '}finished"
            elif ended.code not in (0, REFUSED):
                why = ended.why
            else:
                ended = command(words)
                why = runs.differs(variant, out) if ended.code == 0 else f"later {ended.why}"
            if why:
                failures.append(f"try {number}: {why}")
            shutil.rmtree(out, ignore_errors=True)
    promise = (
        "A disk that is full costs no more than what was to be written: a run says that it has finished only where its "
        "model is stored, and `--resume` then brings it to the same end."
    )
    return Trial(promise, "files that cannot grow beyond a random size, then without that limit", tries, failures)


def links(chance: random.Random, tries: int) -> Trial:
    """Names in a run folder lead elsewhere."""
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            outside = runs.folder / "precious"
            shutil.copytree(runs.wanted(0), outside)
            out, name = runs.folder / "linked", chance.choice((".lock", "model", "checkpoints", "log.csv", "run.json"))
            begun = chance.random() < 0.5
            if begun:
                shutil.copytree(runs.wanted(0), out)
                shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
            else:
                out.mkdir()
            target = outside / name if chance.random() < 0.5 else outside / "config.yaml"
            (out / name).symlink_to(target)
            before = contents(outside)
            ended = command([*runs.words(0, out), *(["--resume"] if begun else [])])
            if ended.code not in (0, REFUSED):
                failures.append(f"try {number}, {name}: {ended.why}")
            if contents(outside) != before:
                failures.append(f"try {number}: {name} was followed, and files outside changed")
            shutil.rmtree(out)
            shutil.rmtree(outside)
    promise = "A training changes nothing outside its folder, whatever links the folder holds."
    return Trial(
        promise, "`.lock`, `model`, `checkpoints`, `log.csv` or `run.json` linked to other files", tries, failures
    )


PARTS: dict[str, Part] = {
    "kills": kills,
    "damaged checkpoints": damaged_checkpoints,
    "damaged config.yaml": damaged_options,
    "damaged run.json": damaged_facts,
    "full disks": full_disks,
    "links": links,
}

if __name__ == "__main__":
    sys.exit("python benchmarks/reliability.py runs these parts")
