"""Weights of a deterministic network from a file: safetensors, or a state_dict read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.workbench.training.checkpoint import mismatch

NESTED = ("state_dict", "model", "model_state_dict", "net")  # where other people's checkpoints keep the weights


def read_weights(path: Path, net: nn.Module) -> dict[str, Tensor]:
    """The weights in a file, if they are those of this network.

    Args:
        path: a .safetensors file, or what torch.save wrote: a state_dict, or a dict that holds one.
        net: whose names and shapes they must have; it is not changed.
    """
    asked = f"--warm-start {path}"
    if not path.is_file():
        raise ParameterError(asked, "there is no such file", "a .safetensors or .pt file of weights")
    weights = {name.removeprefix("module."): tensor for name, tensor in _read(path, asked).items()}
    if why := mismatch(weights, net.state_dict()):
        raise ParameterError(asked, why, "weights of the same network, for as many classes and channels")
    for name, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise ParameterError(asked, f"{name!r} is not finite", "weights of a training that did not diverge")
    return weights


def _read(path: Path, asked: str) -> Mapping[str, Tensor]:
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
