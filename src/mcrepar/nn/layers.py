"""Layers for building by hand: every torch layer with the options of `bayesian` beside its own arguments.

>>> from torch import nn
>>> import mcrepar
>>> net = nn.Sequential(mcrepar.nn.Linear(8, 16, posterior="radial"), nn.ReLU(), mcrepar.nn.Linear(16, 1))
>>> net(torch.zeros(5, 8)).shape
torch.Size([5, 1])
>>> bool(net[0].kl() > 0)
True
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from mcrepar.nn import LAYERS
from mcrepar.nn.module import BayesianModule, bayesian


def bayesian_class(
    name: str,
    build: Callable[..., torch.nn.Module],
    convert: Callable[..., BayesianModule] = bayesian,
    home: str = __name__,
    **members: Any,
) -> type[BayesianModule]:
    """A class whose instances are convert(build(...), ...), made by one call with the arguments of both.

    Args:
        name: of the class, with the names it is nested in.
        build: makes the plain module.
        convert: makes it Bayesian; its parameters after the first are the options.
        home: the module in which the class is found under its name.
        members: of the class.

    >>> inspect.signature(bayesian_class("Linear", torch.nn.Linear)).parameters["in_features"]
    <Parameter "in_features: int">
    """
    own = _own_parameters(build)
    _, *options = inspect.signature(convert).parameters.values()
    names = [option.name for option in options]

    def __init__(self: BayesianModule, *args: Any, **kwargs: Any) -> None:
        chosen = {key: kwargs.pop(key) for key in names if key in kwargs}
        made = convert(build(*args, **kwargs), **chosen)
        vars(self).update(vars(made))  # the state of the module that was made becomes this one's

    keywords = (option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options)
    signature = inspect.Signature([*own, *keywords])
    doc = (
        f"A Bayesian {name}, W = f(loc + scale * xi), that draws its weights afresh at every forward.\n\n"
        f"Its own arguments: {', '.join(str(p) for p in own)}\n\n"
        f"Options of `{convert.__name__}`, by keyword: {', '.join(names)}\n"
    )
    body = {"__init__": __init__, "__doc__": doc, "__module__": home, "__signature__": signature}
    cls = type(name.rpartition(".")[2], (BayesianModule,), {**body, "__qualname__": name, **members})
    assert issubclass(cls, BayesianModule)
    return cls


def _own_parameters(build: Callable[..., torch.nn.Module]) -> list[inspect.Parameter]:
    """What a layer takes, without catch-alls; recurrent layers hide theirs in their base class."""
    parameters = list(inspect.signature(build).parameters.values())
    if inspect.isclass(build) and issubclass(build, torch.nn.RNNBase):
        _, *parameters = inspect.signature(torch.nn.RNNBase).parameters.values()  # the mode is the class itself
    catch_all = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in parameters if p.kind not in catch_all]


for _name in LAYERS:
    globals()[_name] = bayesian_class(_name, getattr(torch.nn, _name))
