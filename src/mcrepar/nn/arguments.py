"""What `bayesian` was asked, as objects, with every refusal before a tensor is touched."""

from __future__ import annotations

import gc
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import posterior as posterior_of
from mcrepar.distributions.priors import prior as prior_of
from mcrepar.distributions.torch_priors import as_prior
from mcrepar.divergence.kl import check_objects
from mcrepar.divergence.methods import Estimator, whole_number
from mcrepar.divergence.plan import plan_pair
from mcrepar.errors import McreparError, MethodError, ParameterError
from mcrepar.nn.forward import FORWARDS, check_forward
from mcrepar.nn.latent import Latent, Options, check_signs, without_row
from mcrepar.nn.rank1 import RankOne, check_factors, factor_posterior, factor_prior
from mcrepar.nn.selection import Overrides, Place, check_overrides, options_of, unit

STRUCTURES = ("weights", "rank1")


def check_structure(forward: object, structure: object, members: object) -> tuple[int, bool]:
    """The number of members, and whether factors are random; or a refusal of what does not go together."""
    if forward not in FORWARDS:
        raise MethodError(f"forward={forward!r}", "there is no such forward", " or ".join(map(repr, FORWARDS)))
    if structure not in STRUCTURES:
        raise MethodError(f"structure={structure!r}", "there is no such structure", " or ".join(map(repr, STRUCTURES)))
    count, factored = whole_number("members", members), structure == "rank1"
    if not factored and count > 1:
        raise MethodError(f"members={count}", "only factors have members", "structure='rank1'")
    if factored and forward != "weights":
        why = "every example has factors of its own in training, and every draw one"
        raise MethodError(f"structure='rank1' with forward={forward!r}", why, "it without forward=...")
    return count, factored


def chosen_options(
    places: Sequence[Place], given: Mapping[str, Any], overrides: Overrides | None, factored: bool = False
) -> list[tuple[Place, Options]]:
    """Every selected parameter with its options: those that were given, and the overrides that apply to it.

    Names of families mean factors near 1 where factors are random, and not the weights.
    """
    check_overrides(places, overrides or {}, list(given))
    out = []
    for place in places:
        options = _options({**given, **options_of(place, overrides or {})}, factored)
        if options.prior.relative and not factored:
            options = replace(options, prior=options.prior.in_units(unit(place, options.prior.relative)))
        out.append((place, options))
    return out


def _options(given: Mapping[str, Any], factored: bool) -> Options:
    """Strings stop here: objects from what the user typed."""
    q, p, std = given["posterior"], given["prior"], given["start_std"]
    if isinstance(std, bool) or not isinstance(std, numbers.Real) or not 0 < float(std) < math.inf:
        raise ParameterError(f"start_std={std!r}", "it is not a positive number", "a number such as 0.05")
    if not isinstance(given["pretrained"], bool):
        raise ParameterError(f"pretrained={given['pretrained']!r}", "it is not yes or no", "True or False")
    if given["signs"] not in ("", "keep", "positive"):
        raise ParameterError(f"signs={given['signs']!r}", "there is no such choice", "'keep' or 'positive'")
    if isinstance(q, str):
        q = factor_posterior(q, float(std)) if factored else posterior_of(q)
    if isinstance(p, str):
        p = factor_prior(p) if factored else prior_of(p)
    p = as_prior(p)
    if not isinstance(q, Posterior):
        raise ParameterError(f"a posterior of type {type(q).__name__}", "it has no noise", "posterior(name, ...)")
    if p.row is not None and not p.row.learned and any(tensor.requires_grad for tensor in p.tensors.values()):
        why = "a network that learned its parameters would fit them to the posterior, and not the reverse"
        raise ParameterError(f"prior {p.name!r} with a tensor that requires grad", why, "numbers")
    estimator = Estimator(given["kl_method"], given["n_mc_iter"])
    return Options(q, p, estimator, float(std), given["pretrained"], given["signs"])


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
            check_signs(place.name, place.parameter, options)
        learned: dict[str, Any] = {"loc": free} if options.posterior.row.form.learned_loc else {}
        q = options.posterior.bind(validate=False, log_scale=free, **learned)
        check_objects(q, p.sketch().filled(**({"loc": free} if options.pretrained else {})), None)
        check_forward(forward, options.posterior, place)
    except McreparError as error:
        raise error.within(place.name) from None


def check_draw(draw: object, random: Mapping[tuple[str, ...], Latent | RankOne], net: nn.Module) -> None:
    """Refuse a draw that is not one of this network's weights."""
    if not isinstance(draw, Mapping):
        raise ParameterError(f"a frozen {type(draw).__name__}", "it names no weights", "'mean', or bnn.draw()")
    for name, latent in ((name, latent) for names, latent in random.items() for name in names):
        if name not in draw:
            raise ParameterError("a frozen draw", f"it has no {name}", "bnn.draw(), whole")
        w, dtype = draw[name], latent.log_scale.dtype
        if not isinstance(w, Tensor) or w.shape != latent.shape:
            what = f"the shape {tuple(w.shape)}" if isinstance(w, Tensor) else f"the type {type(w).__name__}"
            why = f"its {name} has {what}, not that of the weights, {tuple(latent.shape)}"
            raise ParameterError("a frozen draw", why, "bnn.draw()")
        if w.dtype != dtype:
            raise ParameterError(
                "a frozen draw", f"its {name} is {w.dtype}, the weights {dtype}", f"{name}.to({dtype})"
            )
    others = draw.keys() - {name for names in random for name in names}
    if others:  # tensors of the network that are not random may be given too, as norm statistics are
        others -= {name for name, _ in net.named_parameters(remove_duplicate=False)}
        others -= {name for name, _ in net.named_buffers(remove_duplicate=False)}
    if others:
        why = f"{min(map(repr, others))} is no weight of the network"
        raise ParameterError("a frozen draw", why, "the names of bnn.draw()")


def check_generator(generator: object) -> None:
    """Refuse what draws nothing."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ParameterError(f"generator={generator!r}", "it draws nothing", "torch.Generator().manual_seed(0)")


def check_optimizers(places: Sequence[Place]) -> None:
    """Refuse to empty tensors that an optimizer goes on training."""
    ours = {id(place.parameter): place.name for place in places}
    kinds = {torch.optim.Optimizer}
    while more := {kind for known in kinds for kind in known.__subclasses__()} - kinds:
        kinds |= more
    for item in gc.get_referrers(*kinds):  # an instance refers to its class
        if type(item) not in kinds:
            continue
        for group in item.param_groups:
            held = next((ours[id(p)] for p in group["params"] if id(p) in ours), None)
            if held is not None:
                raise ParameterError(
                    "bayesian(net)",
                    f"an optimizer that was built before holds {held}, which becomes random",
                    "bayesian(net) first, then an optimizer of bnn.parameters()",
                )
