"""What a state_dict carries beside parameters: families, priors and pooled norm statistics, as one tensor of bytes.

They are what torch.save writes of tensors and a description in JSON; reading them (weights_only=True) runs no code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mcrepar.errors import McreparError, ParameterError
from mcrepar.nn.calibration import Calibration
from mcrepar.nn.description import Json, Shelf, describe_random, describe_tree, random_from, restore_initial, tree_from
from mcrepar.nn.latent import Latent, Options
from mcrepar.nn.rank1 import RankOne

Random = Mapping[tuple[str, ...], Latent | RankOne]


def packed(random: Random, calibration: Calibration) -> Tensor:
    """How tensors became random; empty where a value has no description (a distribution of your own)."""
    shelf = Shelf()
    try:
        pooled = describe_tree(calibration.pooled, shelf)
        words = json.dumps({**describe_random(random, shelf), "norm_statistics": pooled})
    except McreparError:
        return torch.empty(0, dtype=torch.uint8)
    tensors = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in shelf.tensors.items()}
    file = io.BytesIO()
    torch.save({"words": words, "tensors": tensors}, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def unpack(random: Random, calibration: Calibration, state: object) -> None:
    """Give tensors the priors that were packed; their posteriors must be of the same families."""
    if isinstance(state, Tensor) and not state.numel():
        return
    device = next((latent.log_scale.device for latent in random.values()), torch.device("cpu"))
    config, options, pooled, batch = _read(state, device)
    found = {random[names]: there for names, there in options.items() if names in random}  # torch names what is missing
    for latent, there in found.items():
        _check(latent, there)
    for latent, there in found.items():
        latent.adopt(there.prior, there.pretrained, there.signs)
    restore_initial(random, config)
    calibration.pooled = pooled
    if batch is not None:
        calibration.keep(*batch)


def _read(state: object, device: torch.device) -> tuple[Json, dict[tuple[str, ...], Options], Any, Any]:
    try:
        if not isinstance(state, Tensor):
            raise TypeError(f"it is a {type(state).__name__}")
        found = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True, map_location=device)
        config, shelf = json.loads(found["words"]), Shelf(found["tensors"])
        pooled, batch = (tree_from(config.get(key), shelf) for key in ("norm_statistics", "calibration"))
        return config, random_from(config, shelf), pooled, batch  # a batch in older states only
    except Exception as error:  # damaged bytes raise anything
        why = f"its _extra_state does not hold families and priors ({type(error).__name__}: {error})"
        raise ParameterError("load_state_dict(...)", why, "the state_dict of a Bayesian network, unchanged") from None


def _check(latent: Latent | RankOne, saved: Options) -> None:
    ours, theirs = latent.options.posterior.name, saved.posterior.name
    if ours != theirs:
        why = f"its posterior is {theirs}, and the network's is {ours}"
        raise ParameterError(f"load_state_dict(...) for {latent.name}", why, f"bayesian(net, {theirs!r})")
