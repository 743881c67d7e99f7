"""Variational Bayesian neural networks whose KL takes a million Monte Carlo draws at the cost of a hundred.

The public names are imported when they are first used, so `import mcrepar` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "mcrepar.errors": (
        "CollapseWarning",
        "InfiniteKLError",
        "InfiniteVarianceError",
        "InfiniteVarianceWarning",
        "McreparError",
        "MethodError",
        "NoFiniteTupleError",
        "ParameterError",
        "SupportMismatchError",
        "QuadratureWarning",
        "TaylorWarning",
        "UnknownFamilyError",
    ),
    "mcrepar.families.posterior": ("Posterior",),
    "mcrepar.families.posteriors": ("POSTERIORS", "posterior"),
    "mcrepar.families.prior": ("Prior",),
    "mcrepar.families.priors": ("PRIORS", "prior"),
    "mcrepar.kl.divergence": ("kl_divergence",),
    "mcrepar.kl.plan": ("Plan", "explain"),
    "mcrepar.nn.module": ("BayesianModule", "bayesian"),
    "mcrepar.nn.saving": ("load", "save"),
    "mcrepar.objective": ("Elbo", "elbo", "kl_weight"),
    "mcrepar.prediction": ("Prediction", "predict"),
}
_MODULES = (
    "data",
    "families",
    "kl",
    "likelihoods",
    "metrics",
    "models",
    "nn",
    "optim",
    "paper",
    "plots",
    "training",
)  # what is reached as mcrepar.name without an import of its own
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from mcrepar import data as data
    from mcrepar import families as families
    from mcrepar import kl as kl
    from mcrepar import likelihoods as likelihoods
    from mcrepar import metrics as metrics
    from mcrepar import models as models
    from mcrepar import nn as nn
    from mcrepar import optim as optim
    from mcrepar import paper as paper
    from mcrepar import plots as plots
    from mcrepar import training as training
    from mcrepar.errors import CollapseWarning as CollapseWarning
    from mcrepar.errors import InfiniteKLError as InfiniteKLError
    from mcrepar.errors import InfiniteVarianceError as InfiniteVarianceError
    from mcrepar.errors import InfiniteVarianceWarning as InfiniteVarianceWarning
    from mcrepar.errors import McreparError as McreparError
    from mcrepar.errors import MethodError as MethodError
    from mcrepar.errors import NoFiniteTupleError as NoFiniteTupleError
    from mcrepar.errors import ParameterError as ParameterError
    from mcrepar.errors import QuadratureWarning as QuadratureWarning
    from mcrepar.errors import SupportMismatchError as SupportMismatchError
    from mcrepar.errors import TaylorWarning as TaylorWarning
    from mcrepar.errors import UnknownFamilyError as UnknownFamilyError
    from mcrepar.families.posterior import Posterior as Posterior
    from mcrepar.families.posteriors import POSTERIORS as POSTERIORS
    from mcrepar.families.posteriors import posterior as posterior
    from mcrepar.families.prior import Prior as Prior
    from mcrepar.families.priors import PRIORS as PRIORS
    from mcrepar.families.priors import prior as prior
    from mcrepar.kl.divergence import kl_divergence as kl_divergence
    from mcrepar.kl.plan import Plan as Plan
    from mcrepar.kl.plan import explain as explain
    from mcrepar.nn.module import BayesianModule as BayesianModule
    from mcrepar.nn.module import bayesian as bayesian
    from mcrepar.nn.saving import load as load
    from mcrepar.nn.saving import save as save
    from mcrepar.objective import Elbo as Elbo
    from mcrepar.objective import elbo as elbo
    from mcrepar.objective import kl_weight as kl_weight
    from mcrepar.prediction import Prediction as Prediction
    from mcrepar.prediction import predict as predict
else:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name):
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
