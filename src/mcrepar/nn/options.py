"""What `bayesian` was asked, as objects, with every refusal before a tensor is touched."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.posterior import check_posterior
from mcrepar.distributions.posteriors import posterior as posterior_of
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import prior as prior_of
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence.kl import check_objects
from mcrepar.divergence.methods import Estimator
from mcrepar.divergence.plan import plan_pair
from mcrepar.errors import McreparError, MethodError, ParameterError
from mcrepar.nn.forwards import FORWARDS
from mcrepar.nn.random_tensor import Options, without_row
from mcrepar.nn.rank1 import check_factors, factor_posterior, factor_prior
from mcrepar.nn.select import Overrides, Place, check_overrides, options_of, unit
from mcrepar.validation import real_number, whole_number

STRUCTURES = ("weights", "rank1")
NATS_AWAY = 2.0  # as a Normal prior has at two standard deviations
PRIOR, SCALE, LOC_SCALE, RELATIVE = "hierarchical", 0.3, 3.0, "fan_in"  # the default prior over weights


def check_structure(forward: object, structure: object, members: object) -> tuple[int, bool]:
    """The number of members, and whether factors are random; or a refusal of what does not go together."""
    if forward not in FORWARDS:
        known = " or ".join(map(repr, FORWARDS))
        raise MethodError(f"forward={forward!r}", "there is no such forward", known)
    if structure not in STRUCTURES:
        raise MethodError(f"structure={structure!r}", "there is no such structure", " or ".join(map(repr, STRUCTURES)))
    count, factored = whole_number("members", members), structure == "rank1"
    if not factored and count > 1:
        raise MethodError(f"members={count}", "only factors have members", "structure='rank1'")
    if factored and forward not in ("weights", "auto"):
        why = "every example has factors of its own in training, and every draw one"
        instead = "Leave out forward=, or choose structure='weights'."
        raise MethodError(f"structure='rank1' with forward={forward!r}", why, instead)
    return count, factored


def chosen_options(
    places: Sequence[Place], given: Mapping[str, Any], overrides: Overrides | None, factored: bool = False
) -> list[tuple[Place, Options]]:
    """Every selected parameter with its options: those that were given, and the overrides that apply to it.

    Names of families mean factors near 1 where factors are random, and not the weights.
    """
    check_overrides(places, overrides or {}, [*given, "start_std"])
    out = []
    for place in places:
        own = options_of(place, overrides or {})
        if "start_std" in own:  # an accepted spelling
            own["initial_std"] = own.pop("start_std")
        options = _options({**given, **own}, factored)
        if options.prior.relative and not factored:
            options = replace(options, prior=options.prior.in_units(unit(place, options.prior.relative)))
        out.append((place, options))
    if factored:
        _warn_away_from_one({repr(options.prior): options.prior for _, options in out})
    return out


def _warn_away_from_one(priors: Mapping[str, Prior]) -> None:
    """Say which priors are much lower at 1, where factors are, than elsewhere; a name is put around 1, no object is."""
    for name, p in priors.items():
        tensors = p.tensors.values()
        if p.relative or p.words or p.shape or p.simplex or p.density.joint or any(t.numel() > 1 for t in tensors):
            continue
        device = next((t.device for t in tensors), "cpu")
        at = torch.arange(-199, 300, 4, dtype=torch.float64, device=device) / 100  # not at 0: some have a pole there
        with torch.no_grad():
            density, here = p.log_prob(at), p.log_prob(torch.ones_like(at[:1]))
        if (lower := float(density.max() - here)) > NATS_AWAY:
            warnings.warn(
                f"structure='rank1' with {name}: factors are near 1, where its log density is {lower:.3g} nats below "
                f"that near {float(at[density.argmax()]):.1f}, so every factor is pulled there and the KL is large. "
                "Use a prior around 1, such as mcrepar.prior('normal', loc=1.0, scale=0.1).",
                stacklevel=4,
            )


def default_prior() -> Prior:
    """The prior over weights where none is given."""
    return prior_of(PRIOR, scale=SCALE, loc_scale=LOC_SCALE, relative=RELATIVE)


def _options(given: Mapping[str, Any], factored: bool) -> Options:
    """Strings stop here: objects from what the user typed."""
    q, p = given["posterior"], given["prior"]
    std = real_number("initial_std", given["initial_std"], 0, instead="a number such as 0.05")
    if not isinstance(given["pretrained"], bool):
        raise ParameterError(f"pretrained={given['pretrained']!r}", "it is not yes or no", "True or False")
    if given["signs"] not in ("", "keep", "positive"):
        raise ParameterError(f"signs={given['signs']!r}", "there is no such choice", "'keep' or 'positive'")
    if isinstance(q, str):
        q = factor_posterior(q, std) if factored else posterior_of(q)
    if p is None and not (factored or given["pretrained"]):
        p = default_prior()
    p = "normal" if p is None else p
    if isinstance(p, str):
        p = factor_prior(p) if factored else prior_of(p)
    p = as_prior(p)
    q = check_posterior(q)
    if p.row is not None and not p.row.learned and any(tensor.requires_grad for tensor in p.tensors.values()):
        why = "a network that learned its parameters would fit them to the posterior, and not the reverse"
        raise ParameterError(f"prior {p.name!r} with a tensor that requires grad", why, "numbers")
    estimator = Estimator(given["kl_method"], given["n_mc_iter"])
    return Options(q, p, estimator, std, given["pretrained"], given["signs"])


def check_place(place: Place, options: Options, forward: str, factored: bool = False) -> None:
    """Refuse families, a prior's tensors or a forward that do not suit a parameter, with its name."""
    p, free = options.prior, without_row(place.parameter.detach(), place.held)
    if factored:
        free = torch.ones(1, dtype=free.dtype, device=free.device)
    if place.parameter.is_meta:
        raise ParameterError("bayesian(net)", f"{place.name} is on the meta device, without values", "one with weights")
    if not bool(place.parameter.isfinite().all()):
        raise ParameterError(f"bayesian(net) with {place.name}", "it holds NaN or inf", "a network of finite weights")
    try:
        if factored:
            check_factors(place, options)
        if options.pretrained and "loc" not in p.values:
            raise MethodError(f"pretrained=True with prior {p.name!r}", "it has no loc to centre", "prior='normal'")
        plan = plan_pair(options.posterior, p.filled(loc=torch.zeros(1)) if options.pretrained else p)
        plan.decide(options.estimator)
        if not factored:
            _check_table(place)
            _check_signs(place.name, place.parameter, options)
        learned: dict[str, Any] = {"loc": free} if options.posterior.row.form.learned_loc else {}
        q = options.posterior.bind(validate=False, log_scale=free, **learned)
        check_objects(q, p.sketch().filled(**({"loc": free} if options.pretrained else {})), None)
        FORWARDS[forward].check(options.posterior, place)
    except McreparError as error:
        raise error.within(place.name) from None


def _check_table(place: Place) -> None:
    """Refuse an embedding whose rows are rescaled in place where they are looked up: a sample is part of a graph."""
    for owner in place.owners:
        if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.max_norm is not None:
            why = f"every forward of this {type(owner).__name__} with max_norm={owner.max_norm} rescales it in place"
            raise ParameterError("bayesian(net)", why, "max_norm=None, or select=... without it")


def _check_signs(name: str, values: Tensor, options: Options) -> None:
    """Refuse a posterior on the half-line for weights of both signs, unless the user chose what becomes of them."""
    row = options.posterior.row
    if row.support.lower < 0 or options.signs or not bool((values < 0).any()):
        return
    raise MethodError(
        f"posterior {row.name!r} for {name}",
        "it makes every weight positive, and the network has negative ones",
        "signs='keep' to multiply the samples by the network's signs, or signs='positive' to drop them",
    )
