"""The run folder: whose it is, what it says of itself, and that two processes never write to it at once."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy
import torch

from mcrepar import __version__
from mcrepar.errors import ParameterError
from mcrepar.training.config import TrainConfig, read_config
from mcrepar.training.folder_lock import FolderTaken, take
from mcrepar.training.whole_file import write_text

OURS = ("config.yaml", "run.json", "log.csv", "checkpoints", "model")
SAME = ("count", "channels", "size", "classes", "digest")  # of the data, when a run goes on


class RunFolder:
    """Where a run is kept; nothing is written before `begin`.

    Args:
        config: whose `out` it is.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.path = config, Path(config.out)
        self.lock: IO[str] | None = None

    def check(self) -> str:
        """Refuse a folder that is another run's or cannot be written; else its status: "" where it holds no run."""
        asked = f"--out {self.path}"
        if self.path.exists() and not self.path.is_dir():
            raise ParameterError(asked, "it is a file", "a folder")
        above = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            raise ParameterError(asked, f"{above} cannot be written", "a place where you may write")
        found = [name for name in OURS if (self.path / name).exists()]
        if not found:
            return ""
        if not self.config.resume:
            why = f"it holds another run ({', '.join(found)})"
            raise ParameterError(asked, why, "another folder, or --resume to go on with that run")
        if "config.yaml" not in found:
            raise ParameterError(asked, f"it holds {found[0]}, but no config.yaml", "a folder of mcrepar train")
        self._check_same(read_config(self.path / "config.yaml"))
        return str(self.facts().get("status", ""))

    def _check_same(self, before: TrainConfig) -> None:
        differ = self.config.differences(before)
        if differ:
            texts = [f"{name}: {getattr(before, name)!r} there, {getattr(self.config, name)!r} now" for name in differ]
            why = f"that run has other options ({'; '.join(texts)})"
            raise ParameterError(f"--resume {self.path}", why, "the same options, or another --out for a new run")

    def _check_data(self, before: object, now: Mapping[str, Any] | None) -> None:
        if not isinstance(before, dict) or now is None:
            return
        here = json.loads(json.dumps(now))
        differ = [
            f"{name}: {before[name]} there, {here[name]} now"
            for name in SAME
            if before.get(name, here[name]) != here[name]
        ]
        if differ:
            why = f"the data are not those of that run ({'; '.join(differ)})"
            raise ParameterError(f"--resume {self.path}", why, "the same data, or another --out for a new run")

    def facts(self) -> dict[str, Any]:
        """What run.json says; empty where it is not there yet."""
        return read_run(self.path)

    def begin(self, facts: Mapping[str, Any], state_bytes: int) -> None:
        """Take the folder, and write config.yaml and run.json.

        Args:
            facts: for run.json.
            state_bytes: the size of a checkpoint; three and a model must fit.
        """
        try:
            self._begin(facts, 4 * state_bytes + 2**20)
        except OSError as error:
            self.release()
            why = f"it cannot be written ({error.strerror or error})"
            raise ParameterError(f"--out {self.path}", why, "a place where you may write") from None
        except ParameterError:
            self.release()
            raise

    def _begin(self, facts: Mapping[str, Any], space: int) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._take()
        self.check()  # again: another process may have begun and ended there since
        free = shutil.disk_usage(self.path).free
        if free < space:
            why = f"the disk has {free:,} bytes left, and the checkpoints need {space:,}"
            raise ParameterError(f"--out {self.path}", why, "a disk with more space")
        before = self.facts()
        self._check_data(before.get("data"), facts.get("data"))
        if not (self.path / "config.yaml").exists():
            write_text(self.path / "config.yaml", self.config.to_yaml())
        now = {**_surroundings(self.config), **facts, "started": _now(), "resumed": []}
        if before:
            again = {"at": _now(), "threads": torch.get_num_threads(), "world_size": facts["world_size"]}
            now |= {**before, "status": "running", "resumed": [*(before.get("resumed") or []), again]}
        self._write(now)

    def note(self, **facts: Any) -> None:
        """Change what run.json says."""
        self._write({**self.facts(), **facts})

    def _write(self, facts: Mapping[str, Any]) -> None:
        write_text(self.path / "run.json", json.dumps(facts, indent=1) + "\n")

    def _take(self) -> None:
        try:
            self.lock = take(self.path)
        except BlockingIOError:
            why = "another process is training there at this moment"
            raise FolderTaken(f"--out {self.path}", why, "another folder, or wait") from None

    def release(self) -> None:
        """Let others have the folder."""
        if self.lock is not None:
            self.lock.close()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _surroundings(config: TrainConfig) -> dict[str, Any]:
    """How and with what the run was started."""
    typed = len(sys.argv) > 1 and sys.argv[1] == "train"
    return {
        "status": "running",
        "command": ["mcrepar", *(sys.argv[1:] if typed else ["train", "--config", f"{config.out}/config.yaml"])],
        "versions": {
            "mcrepar": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": numpy.__version__,
        },
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "seed": config.seed,
    }


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json says; nothing where it is not there.

    Args:
        folder: of the run.
    """
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
