"""Weights in files: checkpoints, sealed by their name, and the weights of a plain network to start from.

`step-00001234.<first 16 hex digits of sha256>.pt` is a dict of plain numbers and tensors; the two newest are kept.
It also holds the options and what run.json says, so that both can be restored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.user_files import ANY_SIZE, open_file, write_file

NAME = re.compile(r"step-(\d{8})\.([0-9a-f]{16})\.pt")
KEPT = 2
NESTED = ("state_dict", "model", "model_state_dict", "net")  # where other people's checkpoints keep the weights
PARTS = ("step", "bayesian", "model", "likelihood", "optimizer", "position", "sums")  # without which no run goes on


@dataclass(frozen=True, eq=False)
class Found:
    """A checkpoint that was read.

    Args:
        path: of its file.
        state: what was written.
    """

    path: Path
    state: dict[str, Any]


def write(folder: Path, step: int, state: Mapping[str, Any], good: Path | None = None) -> Path:
    """Write a checkpoint, then drop all but it and the one before; an OSError leaves the older ones as they are.

    Args:
        folder: of the checkpoints, made where it does not exist.
        step: how many steps were made.
        state: numbers, texts, tensors, and lists and dicts of them.
        good: the last that was written or read, where there is one: those between are damaged.
    """

    def save(file: IO[bytes]) -> None:
        try:
            torch.save(dict(state), file)
        except RuntimeError as error:  # what torch makes of a write that fails
            raise OSError(f"torch could not write it: {error}") from None

    path = write_file(folder / f"step-{step:08d}.{{digest}}.pt", save)
    last = (good or path).name[:13]
    before = [old for old in _listed(folder) if old.name[:13] < path.name[:13] and old.name[:13] <= last]
    for old in _listed(folder):  # one of a later step is damaged: this run has gone on from an earlier one
        if old not in (path, *before[: KEPT - 1]):
            with contextlib.suppress(OSError):  # a folder of such a name is not ours
                old.unlink()
    return path


def newest(folder: Path, parts: Collection[str] = ("step",)) -> Found | None:
    """The newest checkpoint that is whole, with a warning for each that is not; None where there is none at all.

    Args:
        folder: of the checkpoints.
        parts: what a checkpoint must hold.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise ParameterError(f"{folder}", "it is no folder of checkpoints, or leads nowhere", "the run's own folder")
    paths = _listed(folder)
    for path in paths:
        try:
            return Found(path, _read(path, parts))
        except MemoryError:
            raise
        except Exception as error:  # files that are not what they should be fail in many ways
            then = "the one before it is taken" if path != paths[-1] else "there is none before it"
            why = str(error).partition("\n")[0]
            warnings.warn(f"{path.name} is damaged ({why}) and was left out; {then}", stacklevel=2)
    if paths:
        why = f"all of its {len(paths)} checkpoints are damaged"
        raise ParameterError(f"{folder}", why, "another --out, or remove that folder to begin again")
    return None


def _read(path: Path, parts: Collection[str]) -> dict[str, Any]:
    """What a checkpoint holds; an error of any kind where it is no plain file, changed, or of another form."""
    match = NAME.fullmatch(path.name)
    assert match is not None
    with open_file(path, ANY_SIZE) as file:
        if hashlib.file_digest(file, "sha256").hexdigest()[:16] != match[2]:
            raise ValueError("its bytes are not those that were written")
        if not zipfile.is_zipfile(file):  # torch.load would take it for its format of old
            raise ValueError("it is no checkpoint")
        file.seek(0)
        state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not set(parts) <= set(state):
        raise ValueError("it has not the parts of a checkpoint")
    return state


def restore(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Load the parameters and buffers of a checkpoint, unless they are those of another network.

    Args:
        module: of the same architecture.
        state: its tensors by name, without the calibration batch.
        path: of the checkpoint, for the message.
    """
    if why := mismatch(state, tensors_of(module)):
        raise ParameterError(f"{path}", f"it is of another network: {why}", "the run's own checkpoint")
    module.load_state_dict(state, strict=False)


def mismatch(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """How the tensors of a file differ from those of a network, in names or shapes; "" where they do not.

    >>> mismatch({"weight": torch.zeros(2, 3)}, {"weight": torch.zeros(2, 4)})
    "'weight' is (2, 3) there and (2, 4) here"
    """
    for name in [*wanted, *found]:
        if name not in found or name not in wanted:
            return f"{'the file' if name not in found else 'the network'} has no {name!r}"
        if found[name].shape != wanted[name].shape:
            return f"{name!r} is {tuple(found[name].shape)} there and {tuple(wanted[name].shape)} here"
    return ""


def read_weights(path: Path, net: nn.Module) -> dict[str, Tensor]:
    """The weights in a file, if they are those of this network.

    Args:
        path: a .safetensors file, or what torch.save wrote: a state_dict, or a dict that holds one.
        net: whose names and shapes they must have; it is not changed.
    """
    asked = f"--warm-start {path}"
    if not path.is_file():
        raise ParameterError(asked, "there is no such file", "a .safetensors or .pt file of weights")
    weights = {name.removeprefix("module."): tensor for name, tensor in _weights(path, asked).items()}
    if why := mismatch(weights, net.state_dict()):
        raise ParameterError(asked, why, "weights of the same network, for as many classes and channels")
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise ParameterError(asked, f"{name!r} is not finite", "weights of a training that did not diverge")
    return weights


def _weights(path: Path, asked: str) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files fail in many ways
        why = f"it holds no weights that can be read without running code ({type(error).__name__})"
        raise ParameterError(asked, why, "torch.save(net.state_dict(), file), or a .safetensors file") from None
    for key in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ParameterError(asked, "it holds no state_dict", "torch.save(net.state_dict(), file)")
    return found


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, without priors and calibration batch, which never change."""
    return {name: t for name, t in module.state_dict().items() if name != "_extra_state"}


def _listed(folder: Path) -> list[Path]:
    """The checkpoints, newest first."""
    found = [path for path in folder.glob("step-*.pt") if NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.name[:13], path.lstat().st_mtime), reverse=True)
