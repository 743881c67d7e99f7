"""What a refactoring must not change: values and gradients of every pair and method, plans, help texts, public names.

    python benchmarks/golden.py write before.json     # then change the code
    python benchmarks/golden.py compare before.json   # prints what differs, bit by bit

Values are float64 at fixed seeds, written as hexadecimal numbers.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import torch

import mcrepar
from mcrepar.workbench.cli import COMMANDS

DRAWS = 40


def main(command: str, path: str) -> int:
    """Write the golden file, or compare with it."""
    torch.set_num_threads(1)
    found = {"kl": divergences(), "plans": plans(), "help": helps(), "names": names()}
    if command == "write":
        Path(path).write_text(json.dumps(found, indent=1, sort_keys=True))
        return 0
    before = json.loads(Path(path).read_text())
    changes = list(differences(before, json.loads(json.dumps(found)), ""))
    print("\n".join(changes) or "nothing differs")
    return len(changes) > 0


def differences(a: Any, b: Any, where: str) -> Any:
    """Lines that say what differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from differences(a.get(key), b.get(key), f"{where}/{key}")
    elif a != b:
        yield f"{where}: {a!r} -> {b!r}"


def divergences() -> dict[str, Any]:
    """The KL and its gradients, of every pair by every method that it allows."""
    out: dict[str, Any] = {}
    for q_name, p_name in product(mcrepar.POSTERIORS, mcrepar.PRIORS):
        for method in mcrepar.explain(q_name, p_name).methods:
            source = torch.Generator().manual_seed(7)
            numbers = torch.rand(2, 2, 3, dtype=torch.float64, generator=source)
            learned = {"loc": numbers[0] - 0.5, "scale": 0.1 + 0.2 * numbers[1]}
            row = mcrepar.POSTERIORS[q_name]
            tensors = {name: learned[name].requires_grad_() for name in row.learned}
            options = {} if method in ("exact", "quad") else {"n_mc_iter": DRAWS, "generator": source}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    value = mcrepar.kl_divergence(
                        mcrepar.posterior(q_name, **tensors), mcrepar.prior(p_name), method, force=True, **options
                    )
                except mcrepar.McreparError as error:
                    out[f"{q_name} {p_name} {method}"] = type(error).__name__
                    continue
            gradients = torch.autograd.grad(value, list(tensors.values()))
            parts = [value.detach().reshape(1), *(g.flatten() for g in gradients)]
            out[f"{q_name} {p_name} {method}"] = [float(x).hex() for x in torch.cat(parts)]
    return out


def plans() -> dict[str, Any]:
    """What explain says of every pair."""
    aspects = ("verdict", "method", "methods", "reason", "statistics", "d_P", "d_P_total", "d_P_merged")
    found: dict[str, Any] = {}
    for q_name, p_name in product(mcrepar.POSTERIORS, mcrepar.PRIORS):
        plan = mcrepar.explain(q_name, p_name)
        found[f"{q_name} {p_name}"] = {**{name: getattr(plan, name) for name in aspects}, "text": str(plan)}
    return found


def helps() -> dict[str, str]:
    """The help of every command."""
    environment = {**os.environ, "COLUMNS": "120"}
    out = {}
    for word in ("", *COMMANDS):
        command = [sys.executable, "-m", "mcrepar", *word.split(), "--help"]
        out[word] = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
    return out


def names() -> dict[str, str]:
    """Public names with their signatures, and the public members of classes."""
    out = {}
    for home in ("", "likelihoods", "nn", "metrics", "models", "data", "plots", "paper"):
        module = getattr(mcrepar, home) if home else mcrepar
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or inspect.ismodule(value) or not callable(value):
                continue
            out[f"{home}.{name}".lstrip(".")] = _signature(value)
            if inspect.isclass(value):
                members = (m for m in vars(value) if not m.startswith("_"))
                out |= {f"{home}.{name}.{m}".lstrip("."): _signature(getattr(value, m)) for m in members}
    return out


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return type(value).__name__


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
