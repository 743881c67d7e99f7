"""The deterministic twin of a run: the same network, data, seed and number of epochs, without noise and KL."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mcrepar.errors import ParameterError
from mcrepar.likelihoods import Likelihood
from mcrepar.user_files import write_file
from mcrepar.workbench.training.checkpoint import read_weights, tensors_of
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.run_folder import read_run
from mcrepar.workbench.training.setup import Run, build_likelihood, build_network, lay_out

FOLDER, WEIGHTS = "twin", "weights.safetensors"


@dataclass(frozen=True, eq=False)
class Twin:
    """A deterministic network in eval mode, and its likelihood."""

    net: nn.Module
    likelihood: Likelihood


def twin_of(config: TrainConfig) -> TrainConfig:
    """The options of the twin's own run, in a folder inside the run's.

    >>> twin = twin_of(TrainConfig(out="runs/a", epochs=3, twin=True))
    >>> twin.out, twin.deterministic, twin.twin
    ('runs/a/twin', True, False)
    """
    return replace(config, out=str(Path(config.out) / FOLDER), twin=False, deterministic_epochs=config.epochs)


def write_twin(net: nn.Module, likelihood: Likelihood, folder: Path) -> None:
    """Write the weights in one file, which --warm-start reads too; the likelihood's numbers are beside them in it."""
    from safetensors.torch import save

    numbers = {name: t.tolist() for name, t in likelihood.state_dict().items()}
    weights = {name: t.detach().cpu().contiguous() for name, t in tensors_of(net).items()}
    folder.mkdir(exist_ok=True)
    write_file(folder / WEIGHTS, save(weights, {"likelihood": json.dumps(numbers)}))


def missing_twin(run: Run) -> str:
    """Where a twin was asked for and has not been trained to the end, a sentence that says so; else ""."""
    folder = run.folder / FOLDER
    if (folder / "model" / WEIGHTS).exists() or not (run.config.twin or folder.exists()):
        return ""
    status = read_run(folder).get("status", "not begun")
    again = f"mcrepar train --resume --twin --out {run.folder} goes on with it"
    instead = "one whose loss diverged needs a new run with --clip 1 or a smaller --lr"
    return f"the twin was asked for and has not been trained to the end (it is {status}): {again}; {instead}"


def read_twin(run: Run) -> Twin | None:
    """The twin of a run, on the device of its network; None where none was trained to the end."""
    path = run.folder / FOLDER / "model" / WEIGHTS
    if not path.exists():
        return None
    from safetensors import safe_open

    net, likelihood = build_network(run.config, run.facts), build_likelihood(run.config, run.facts)
    try:
        net.load_state_dict(read_weights(path, net))
        with safe_open(path, "pt") as file:
            numbers: dict[str, Any] = json.loads(file.metadata()["likelihood"])
        likelihood.load_state_dict({name: torch.tensor(value) for name, value in numbers.items()})
    except (ParameterError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = error.why if isinstance(error, ParameterError) else f"{type(error).__name__}: {error}"
        again = f"Remove {path.parent.parent} and train it again with mcrepar train --resume --twin --out {run.folder}."
        raise ParameterError(f"the twin of {run.folder}", f"its weights are damaged ({why})", again) from None
    lay_out(net, run.config, run.facts)
    device = next(run.bnn.parameters()).device
    return Twin(net.to(device).eval(), likelihood.to(device))
