"""Bayesian neural networks in PyTorch: any nn.Module in one line, an exact KL, predictions with uncertainty.

The public names are imported when they are first used, so `import mcrepar` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

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
    "mcrepar.distributions.posterior": ("Posterior",),
    "mcrepar.distributions.posteriors": ("POSTERIORS", "posterior"),
    "mcrepar.distributions.prior": ("Prior",),
    "mcrepar.distributions.priors": ("PRIORS", "prior"),
    "mcrepar.divergence.kl": ("expectation", "kl_divergence"),
    "mcrepar.divergence.plan": ("Plan", "explain"),
    "mcrepar.nn.module": ("BayesianModule", "bayesian", "kl"),
    "mcrepar.nn.moments.moment_calibration": ("calibrate_moments",),
    "mcrepar.nn.saving": ("load", "save"),
    "mcrepar.kl_schedules": ("kl_weight",),
    "mcrepar.objective": ("Elbo", "elbo"),
    "mcrepar.prediction": ("Prediction", "predict"),
    "mcrepar.trained_model": ("Preparation", "TrainedModel"),
}
_MODULES = (
    "checks",
    "conformal",
    "data",
    "distributions",
    "likelihoods",
    "metrics",
    "models",
    "nn",
    "optim",
    "paper",
    "plots",
    "workbench",
)  # what is reached as mcrepar.name without an import of its own
_BRIDGES = ("huggingface", "lightning", "sklearn")  # the same, but not listed: each needs a package that may be absent
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from mcrepar import checks as checks
    from mcrepar import conformal as conformal
    from mcrepar import data as data
    from mcrepar import distributions as distributions
    from mcrepar import huggingface as huggingface
    from mcrepar import lightning as lightning
    from mcrepar import likelihoods as likelihoods
    from mcrepar import metrics as metrics
    from mcrepar import models as models
    from mcrepar import nn as nn
    from mcrepar import optim as optim
    from mcrepar import paper as paper
    from mcrepar import plots as plots
    from mcrepar import sklearn as sklearn
    from mcrepar import workbench as workbench
    from mcrepar.distributions.posterior import Posterior as Posterior
    from mcrepar.distributions.posteriors import POSTERIORS as POSTERIORS
    from mcrepar.distributions.posteriors import posterior as posterior
    from mcrepar.distributions.prior import Prior as Prior
    from mcrepar.distributions.priors import PRIORS as PRIORS
    from mcrepar.distributions.priors import prior as prior
    from mcrepar.divergence.kl import expectation as expectation
    from mcrepar.divergence.kl import kl_divergence as kl_divergence
    from mcrepar.divergence.plan import Plan as Plan
    from mcrepar.divergence.plan import explain as explain
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
    from mcrepar.kl_schedules import kl_weight as kl_weight
    from mcrepar.nn.module import BayesianModule as BayesianModule
    from mcrepar.nn.module import bayesian as bayesian
    from mcrepar.nn.module import kl as kl
    from mcrepar.nn.moments.moment_calibration import calibrate_moments as calibrate_moments
    from mcrepar.nn.saving import load as load
    from mcrepar.nn.saving import save as save
    from mcrepar.objective import Elbo as Elbo
    from mcrepar.objective import elbo as elbo
    from mcrepar.prediction import Prediction as Prediction
    from mcrepar.prediction import predict as predict
    from mcrepar.trained_model import Preparation as Preparation
    from mcrepar.trained_model import TrainedModel as TrainedModel
else:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name):
        if name in (*_MODULES, *_BRIDGES):
            return import_module(f"{__name__}.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
