"""How tensors became random, as plain data and back: families, priors and estimators for a JSON file or a state_dict.

Tensors go to a shelf and leave their name behind. Names become classes through tables only, never by import or eval.
A state_dict has a description and its shelf as one tensor of bytes, what torch.save writes of them; reading it
(weights_only=True) runs no code.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from inspect import signature
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor

from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import prior
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence.methods import Estimator
from mcrepar.errors import McreparError, ParameterError
from mcrepar.nn.calibration import Calibration, MomentFactor, outside
from mcrepar.nn.options import default_prior
from mcrepar.nn.random_tensor import Options, RandomTensor
from mcrepar.nn.rank1 import RankOne

Json = Any
Tensors = Mapping[tuple[str, ...], RandomTensor | RankOne]
UNWRITTEN = {"validate_args", "logits", "covariance_matrix", "precision_matrix", "lims"}  # what others say already
DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {  # that a prior may be made of, with the arguments that are written
    name: tuple(argument for argument in signature(getattr(td, name)).parameters if argument not in UNWRITTEN)
    for name in (
        "Beta", "Categorical", "Cauchy", "ContinuousBernoulli", "Exponential", "FisherSnedecor", "Gamma", "Gumbel",
        "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy", "Laplace", "LogNormal",
        "LowRankMultivariateNormal", "MixtureSameFamily", "MultivariateNormal", "Normal", "Pareto", "StudentT",
        "Uniform", "VonMises", "Weibull")
}  # fmt: skip
ATTRIBUTES = {"base_distribution": "base_dist"}  # of arguments that have another name there


class Shelf:
    """Tensors by name; one that is put twice is stored once.

    >>> shelf, number = Shelf(), torch.tensor(2.0)
    >>> shelf.put(number), shelf.put(number)
    ({'tensor': '0', 'learned': False}, {'tensor': '0', 'learned': False})
    """

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.tensors = dict(tensors or {})
        self.names: dict[int, str] = {}

    def put(self, value: Any) -> Json:
        """A number, word or None as it is, a tensor as its name."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if not isinstance(value, Tensor):
            raise _unsaved(f"a {type(value).__name__}", "numbers and tensors")
        if value.requires_grad and not value.is_leaf:
            raise _unsaved("computed from other learned tensors", "prior(name, scale='learned'), or .detach()")
        name = self.names.setdefault(id(value), str(len(self.tensors)))
        self.tensors[name] = value
        return {"tensor": name, "learned": value.requires_grad}

    def take(self, item: Json) -> Any:
        """What was put."""
        if not isinstance(item, dict):
            return item
        return self.tensors[item["tensor"]].requires_grad_(bool(item["learned"]))


def describe_prior(p: Prior, shelf: Shelf) -> Json:
    """The family and its values, words included, or the torch distribution it was made of."""
    values = {name: shelf.put(value) for name, value in p.values.items()}
    if p.source is None:
        return {"family": p.name, "improper": p.improper, "values": values}  # a network has filled in `relative`
    if any(tensor.requires_grad for tensor in p.tensors.values()):
        raise _unsaved(f"a {p.name} with learned parameters", "prior(name, scale='learned')")
    return {"distribution": _describe(p.source, shelf), "values": values}


def prior_from(item: Json, shelf: Shelf) -> Prior:
    """The prior that was described."""
    values = {name: shelf.take(value) for name, value in item["values"].items()}
    if "family" in item:
        return prior(item["family"], improper=item["improper"], **values)
    rebuilt = as_prior(_distribution(item["distribution"], shelf))  # its tensors may be normalised once more
    return rebuilt.filled(**{name: values[name] for name in rebuilt.values if name in values})


def _describe(dist: td.Distribution, shelf: Shelf) -> Json:
    name = type(dist).__name__
    if name not in DISTRIBUTIONS or type(dist) is not getattr(td, name, None):
        raise _unsaved(f"a {name}", f"a prior by name, or one of {', '.join(DISTRIBUTIONS)}")
    arguments = {}
    for argument in DISTRIBUTIONS[name]:
        value = getattr(dist, ATTRIBUTES.get(argument, argument))
        arguments[argument] = _describe(value, shelf) if isinstance(value, td.Distribution) else shelf.put(value)
    return {"class": name, "arguments": arguments}


def _distribution(item: Json, shelf: Shelf) -> td.Distribution:
    name, given = item["class"], item["arguments"]
    if set(given) != set(DISTRIBUTIONS[name]):
        raise ParameterError(f"a {name} prior", f"its arguments are {sorted(given)}", ", ".join(DISTRIBUTIONS[name]))
    arguments = {key: _argument(value, shelf) for key, value in given.items()}
    dist: td.Distribution = getattr(td, name)(**arguments)
    return dist


def _argument(value: Json, shelf: Shelf) -> Any:
    return _distribution(value, shelf) if isinstance(value, dict) and "class" in value else shelf.take(value)


def describe_random(random: Tensors, shelf: Shelf) -> dict[str, Json]:
    """How every random tensor of a network came to be; templates and priors that tensors share are described once."""
    posteriors = {id(tensor.options.posterior): tensor.options.posterior for tensor in random.values()}
    priors = {id(tensor.options.prior): tensor.options.prior for tensor in random.values()}
    return {
        "posteriors": [
            {"family": q.name, "fixed": {name: shelf.put(value) for name, value in q.fixed.items()}}
            for q in posteriors.values()
        ],
        "priors": [describe_prior(p, shelf) for p in priors.values()],
        "random": [
            {
                "names": list(names),
                "shape": list(tensor.shape),
                "dtype": dtype_name(tensor.log_scale),
                "posterior": list(posteriors).index(id(tensor.options.posterior)),
                "prior": list(priors).index(id(tensor.options.prior)),
                "estimator": asdict(tensor.options.estimator),
                "start_std": float(tensor.options.initial_std),
                "pretrained": bool(tensor.options.pretrained),
                "signs": tensor.options.signs,
                "initial": [t.initial for t in tensor.tensors],
            }
            for names, tensor in random.items()
        ],
    }


def random_from(config: Mapping[str, Json], shelf: Shelf) -> dict[tuple[str, ...], Options]:
    """The options of every random tensor, by its names in the network."""
    posteriors = [
        posterior(item["family"], **{name: shelf.take(value) for name, value in item["fixed"].items()})
        for item in config["posteriors"]
    ]
    priors = [prior_from(item, shelf) for item in config["priors"]]
    return {
        tuple(item["names"]): Options(
            posteriors[item["posterior"]],
            priors[item["prior"]],
            Estimator(**item["estimator"]),
            item["start_std"],
            item["pretrained"],
            item["signs"],
        )
        for item in config["random"]
    }


def describe_initial(random: Tensors) -> dict[str, Json]:
    """Where scales began, alone, as `restore_initial` reads it."""
    return {"random": [{"names": list(n), "initial": [t.initial for t in r.tensors]} for n, r in random.items()]}


def restore_initial(random: Tensors, config: Mapping[str, Json]) -> None:
    """Where scales began, as it was described; unknown in descriptions of before it was."""
    known = {tuple(item["names"]): item.get("initial") for item in config["random"]}
    for names, tensor in random.items():
        first = known.get(names) or [None] * len(tensor.tensors)
        for part, numbers in zip(tensor.tensors, first, strict=True):
            part.initial = None if numbers is None else (float(numbers[0]), float(numbers[1]))


def factors_from(item: Json) -> tuple[MomentFactor, ...]:
    """The factors of variances that were fitted, by operation."""
    found: list[MomentFactor] = []
    for name, factor, *centre in item:
        if name == "centre":  # a row of its own in folders of before
            found[-1] = found[-1]._replace(centre=(*found[-1].centre, float(factor)))
        else:
            found.append(MomentFactor(str(name), float(factor), tuple(float(c) for part in centre for c in part)))
    return tuple(found)


def pooled_from(item: Json, shelf: Shelf) -> list[dict[str, Tensor]] | None:
    """The pooled norm statistics of every member; one set, for all of them, in what was stored before."""
    found = tree_from(item, shelf)
    return [found] if isinstance(found, dict) else found


def dtype_name(tensor: Tensor) -> str:
    """Its dtype in a word.

    >>> dtype_name(torch.zeros(1))
    'float32'
    """
    return str(tensor.dtype).removeprefix("torch.")


def describe_tree(value: Any, shelf: Shelf) -> Json:
    """Arguments of a forward: tensors, numbers, words and None in tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [describe_tree(part, shelf) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[_key(key), describe_tree(part, shelf)] for key, part in value.items()]}
    return shelf.put(value)


def tree_from(item: Json, shelf: Shelf) -> Any:
    """The arguments that were described."""
    match item:
        case {"tuple": list(parts)}:
            return tuple(tree_from(part, shelf) for part in parts)
        case {"list": list(parts)}:
            return [tree_from(part, shelf) for part in parts]
        case {"dict": list(pairs)}:
            return {key: tree_from(part, shelf) for key, part in pairs}
    return shelf.take(item)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise _unsaved(f"a dict with the key {key!r}", "words for keys")
    return key


def _unsaved(what: str, instead: str) -> ParameterError:
    return ParameterError("save(bnn, folder)", f"a value of it is {what}, which cannot be written", instead)


# ---- a state_dict


def packed(random: Tensors, calibration: Calibration) -> Tensor:
    """How tensors became random; empty where a value has no description (a distribution of your own)."""
    shelf = Shelf()
    try:
        pooled = describe_tree(calibration.pooled, shelf)
        measured = {"norm_statistics": pooled, "moment_factors": calibration.moment_factors}
        words = json.dumps({**describe_random(random, shelf), **measured, "members": _members(random)})
    except McreparError:
        return torch.empty(0, dtype=torch.uint8)
    tensors = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in shelf.tensors.items()}
    file = io.BytesIO()
    torch.save({"words": words, "tensors": tensors}, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def unpack(random: Tensors, calibration: Calibration, state: object) -> None:
    """Give tensors the priors that were packed; structure and families of posteriors must be the same."""
    if isinstance(state, Tensor) and not state.numel():
        return
    device = next((tensor.log_scale.device for tensor in random.values()), torch.device("cpu"))
    config, options, pooled, batch = _read_state(state, device)
    _check_structure(random, config)
    found = {random[names]: there for names, there in options.items() if names in random}  # torch names what is missing
    for tensor, there in found.items():
        _check_family(tensor, there)
    for tensor, there in found.items():
        own = tensor.options.prior
        if own.name != there.prior.name and own.row is not default_prior().row:  # which may not have been asked for
            warnings.warn(
                f"load_state_dict(...) gives {tensor.name} the prior of the state, {there.prior.name}, in the place of "
                f"{own.name}; to train on with another prior, copy loc and log_scale only",
                stacklevel=outside(),
            )
            break
    for tensor, there in found.items():
        tensor.adopt(there.prior, there.pretrained, there.signs)
    restore_initial(random, config)
    calibration.pooled, calibration.moment_factors = pooled, factors_from(config.get("moment_factors", ()))
    if batch is not None:
        calibration.keep(*batch)


def _read_state(state: object, device: torch.device) -> tuple[Json, dict[tuple[str, ...], Options], Any, Any]:
    try:
        if not isinstance(state, Tensor):
            raise TypeError(f"it is a {type(state).__name__}")
        found = torch.load(io.BytesIO(state.cpu().numpy().tobytes()), weights_only=True, map_location=device)
        config, shelf = json.loads(found["words"]), Shelf(found["tensors"])
        pooled, batch = pooled_from(config.get("norm_statistics"), shelf), tree_from(config.get("calibration"), shelf)
        return config, random_from(config, shelf), pooled, batch  # a batch in older states only
    except Exception as error:  # damaged bytes raise anything
        why = f"its _extra_state does not hold families and priors ({type(error).__name__}: {error})"
        raise ParameterError(
            "load_state_dict(...)", why, "the state_dict of a Bayesian neural network, unchanged"
        ) from None


def _members(random: Tensors) -> int:
    """Of rank-1 factors; 0 where the weights themselves are random."""
    return max((tensor.members for tensor in random.values() if isinstance(tensor, RankOne)), default=0)


def _check_structure(random: Tensors, config: Mapping[str, Json]) -> None:
    """Refuse a state of another structure or number of members, before anything is taken of it."""
    saved = {tuple(item["names"]): len(item["initial"]) for item in config["random"] if item.get("initial")}
    counts = {names[0]: (saved[names], len(tensor.tensors)) for names, tensor in random.items() if names in saved}
    name = next((name for name, (there, here) in counts.items() if there != here), None)
    ours, theirs = _members(random), config.get("members")
    if theirs is None:  # of before: a weight has one random part, a dense layer two factors for every member
        theirs = ours if name is None else max(saved.values()) // 2
    there, here = (f"structure='rank1', members={n}" if n else "structure='weights'" for n in (theirs, ours))
    if theirs != ours:
        why = f"the state is of {there}, and the network of {here}"
        raise ParameterError("load_state_dict(...)", why, f"bayesian(net, {there})")
    if name is not None:
        why = "its layer has {} random factors in the state, and {} in the network".format(*counts[name])
        raise ParameterError(f"load_state_dict(...) for {name}", why, "a network of the same layers")


def _check_family(tensor: RandomTensor | RankOne, saved: Options) -> None:
    ours, theirs = tensor.options.posterior.name, saved.posterior.name
    if ours != theirs:
        why = f"its posterior is {theirs}, and the network's is {ours}"
        raise ParameterError(f"load_state_dict(...) for {tensor.name}", why, f"bayesian(net, {theirs!r})")
