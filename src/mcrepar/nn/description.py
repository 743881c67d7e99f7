"""How tensors became random, as plain data and back: families, priors and estimators for a JSON file.

Tensors go to a shelf and leave their name behind. Names become classes through tables only, never by import or eval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch.distributions as td
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import prior
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence.methods import Estimator
from mcrepar.errors import ParameterError
from mcrepar.nn.latent import Latent, Options
from mcrepar.nn.rank1 import RankOne

Json = Any
DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {  # what a foreign prior may be made of, with its arguments
    "Beta": ("concentration1", "concentration0"),
    "Categorical": ("probs",),
    "Cauchy": ("loc", "scale"),
    "ContinuousBernoulli": ("probs",),
    "Exponential": ("rate",),
    "FisherSnedecor": ("df1", "df2"),
    "Gamma": ("concentration", "rate"),
    "Gumbel": ("loc", "scale"),
    "HalfCauchy": ("scale",),
    "HalfNormal": ("scale",),
    "Independent": ("base_dist", "reinterpreted_batch_ndims"),
    "InverseGamma": ("concentration", "rate"),
    "Kumaraswamy": ("concentration1", "concentration0"),
    "Laplace": ("loc", "scale"),
    "LogNormal": ("loc", "scale"),
    "LowRankMultivariateNormal": ("loc", "cov_factor", "cov_diag"),
    "MixtureSameFamily": ("mixture_distribution", "component_distribution"),
    "MultivariateNormal": ("loc", "scale_tril"),
    "Normal": ("loc", "scale"),
    "Pareto": ("scale", "alpha"),
    "StudentT": ("df", "loc", "scale"),
    "Uniform": ("low", "high"),
    "VonMises": ("loc", "concentration"),
    "Weibull": ("scale", "concentration"),
}


class Shelf:
    """Tensors by name; one that is put twice is stored once.

    >>> import torch
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


def describe_posterior(q: Posterior, shelf: Shelf) -> Json:
    """The family and its fixed values."""
    return {"family": q.name, "fixed": {name: shelf.put(value) for name, value in q.fixed.items()}}


def posterior_from(item: Json, shelf: Shelf) -> Posterior:
    """The template that was described."""
    return posterior(item["family"], **{name: shelf.take(value) for name, value in item["fixed"].items()})


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
        value = getattr(dist, argument)
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


def describe_options(options: Options) -> Json:
    """The estimator and the start values; the two families are described apart, for tensors share them."""
    return {
        "estimator": asdict(options.estimator),
        "start_std": float(options.start_std),
        "pretrained": bool(options.pretrained),
        "signs": options.signs,
    }


def options_from(item: Json, q: Posterior, p: Prior) -> Options:
    """The options that were described."""
    return Options(q, p, Estimator(**item["estimator"]), item["start_std"], item["pretrained"], item["signs"])


def describe_random(random: Mapping[tuple[str, ...], Latent | RankOne], shelf: Shelf) -> dict[str, Json]:
    """How every random tensor of a network came to be; templates and priors that tensors share are described once."""
    posteriors = {id(latent.options.posterior): latent.options.posterior for latent in random.values()}
    priors = {id(latent.options.prior): latent.options.prior for latent in random.values()}
    return {
        "posteriors": [describe_posterior(q, shelf) for q in posteriors.values()],
        "priors": [describe_prior(p, shelf) for p in priors.values()],
        "random": [
            {
                "names": list(names),
                "shape": list(latent.shape),
                "dtype": dtype_name(latent.log_scale),
                "posterior": list(posteriors).index(id(latent.options.posterior)),
                "prior": list(priors).index(id(latent.options.prior)),
                **describe_options(latent.options),
                "initial": [t.initial for t in latent.tensors],
            }
            for names, latent in random.items()
        ],
    }


def random_from(config: Mapping[str, Json], shelf: Shelf) -> dict[tuple[str, ...], Options]:
    """The options of every random tensor, by its names in the network."""
    posteriors = [posterior_from(item, shelf) for item in config["posteriors"]]
    priors = [prior_from(item, shelf) for item in config["priors"]]
    return {
        tuple(item["names"]): options_from(item, posteriors[item["posterior"]], priors[item["prior"]])
        for item in config["random"]
    }


def describe_initial(random: Mapping[tuple[str, ...], Latent | RankOne]) -> dict[str, Json]:
    """Where scales began, alone, as `restore_initial` reads it."""
    return {"random": [{"names": list(n), "initial": [t.initial for t in r.tensors]} for n, r in random.items()]}


def restore_initial(random: Mapping[tuple[str, ...], Latent | RankOne], config: Mapping[str, Json]) -> None:
    """Where scales began, as it was described; unknown in descriptions of before it was."""
    known = {tuple(item["names"]): item.get("initial") for item in config["random"]}
    for names, latent in random.items():
        first = known.get(names) or [None] * len(latent.tensors)
        for tensor, numbers in zip(latent.tensors, first, strict=True):
            tensor.initial = None if numbers is None else (float(numbers[0]), float(numbers[1]))


def dtype_name(tensor: Tensor) -> str:
    """Its dtype in a word.

    >>> import torch
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
