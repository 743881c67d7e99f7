"""The methods that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quality_learners import (
    Bayesian,
    BayesianTorch,
    Deterministic,
    Dropout,
    Ensemble,
    Ivon,
    LastLayerLaplace,
    Learner,
    TemperatureScaling,
)
from quality_tasks import Task

import mcrepar


def rank1(std: float, initial: float, **options: Any) -> Callable[[Task, int], Learner]:
    """Multiplicative noise with a prior of this standard deviation around 1."""
    centred = mcrepar.prior("normal", loc=1.0, scale=std)
    return partial(Bayesian, structure="rank1", initial_std=initial, **{"prior": centred, **options})


def mean_field(prior: mcrepar.Prior, posterior: str = "normal", **options: Any) -> Callable[[Task, int], Learner]:
    """All weights random, by flipout and trained by Adam unless `options` say otherwise."""
    given = {"forward": "flipout", "adam": 1e-2, "scale_rate": 2e-2, **options}
    return partial(Bayesian, posterior=posterior, prior=prior, **given)


NARROW = mcrepar.prior("normal", scale=0.316)


def absolute(scale: float) -> mcrepar.Prior:
    """The hierarchical prior with one length for all layers."""
    return mcrepar.prior("hierarchical", scale=scale, loc_scale=0.316)


def in_fan_in(scale: float, loc_scale: float = 3.0, **options: Any) -> Callable[[Task, int], Learner]:
    """A Normal posterior and the hierarchical prior with lengths in units of 1 / sqrt(fan-in)."""
    return mean_field(mcrepar.prior("hierarchical", scale=scale, loc_scale=loc_scale, relative="fan_in"), **options)


def in_spread(scale: float, **options: Any) -> Callable[[Task, int], Learner]:
    """A Normal posterior that begins with the noise of the hierarchical prior, in units of a tensor's spread."""
    prior = mcrepar.prior("hierarchical", scale=scale, loc_scale=10.0, relative="spread")
    return mean_field(prior, **{"forward": "auto", "initial_std": scale, **options})


METHODS: Mapping[str, Callable[[Task, int], Learner]] = {
    "deterministic": Deterministic,
    "deterministic, SGD x .5": partial(Deterministic, rate=0.5),
    "deterministic, SGD x 2": partial(Deterministic, rate=2.0),
    "deterministic, SGD x 4": partial(Deterministic, rate=4.0),
    "deterministic, Adam .01": partial(Deterministic, adam=1e-2),
    "deterministic, Adam .002": partial(Deterministic, adam=2e-3),
    "deterministic, weight decay .0001": partial(Deterministic, weight_decay=1e-4),
    "deterministic, weight decay .001": partial(Deterministic, weight_decay=1e-3),
    "deterministic, weight decay .002": partial(Deterministic, weight_decay=2e-3),
    "dropout": Dropout,
    "ensemble of 5": Ensemble,
    "last-layer Laplace": LastLayerLaplace,
    "temperature scaling": TemperatureScaling,
    "ivon": Ivon,
    "bayesian-torch": BayesianTorch,
    "rank1 normal .1": rank1(0.1, 0.05),
    "rank1 normal .3": rank1(0.3, 0.15),
    "rank1 normal .3, 4 members": rank1(0.3, 0.1, members=4),
    "rank1 lognormal .3": rank1(0.3, 0.15, posterior="lognormal", prior=mcrepar.prior("lognormal", loc=0.0, scale=0.3)),
    "the paper's objective": mean_field(NARROW, "radial", forward="weights", kl_method="repar", n_mc_iter=100),
    "normal": mean_field(NARROW),
    "normal, Adam .002": mean_field(NARROW, adam=2e-3),
    "normal, natural": mean_field(NARROW, adam=0.0, natural=0.1, scale_rate=1e-3),
    "laplace, natural": mean_field(NARROW, "laplace", adam=0.0, natural=0.1, scale_rate=1e-3),
    "normal hierarchical .1": mean_field(absolute(0.1)),
    "normal hierarchical .05": mean_field(absolute(0.05)),
    "normal hierarchical .1, Adam .002": mean_field(absolute(0.1), adam=2e-3),
    "fan-in .3, auto, Adam .002": in_fan_in(0.3, forward="auto", adam=2e-3),
    "fan-in .3, auto, Adam .005": in_fan_in(0.3, forward="auto", adam=5e-3, scale_rate=1e-2),
    "fan-in .3, auto": in_fan_in(0.3, forward="auto"),
    "fan-in .5": in_fan_in(0.5),
    "fan-in .5, auto": in_fan_in(0.5, forward="auto"),
    "fan-in .5, auto, Adam .002": in_fan_in(0.5, forward="auto", adam=2e-3),
    "fan-in .5, auto, natural": in_fan_in(0.5, forward="auto", adam=0.0, natural=0.1, scale_rate=1e-3),
    "fan-in .5, one draw": in_fan_in(0.5, forward="weights"),
    "fan-in .5, radial": in_fan_in(0.5, posterior="radial"),
    "fan-in 1": in_fan_in(1.0),
    "fan-in .5, auto, SGD": in_fan_in(0.5, forward="auto", adam=0.0, scale_rate=1e-2),
    "fan-in .5, auto, SGD x 4": in_fan_in(0.5, forward="auto", adam=0.0, scale_rate=1e-2, sgd_rate=4.0),
    "fan-in .2, auto, SGD x 4": in_fan_in(0.2, forward="auto", adam=0.0, scale_rate=1e-2, sgd_rate=4.0),
    "fan-in .3, auto, SGD x 4": in_fan_in(0.3, forward="auto", adam=0.0, scale_rate=1e-2, sgd_rate=4.0),
    "fan-in .5, loc 1.5, auto, SGD x 4": in_fan_in(0.5, 1.5, forward="auto", adam=0.0, scale_rate=1e-2, sgd_rate=4.0),
    "fan-in .5, loc 1, auto, SGD x 4": in_fan_in(0.5, 1.0, forward="auto", adam=0.0, scale_rate=1e-2, sgd_rate=4.0),
    "fan-in .05, auto, SGD x 4": in_fan_in(0.05, forward="auto", adam=0.0, scale_rate=1e-2, sgd_rate=4.0),
    "fan-in .5, plain biases, auto, SGD x 4": in_fan_in(
        0.5, forward="auto", adam=0.0, scale_rate=1e-2, sgd_rate=4.0, select=["*.weight"]
    ),
    "fan-in .1, one draw, SGD": in_fan_in(0.1, forward="weights", adam=0.0, scale_rate=1e-2),
    "fan-in .1, loc 2, one draw, SGD": in_fan_in(0.1, 2.0, forward="weights", adam=0.0, scale_rate=1e-2),
    "fan-in .15, loc 2, one draw, SGD": in_fan_in(0.15, 2.0, forward="weights", adam=0.0, scale_rate=1e-2),
    "fan-in .2, loc 2, one draw, SGD, scales .0015": in_fan_in(
        0.2, 2.0, forward="weights", adam=0.0, scale_rate=1.5e-3
    ),
    "fan-in .2, loc 2, one draw, SGD, scales .0005": in_fan_in(0.2, 2.0, forward="weights", adam=0.0, scale_rate=5e-4),
    "fan-in .2, one draw, SGD": in_fan_in(0.2, forward="weights", adam=0.0, scale_rate=1e-2),
    "fan-in .3, one draw, SGD": in_fan_in(0.3, forward="weights", adam=0.0, scale_rate=1e-2),
    "spread .5": in_spread(0.5),
    "spread .5, one draw": in_spread(0.5, forward="weights"),
}
