"""A folder with config.json and one file of tensors, sealed against damage and replaced in one step.

The config names its file of tensors by content and is replaced last: whatever interrupts a write, the folder holds what
was there before or what is new. Reading runs no code: JSON and safetensors hold data only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from torch import Tensor

from mcrepar.errors import ParameterError
from mcrepar.user_files import digest_of, write_file

CONFIG = "config.json"
FORMAT, VERSION = "mcrepar", 1
TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
OWN = ("format", "version", "file", "sha256", "seal")  # the keys of config.json that are written here


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write to a folder, made whole beside its place where it does not exist yet."""
    try:
        _write(folder, config, tensors)
    except OSError as error:
        why = f"it cannot be written ({error.strerror or error})"
        raise ParameterError(
            f"save(bnn, {os.fspath(folder)!r})", why, "a folder in a place that you may write to"
        ) from error


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    if folder.exists():
        _check_replaceable(folder)
        _write_into(folder, config, tensors)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.tmp")
    try:
        fresh.mkdir()
        _write_into(fresh, config, tensors)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config without the keys of this module, and the tensors; or a refusal that says what is wrong."""
    config = _read_config(folder)
    name = config["file"]
    if not isinstance(name, str) or not TENSORS.fullmatch(name):
        refuse(folder, f"{CONFIG} names {name!r} as its tensors")
    path = folder / name
    if not path.is_file():
        refuse(folder, f"its file {name} is missing")
    if digest_of(path) != config["sha256"]:
        refuse(folder, f"its file {name} is damaged: the bytes are not those that were written")
    library = _safetensors()
    try:
        tensors = library.load_file(path)
    except Exception as error:  # safetensors has an error of its own, and uses others too
        refuse(folder, f"its file {name} holds no tensors ({error})")
    return {key: value for key, value in config.items() if key not in OWN}, tensors


def refuse(folder: Path, why: str, instead: str = "a folder that mcrepar.save wrote, unchanged") -> NoReturn:
    """The error of a folder that cannot be read."""
    raise ParameterError(f"load({os.fspath(folder)!r})", why, instead)


def _write_into(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    data = _safetensors().save(dict(tensors))  # save_file hides OSErrors and sets the mode to 0600
    name = write_file(folder / "tensors-{digest}.safetensors", data).name
    whole = {"format": FORMAT, "version": VERSION, **config, "file": name, "sha256": hashlib.sha256(data).hexdigest()}
    sealed = json.dumps({**whole, "seal": _seal(whole)}, indent=1, allow_nan=False)
    write_file(folder / CONFIG, sealed)  # from here on the folder is the new one
    for old in folder.iterdir():
        if TENSORS.fullmatch(old.name) and old.name != name:
            old.unlink()


def _check_replaceable(folder: Path) -> None:
    """Never write over a config.json of someone else."""
    if not folder.is_dir():
        raise ParameterError(f"save(bnn, {os.fspath(folder)!r})", "it is a file", "a folder")
    if (folder / CONFIG).exists():
        try:
            _read_config(folder)
        except ParameterError as error:
            raise ParameterError(
                f"save(bnn, {os.fspath(folder)!r})", f"it holds another {CONFIG} ({error.why})", "another folder"
            ) from None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        refuse(folder, f"it has no {CONFIG}")
    try:
        config = json.loads(path.read_bytes())
        seal = _seal({key: value for key, value in config.items() if key != "seal"} if isinstance(config, dict) else {})
    except (ValueError, RecursionError):
        refuse(folder, f"its {CONFIG} is not JSON, or cut short")
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        refuse(folder, f"its {CONFIG} is not of mcrepar")
    if config.get("version") != VERSION:
        version = config.get("version")
        refuse(folder, f"its format has version {version!r}, and this one reads {VERSION}", "the mcrepar that wrote it")
    if config.get("seal") != seal:
        refuse(folder, f"its {CONFIG} was changed after it was written")
    return config


def _seal(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError:
        raise ParameterError(
            "save or load", "safetensors is not installed", "pip install safetensors, or the extra mcrepar[train]"
        ) from None
    return safetensors.torch
