"""The run folder: whose it is, what it says of itself, and that two processes never write to it at once."""

from __future__ import annotations

import datetime
import errno
import json
import os
import platform
import shutil
import stat
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy
import torch

from mcrepar import __version__
from mcrepar.errors import ParameterError
from mcrepar.user_files import read_json, remove_stale, write_file
from mcrepar.workbench.training.checkpoint import PARTS, Found, newest
from mcrepar.workbench.training.config import TrainConfig, names, read_config, spelled


class FolderTaken(ParameterError):
    """Another process has the folder at this moment."""


def take(folder: Path) -> IO[str] | None:
    """A lock on a folder, held until it is closed; BlockingIOError where another process has it.

    The lock is a file that is never emptied: where `.lock` is a link, or no plain file, it is an OSError.

    Args:
        folder: that exists.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     lock = take(Path(name))
    ...     lock is None or lock.close()
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    lock = _opened(folder / ".lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when a process is killed
    except BlockingIOError:
        lock.close()
        raise
    return lock


def _opened(path: Path) -> IO[str]:
    if path.is_symlink():
        raise OSError(errno.ELOOP, ".lock is a symbolic link, which is not followed", str(path))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, ".lock is not a plain file", str(path))
    return os.fdopen(handle, "r+")


OURS = ("config.yaml", "run.json", "log.csv", "checkpoints", "model")
NOT_LINKED = (".lock", "checkpoints", "model")  # what is written into, not replaced
WRITTEN = r"config\.yaml|run\.json|log\.csv"
SAME = ("count", "channels", "size", "classes", "digest")  # of the data, when a run goes on


class RunFolder:
    """Where a run is kept; nothing is written before `begin`.

    Args:
        config: whose `out` it is.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.path = config, Path(config.out)
        self.lock: IO[str] | None = None
        self.known: dict[str, Any] = {}  # what run.json says

    def check(self) -> str:
        """Refuse a folder that is another run's or cannot be written; else its status: "" where it holds no run."""
        asked = f"--out {self.path}"
        if self.path.exists() and not self.path.is_dir():
            raise ParameterError(asked, "it is a file", "a folder")
        above = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            raise ParameterError(asked, f"{above} cannot be written", "a place where you may write")
        for name in NOT_LINKED:
            if (self.path / name).is_symlink():
                why = f"its {name} is a symbolic link, and a run writes to its own folder only"
                raise ParameterError(asked, why, "it without that link; --out itself may be a link")
        found = self._found()
        if not found:
            return ""
        if not self.config.resume:
            why = f"it holds another run ({', '.join(found)})"
            raise ParameterError(asked, why, "another folder, or --resume to go on with that run")
        if "config.yaml" in found:
            self._check_same(read_config(self.path / "config.yaml"), "that run")
        elif "checkpoints" not in found:
            raise ParameterError(asked, f"it holds {found[0]}, but no config.yaml", "a folder of mcrepar train")
        return str(read_run(self.path).get("status", "")) if "config.yaml" in found else "without options"

    def _check_same(self, before: TrainConfig, whose: str) -> None:
        differ = self.config.differences(before)
        if differ:
            texts = [f"{name}: {getattr(before, name)!r} there, {getattr(self.config, name)!r} now" for name in differ]
            why = f"{whose} has other options ({'; '.join(texts)})"
            raise ParameterError(f"--resume {self.path}", why, "the same options, or another --out for a new run")

    def _check_checkpoint(self, found: Found | None) -> None:
        """Refuse to go on from a checkpoint of a run with other options than these, or without any options."""
        if found is not None and "options" in found.state:
            self._check_same(kept_options(found), f"the run of {found.path.name}")
        elif not (self.path / "config.yaml").exists() and (others := self._found()):
            why = f"it holds {others[0]}, but no config.yaml and no checkpoint with its options"
            raise ParameterError(f"--resume {self.path}", why, "the config.yaml of that run, or another --out")

    def _found(self) -> list[str]:
        return [name for name in OURS if os.path.lexists(self.path / name)]

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

    def begin(self, facts: Mapping[str, Any], state_bytes: int) -> Found | None:
        """Take the folder, write config.yaml and run.json, and return the checkpoint to go on from.

        Args:
            facts: for run.json.
            state_bytes: the size of a checkpoint; three and a model must fit.
        """
        try:
            return self._begin(facts, 4 * state_bytes + 2**20)
        except OSError as error:
            self.release()
            why = f"it cannot be written ({error.strerror or error})"
            raise ParameterError(f"--out {self.path}", why, "a place where you may write") from None
        except ParameterError:
            self.release()
            raise

    def _begin(self, facts: Mapping[str, Any], space: int) -> Found | None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._take()
        self.check()  # again: another process may have begun and ended there since
        remove_stale(self.path, WRITTEN)
        for name in ("checkpoints", "model"):
            remove_stale(self.path / name)
        found = newest(self.path / "checkpoints", PARTS)
        self._check_checkpoint(found)
        self._check_space(space)
        before = self._before(found)
        self._check_data(before.get("data"), facts.get("data"))
        if not (self.path / "config.yaml").exists():
            write_file(self.path / "config.yaml", self.config.to_yaml())
        now = {**_surroundings(self.config), **facts, "started": _now(), "resumed": []}
        if before:
            again = {"at": _now(), "threads": torch.get_num_threads(), "world_size": facts["world_size"]}
            now |= {**before, "status": "running", "resumed": [*(before.get("resumed") or []), again]}
        self.note(**now)
        return found

    def _check_space(self, space: int) -> None:
        """Refuse a disk that will be full; what earlier checkpoints and models occupy is used again."""
        used = sum(path.lstat().st_size for name in ("checkpoints", "model") for path in (self.path / name).glob("*"))
        free = shutil.disk_usage(self.path).free
        if free < space - used:
            why = f"the disk has {free:,} bytes left, and the checkpoints need {space - used:,}"
            raise ParameterError(f"--out {self.path}", why, "a disk with more space")

    def _before(self, found: Found | None) -> dict[str, Any]:
        """What run.json said; where it is lost, what the checkpoint knows of it, and a damaged file is set aside."""
        path, kept = self.path / "run.json", {} if found is None else dict(found.state.get("run") or {})
        try:
            return _facts(path)
        except FileNotFoundError:
            lost = "missing"
        except (OSError, ValueError):
            path.replace(aside := path.with_name("run.json.damaged"))
            lost = f"damaged, and is now {aside.name}"
        if kept or lost != "missing":
            anew = "it is restored from the checkpoint" if kept else "a new one is written"
            warnings.warn(f"{path} is {lost}; {anew}", stacklevel=2)
        return kept

    def note(self, **facts: Any) -> None:
        """Change what run.json says."""
        self.known |= json.loads(json.dumps(facts))
        self._write(self.known)

    def _write(self, facts: Mapping[str, Any]) -> None:
        write_file(self.path / "run.json", json.dumps(facts, indent=1) + "\n")

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


def kept_options(found: Found) -> TrainConfig:
    """The options of the run that wrote a checkpoint, or a refusal.

    Args:
        found: the checkpoint.
    """
    options = found.state.get("options")
    options = spelled(options) if isinstance(options, dict) else {}
    unknown = [name for name in options if name not in names()]
    if unknown or not options:
        why = f"there is no option {unknown[0]!r}" if unknown else "it holds no options"
        raise ParameterError(f"{found.path}", why, "the version of mcrepar that wrote it")
    return TrainConfig(**options)


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json says; nothing where it is not there or damaged.

    Args:
        folder: of the run.
    """
    try:
        return _facts(folder / "run.json")
    except (OSError, ValueError):
        return {}


def _facts(path: Path) -> dict[str, Any]:
    """What run.json says; an OSError or ValueError where it cannot be read."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found
