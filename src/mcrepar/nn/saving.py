"""A Bayesian neural network in a folder: tensors in safetensors, everything else in config.json, no code in either.

`description` turns objects into data and back, `model_folder` writes and reads the two files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from mcrepar import __version__
from mcrepar.errors import McreparError, ParameterError
from mcrepar.likelihoods import LIKELIHOODS, Likelihood
from mcrepar.nn.calibration import complete, pool_statistics
from mcrepar.nn.description import (
    Json,
    Shelf,
    describe_random,
    describe_tree,
    dtype_name,
    factors_from,
    pooled_from,
    random_from,
    restore_initial,
    tree_from,
)
from mcrepar.nn.forwards import FORWARDS
from mcrepar.nn.model_folder import read, refuse, write
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.random_tensor import Options, random_tensors
from mcrepar.nn.select import Place, places

KEYS = {"mcrepar", "torch", "forward", "members", "posteriors", "priors", "random"} | {
    "plain", "tied", "untrained", "calibration", "norm_statistics", "holds_training_data",
    "moment_factors", "likelihood", "prepare"}  # fmt: skip
WRONG = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)  # of data of another form


def save(
    bnn: BayesianModule,
    folder: str | os.PathLike[str],
    *,
    keep_calibration_data: bool = False,
    likelihood: Likelihood | None = None,
) -> None:
    """Write a Bayesian neural network to a folder: parameters, buffers, families, priors, options and norm statistics.

    load(folder, net) == bnn, bit by bit, but for the batch of training data that `bnn.calibrate` was given: norm
    statistics that are pooled over 32 draws on it are written instead, and used by predictions after loading.

    Args:
        bnn: made by `bayesian`, or a Bayesian layer.
        folder: made where it does not exist; a network saved there before is replaced in one step, by one writer at a
            time, and other files in it are left alone.
        keep_calibration_data: also write the batch itself, so that every draw has norm statistics of its own after
            loading. Whoever has the folder then has these training data; its config.json says so.
        likelihood: of y given the output, written too, with the scale that it has learned;
            `TrainedModel.load(folder, net)` gives both back.

    >>> import tempfile
    >>> from mcrepar import bayesian
    >>> bnn = bayesian(nn.Linear(2, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(bnn, folder)
    ...     same = load(folder, nn.Linear(2, 1))
    >>> bool(same.kl() == bnn.kl())
    True
    """
    write_model(bnn, folder, likelihood, keep_data=keep_calibration_data)


def write_model(
    bnn: BayesianModule,
    folder: str | os.PathLike[str],
    likelihood: Likelihood | None = None,
    prepare: Json = None,
    *,
    keep_data: bool = False,
    pool: bool = True,
) -> None:
    """What `save` and `TrainedModel.save` write.

    Args:
        bnn: the network.
        folder: of the model.
        likelihood: of y given its output.
        prepare: how the data are prepared, as JSON.
        keep_data: also write the batch of training data on which norm layers find their statistics.
        pool: measure the norm statistics of the weights as they are now; else write those that were measured last.
    """
    if not isinstance(bnn, BayesianModule):
        raise ParameterError(
            f"save({type(bnn).__name__})", "it is no BayesianModule", "bayesian(net), or the .module of a wrapped one"
        )
    if keep_data not in (True, False):
        asked = f"save(..., keep_calibration_data={keep_data!r})"
        raise ParameterError(asked, "it is not yes or no", "True or False")
    path = _path("save", folder)
    described = _describe_likelihood(likelihood)
    with bnn.slots.lock:
        bnn.slots.check(bnn.net)
        if pool and bnn.calibration.kept is not None:
            pool_statistics(bnn)
        config, tensors = _described(bnn, keep_data)
    if likelihood is not None:
        tensors |= {f"likelihood.{name}": t.detach().cpu().clone() for name, t in likelihood.state_dict().items()}
    write(path, {**config, "likelihood": described, "prepare": prepare}, tensors)


def load(folder: str | os.PathLike[str], net: nn.Module) -> BayesianModule:
    """The Bayesian neural network that `save` wrote, around a network of the same architecture.

    Args:
        folder: written by `save`; a file that is not ours, damaged or of another version is refused, no code is run.
        net: a plain network with the same names, shapes and dtypes; it is taken over, and left alone if refused.

    >>> load("runs/nowhere", nn.Linear(2, 1))
    Traceback (most recent call last):
    mcrepar.errors.ParameterError: load('runs/nowhere'): it has no config.json. Use a folder that
    mcrepar.save wrote, unchanged.
    """
    return read_model(folder, net)[0]


def read_model(folder: str | os.PathLike[str], net: nn.Module) -> tuple[BayesianModule, Likelihood | None, Json]:
    """The network, its likelihood, and how its data are prepared; None for what the folder does not hold.

    Args:
        folder: as for `load`.
        net: as for `load`.
    """
    folder = _path("load", folder)
    if not isinstance(net, nn.Module):
        refuse(folder, f"a {type(net).__name__} is no network", "the network that was given to bayesian")
    if any(isinstance(module, BayesianModule) for module in net.modules()):
        refuse(folder, f"the {type(net).__name__} is Bayesian already", "the network that was given to bayesian")
    config, tensors = read(folder)
    older = {"members": 0, "norm_statistics": None, "holds_training_data": config.get("calibration") is not None}
    config = {**older, "moment_factors": [], "likelihood": None, "prepare": None, **config}
    if set(config) != KEYS:
        refuse(folder, f"its config.json has the wrong keys: {', '.join(sorted(set(config) ^ KEYS))}")
    with _refusing(folder):
        _check_net(folder, config, net)
        device = next((p.device for p in net.parameters()), torch.device("cpu"))
        shelf = Shelf({name: t.to(device) for name, t in _under("shelf.", tensors).items()})
        likelihood = _likelihood_from(config["likelihood"], _under("likelihood.", tensors))
        chosen = _chosen(config, shelf, net)
        with _left_alone(chosen):
            bnn = BayesianModule(net, chosen, config["forward"], config["members"])
            _fill(bnn, config, tensors, shelf)
    return bnn, None if likelihood is None else likelihood.to(device), config["prepare"]


def _describe_likelihood(likelihood: Likelihood | None) -> Json:
    if likelihood is None:
        return None
    name = next((name for name, kind in LIKELIHOODS.items() if type(likelihood) is kind), None)
    if name is None:
        why = f"a {type(likelihood).__name__} likelihood cannot be written"
        raise ParameterError("save(bnn, folder)", why, f"save(bnn, folder) without it, or {', '.join(LIKELIHOODS)}")
    return {"name": name, "options": likelihood.options}


def _likelihood_from(item: Json, tensors: Mapping[str, Tensor]) -> Likelihood | None:
    if item is None:
        return None
    likelihood = LIKELIHOODS[item["name"]](**item["options"])
    for tensor in tensors.values():  # load_state_dict would round them to the precision of a new one
        likelihood.to(tensor.dtype)
    likelihood.load_state_dict(dict(tensors))
    return likelihood


def _path(what: str, folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise ParameterError(f"{what} with the folder {folder!r}", "it is not the name of a folder", "a path")
    return Path(folder)


@contextlib.contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Data of another form than `save` writes becomes a refusal."""
    try:
        yield
    except McreparError as error:
        if error.asked.startswith("load("):
            raise
        raise error.within(f"load({os.fspath(folder)!r})") from None
    except WRONG as error:
        refuse(folder, f"it does not hold what save writes ({type(error).__name__}: {error})")


@contextlib.contextmanager
def _left_alone(chosen: list[tuple[Place, Options]]) -> Iterator[None]:
    """A network that is refused late gets its own weights back."""
    try:
        yield
    except BaseException:
        for place, _ in chosen:
            for owner, name in zip(place.owners, place.names, strict=True):
                setattr(owner, name.rpartition(".")[2], place.parameter)
        raise


def _described(bnn: BayesianModule, with_data: bool) -> tuple[dict[str, Json], dict[str, Tensor]]:
    """What config.json says, and all tensors by unique names."""
    shelf = Shelf()
    state = bnn.net.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    tied = {name: kept for name, t in state.items() if (kept := first.setdefault(id(t), name)) != name}
    plain = {name: t for name, t in state.items() if name not in tied}
    for name, value in plain.items():
        if not isinstance(value, Tensor):
            raise ParameterError(
                "save(bnn, folder)", f"{name} is a {type(value).__name__}", "a network of tensors only"
            )
    config = {
        "mcrepar": __version__,
        "torch": str(torch.__version__),
        "forward": bnn.mode,
        "members": bnn.members,
        **describe_random(random_tensors(bnn), shelf),
        "plain": {name: _aspects(t) for name, t in plain.items()},
        "tied": tied,
        "untrained": [name for name, p in bnn.named_parameters() if not p.requires_grad],
        "norm_statistics": describe_tree(bnn.calibration.pooled, shelf),
        "moment_factors": bnn.calibration.moment_factors,
        "calibration": describe_tree(bnn.calibration.kept if with_data else None, shelf),
        "holds_training_data": with_data and bnn.calibration.kept is not None,
    }
    named = {"net.": plain, "latents.": bnn.latents.state_dict(), "shelf.": shelf.tensors}
    tensors = {prefix + name: t for prefix, group in named.items() for name, t in group.items()}
    for name, t in tensors.items():
        if t.layout is not torch.strided or t.is_meta or t.is_quantized or t.dtype == torch.complex128:
            kind = "a tensor without data" if t.is_meta else f"{t.dtype}, {t.layout}"
            raise ParameterError("save(bnn, folder)", f"{name} is {kind}, which cannot be written", "dense tensors")
    return config, {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}


def _chosen(config: Mapping[str, Json], shelf: Shelf, net: nn.Module) -> list[tuple[Place, Options]]:
    found = {place.names: place for place in places(net)}
    return [(found[names], options) for names, options in random_from(config, shelf).items()]


def _fill(bnn: BayesianModule, config: Mapping[str, Json], tensors: Mapping[str, Tensor], shelf: Shelf) -> None:
    plain, state = _under("net.", tensors), bnn.net.state_dict(keep_vars=True)
    for tensor in state.values():
        if any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True)):
            tensor.data = tensor.data.contiguous()  # numbers in one place of memory, which nothing can be copied to
    state.clear()  # what stays are the versions of its modules, which some of them ask for
    state.update({**plain, **{name: plain[first] for name, first in config["tied"].items()}})
    bnn.net.load_state_dict(state)
    saved, present = _under("latents.", tensors), bnn.latents.state_dict()
    for name, tensor in present.items():
        if name in saved and saved[name].dtype != tensor.dtype:
            raise TypeError(f"{name} is {saved[name].dtype}, not {tensor.dtype}")
    bnn.latents.load_state_dict(saved)
    restore_initial(random_tensors(bnn), config)
    bnn.calibration.pooled = pooled_from(config["norm_statistics"], shelf)
    bnn.calibration.moment_factors = factors_from(config["moment_factors"])
    if config["calibration"] is not None:
        args, kwargs = tree_from(config["calibration"], shelf)
        bnn.calibration.take(args, kwargs, lambda: complete(bnn))
    untrained = set(config["untrained"])
    for name, parameter in bnn.named_parameters():
        parameter.requires_grad_(name not in untrained)


def _check_net(folder: Path, config: Mapping[str, Json], net: nn.Module) -> None:
    """Say which tensor of the network is not the saved one."""
    if config["forward"] not in FORWARDS:
        raise ValueError(f"forward={config['forward']!r}")
    ties = {name: list(place.names) for place in places(net) for name in place.names}
    random = {name: item for item in config["random"] for name in item["names"]}
    tied = {name: config["plain"][first] for name, first in config["tied"].items()}
    saved, present = {**config["plain"], **tied, **random}, net.state_dict()
    kind, instead = type(net).__name__, "a network of the architecture that was saved"
    for name in [*(n for n in saved if n not in present), *(n for n in present if n not in saved)]:
        side = f"the {kind} has no" if name in saved else "what was saved has no"
        refuse(folder, f"{side} {name!r}", instead)
    for name, item in saved.items():
        there, here = {key: item[key] for key in ("shape", "dtype")}, _aspects(present[name])
        if there != here:
            texts = [f"{a['dtype']} of {tuple(a['shape'])}" for a in (there, here)]
            refuse(folder, f"{name!r} was saved as {texts[0]}, and the {kind} has {texts[1]}", instead)
        if name in random and ties.get(name) != item["names"]:
            refuse(folder, f"{' = '.join(item['names'])} are not one tensor in the {kind}", instead)


def _aspects(tensor: Tensor) -> dict[str, Json]:
    return {"shape": list(tensor.shape), "dtype": dtype_name(tensor)}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
