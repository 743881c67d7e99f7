"""The data of an evaluation: a part of the run's own, and out-of-distribution data brought to its shape."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcrepar.data import DATASETS, load
from mcrepar.data.dataset import Dataset, Split
from mcrepar.errors import ParameterError
from mcrepar.workbench.training.setup import Run

RESIZE_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}  # by the number of spatial dimensions


@dataclass(frozen=True, eq=False)
class OodData:
    """Out-of-distribution data.

    Args:
        name: in tables and files, letters, digits, _ and - only.
        split: x in the shape of the run's own data, and y.
        dataset: what was read.
        notes: what was done to it, and what to beware of.
    """

    name: str
    split: Split
    dataset: Dataset
    notes: tuple[str, ...]


def own_part(run: Run, name: str) -> Split:
    """A part of the run's own data, labelled, of the shape and the classes that the network was trained for.

    Args:
        run: opened.
        name: train, validation or test.
    """
    dataset, facts = run.dataset, run.facts
    part = dataset.parts.get(name)
    asked = f"--split {name}"
    if part is None:
        raise ParameterError(asked, f"{dataset.name} has no such part", " or ".join(dataset.parts))
    if not part.labelled:
        raise ParameterError(asked, "it has no labels", "another part, or these data as --ood")
    there, here = (facts.channels, *facts.size), (part.x.shape[1], *part.size)
    if there != here or facts.classes != dataset.classes:
        why = f"the data are {_shape(here)} with {len(dataset.classes)} classes now"
        wanted = f"the data of the training: {_shape(there)} with {len(facts.classes)} classes"
        raise ParameterError(asked, why, wanted)
    return part


def read_ood(words: str, root: str | None, own: Split, resize: bool) -> OodData:
    """Out-of-distribution data by their name and their reader's options, in the shape of the run's own data.

    Args:
        words: NAME, or NAME,key=value,...
        root: where they are, unless the words say it.
        own: the data whose shape they get.
        resize: bring images to that shape instead of refusing them.
    """
    name, options = _parsed(words)
    place, title = options.pop("root", root), str(options.pop("as", name))
    dataset = load(name, place, **options)
    title = re.sub(r"[^\w-]+", "_", title, flags=re.ASCII).strip("_") or name
    x, notes = _like(dataset.test.x, own.x, f"--ood {words}", resize)
    return OodData(title, replace(dataset.test, x=x), dataset, (*notes, *_scale_note(x, own.x)))


def _parsed(words: str) -> tuple[str, dict[str, Any]]:
    """cifar10_c,severity=3 -> ("cifar10_c", {"severity": 3}); values are YAML where no text is wanted."""
    import yaml  # type: ignore[import-untyped]

    name, *pairs = re.split(r",(?![^\[]*\])", words)
    kinds = DATASETS[name.strip()].options if name.strip() in DATASETS else {}
    options = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        try:
            if not sign or not key.strip():
                raise ValueError
            text = key.strip() in ("root", "as") or kinds.get(key.strip()) is str
            options[key.strip()] = value.strip().strip("'\"") if text else yaml.safe_load(value)
        except (ValueError, yaml.YAMLError):
            why = f"{pair!r} is no key=value"
            raise ParameterError(f"--ood {words}", why, "--ood arrays,root=PATH,as=svhn") from None
    return name.strip(), options


def _like(x: Tensor, own: Tensor, asked: str, resize: bool) -> tuple[Tensor, list[str]]:
    """x in the shape of the run's own data."""
    notes = []
    wanted, given = tuple(own.shape[1:]), tuple(x.shape[1:])
    if len(given) != len(wanted):
        raise ParameterError(asked, f"its data are {_shape(given)}, the run's own {_shape(wanted)}", "data of one kind")
    if given[0] == 1 and wanted[0] > 1:
        x = x.expand(-1, wanted[0], *given[1:])
        notes.append(f"its one channel was repeated {wanted[0]} times")
    elif given[0] != wanted[0]:
        raise ParameterError(asked, f"it has {given[0]} channels, and the network takes {wanted[0]}", "other data")
    if given[1:] != wanted[1:]:
        if not resize:
            why = f"its data are {_shape(given)}, the run's own {_shape(wanted)}"
            raise ParameterError(asked, why, "--resize to bring them to that size, or other data")
        x = _resized(x, wanted[1:])
        notes.append(f"resized from {_shape(given[1:])} to {_shape(wanted[1:])}")
    return x, notes


def _resized(x: Tensor, size: tuple[int, ...]) -> Tensor:
    mode = RESIZE_MODES[len(size)]
    parts = [x[k : k + 256].float() for k in range(0, len(x), 256)]
    floats = torch.cat([F.interpolate(part, size, mode=mode, align_corners=False) for part in parts])
    return floats.round().clamp(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else floats


def _scale_note(x: Tensor, own: Tensor) -> list[str]:
    """Data in other units are detected by their units alone."""
    ends = [(float(t.min()), float(t.max()), 255.0 if t.dtype == torch.uint8 else 1.0) for t in (x, own)]
    (low, high, unit), (own_low, own_high, own_unit) = ends
    ratio = (high - low) / unit / max((own_high - own_low) / own_unit, 1e-12)
    if 0.25 <= ratio <= 4:
        return []
    spans = f"{low / unit:.3g} to {high / unit:.3g}", f"{own_low / own_unit:.3g} to {own_high / own_unit:.3g}"
    return [f"its values run from {spans[0]}, the run's own from {spans[1]}: the scale alone may tell them apart"]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "single numbers"
