"""Which parameters of a network become random, and with which options."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from mcrepar.errors import ParameterError

Select = Callable[[str, nn.Parameter], bool] | str | Sequence[str] | None
Overrides = Mapping[Any, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Place:
    """A parameter of the network: its value, the module that owns it, and all of its names (tied weights)."""

    parameter: nn.Parameter
    owners: tuple[nn.Module, ...]
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its first name."""
        return self.names[0]

    @property
    def held(self) -> int | None:
        """The padding row, which no embedding trains; None where another layer uses the same tensor as a weight."""
        rows = {o.padding_idx if isinstance(o, nn.Embedding | nn.EmbeddingBag) else None for o in self.owners}
        return rows.pop() if len(rows) == 1 else None


def places(net: nn.Module) -> list[Place]:
    """Every parameter of a network once, with all the names under which it is used."""
    found: dict[int, tuple[nn.Parameter, list[nn.Module], list[str]]] = {}
    modules = dict(net.named_modules(remove_duplicate=False))
    for name, parameter in net.named_parameters(remove_duplicate=False):
        owner = modules[name.rpartition(".")[0]]
        _, owners, names = found.setdefault(id(parameter), (parameter, [], []))
        owners.append(owner)
        names.append(name)
    return [Place(parameter, tuple(owners), tuple(names)) for parameter, owners, names in found.values()]


NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
NORM_NAME = re.compile(r"[Nn]orm(alization)?(\d\w*)?$|(Batch|Layer|Group|Instance|RMS)Norm(?![a-z])")


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: torch's own and, by their names, everyone's.

    >>> [bool(NORM_NAME.search(name)) for name in ("T5LayerNorm", "BatchNormAct2d", "NormalHead")]
    [True, True, False]
    """
    return isinstance(module, NORMS) or NORM_NAME.search(type(module).__name__) is not None


def selected(net: nn.Module, select: Select) -> list[Place]:
    """The parameters that become random: all floating ones that are trained, norm layers aside, or what was asked."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in net.modules()):
        why = "a part of it is compiled by torch.jit, and its weights cannot be swapped"
        raise ParameterError("bayesian(net)", why, "the network before torch.jit.script or torch.jit.trace")
    every = places(net)
    if not every:
        raise ParameterError("bayesian(net)", "the network has no parameters", "a network with weights")
    lazy = next((p.name for p in every if isinstance(p.parameter, UninitializedParameter)), None)
    if lazy is not None:
        raise ParameterError("bayesian(net)", f"{lazy} has no shape yet", "net(x) once, and then bayesian(net)")
    free = [p for p in every if p.parameter.requires_grad and p.parameter.is_floating_point()]
    if select is None:
        chosen = [p for p in free if not any(is_norm(owner) for owner in p.owners)]
    elif callable(select):
        chosen = [p for p in free if any(select(name, p.parameter) for name in p.names)]
    else:
        patterns: Any = [select] if isinstance(select, str) else select
        if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
            wrong = f"bayesian(net, select={select!r})"
            raise ParameterError(wrong, "it is neither a function nor patterns", f"names such as {_some(every)}")
        for pattern in patterns:
            found = [p for p in every if _matches(pattern, p)]
            if not found:
                raise _unknown("select", pattern, every)
            if not any(p in free for p in found):
                raise ParameterError(
                    f"bayesian(net, select=...) with {pattern!r}",
                    f"all that it matches is {_unfit(found[0].parameter)}, such as {found[0].name}",
                    "names of trainable floating-point parameters",
                )
        chosen = [p for p in free if any(_matches(pattern, p) for pattern in patterns)]
    if not chosen and every and not any(p.parameter.requires_grad for p in every):
        why = "all parameters of the network are frozen (requires_grad=False)"
        raise ParameterError("bayesian(net)", why, "net.requires_grad_(True)")
    if not chosen:
        raise ParameterError(
            "bayesian(net, select=...)", "it selects no trainable parameter", f"names such as {_some(every)}"
        )
    _check_held(net, chosen)
    return chosen


def _unfit(parameter: nn.Parameter) -> str:
    return "complex" if parameter.is_complex() else "frozen (requires_grad=False)"


def _check_held(net: nn.Module, chosen: Sequence[Place]) -> None:
    """Refuse a parameter that an ordinary attribute holds too: there it would stay as it is."""
    ours = {id(p.parameter): p.name for p in chosen}
    for name, module in net.named_modules():
        for attribute, value in vars(module).items():
            if attribute == "_parameters" or (isinstance(module, nn.RNNBase) and attribute == "_flat_weights"):
                continue
            held = next((ours[id(leaf)] for leaf in pytree.tree_leaves(value) if id(leaf) in ours), None)
            if held is not None:
                raise ParameterError(
                    "bayesian(net)",
                    f"the attribute {f'{name}.{attribute}'.lstrip('.')} holds {held} too, and would keep its old value",
                    "the parameter by its name in forward, or select=... without it",
                )


def options_of(place: Place, overrides: Overrides) -> dict[str, Any]:
    """The overrides of one parameter; later entries win, a name or pattern over a module over a type."""
    ranked = sorted(overrides.items(), key=lambda item: _rank(item[0]))
    out: dict[str, Any] = {}
    for key, options in ranked:
        if _applies(key, place):
            out.update(options)
    return out


def check_overrides(chosen: Sequence[Place], overrides: Any, known: Sequence[str]) -> None:
    """Refuse an override that applies to nothing or has an unknown option."""
    if not isinstance(overrides, Mapping) or not all(isinstance(options, Mapping) for options in overrides.values()):
        wrong = "bayesian(net, overrides=...)"
        raise ParameterError(wrong, "it is not a dict of dicts", '{"head.*": {"prior": "laplace"}}')
    for key, options in overrides.items():
        if not any(_applies(key, place) for place in chosen):
            title = key if isinstance(key, str) else (key if isinstance(key, type) else type(key)).__name__
            raise _unknown("overrides", title, chosen)
        for option in options:
            if option not in known:
                raise ParameterError(f"overrides with {option!r}", "there is no such option", ", ".join(known))


def _rank(key: Any) -> int:
    return 0 if isinstance(key, type) else 1 if isinstance(key, nn.Module) else 2


def _applies(key: Any, place: Place) -> bool:
    if isinstance(key, str):
        return _matches(key, place)
    if isinstance(key, type):
        return any(isinstance(owner, key) for owner in place.owners)
    return isinstance(key, nn.Module) and any(owner is inner for owner in place.owners for inner in key.modules())


def _matches(pattern: str, place: Place) -> bool:
    return any(fnmatch.fnmatchcase(n, pattern) or fnmatch.fnmatchcase(n, f"{pattern}.*") for n in place.names)


def _some(every: Sequence[Place]) -> str:
    return ", ".join(repr(p.name) for p in every[:4])


def _unknown(what: str, pattern: str, every: Sequence[Place]) -> ParameterError:
    return ParameterError(
        f"bayesian(net, {what}=...) with {pattern!r}", "no parameter matches it", f"names such as {_some(every)}"
    )


# torch's own layers with weights (outputs, inputs, ...); what parametrizes one has the layout of its layer
LAYERS = (
    nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention,
    nn.utils.parametrize.ParametrizationList,
)  # fmt: skip
BIAS_NAME = re.compile(r"bias|^b\d*(_|$)")
TABLE_NAME = re.compile(r"embed|token|table|(^|_)(pos|emb)(_|$)")


def unit(place: Place, relative: str) -> float:
    """The length to which a prior's are relative: of the initial weights, or 1 / sqrt(inputs of a unit).

    >>> layer = nn.Linear(16, 4)
    >>> [unit(Place(p, (layer,), (name,)), "fan_in") for name, p in layer.named_parameters()]
    [0.25, 0.25]
    """
    if relative == "spread":
        return spread(place)
    if any(isinstance(owner, nn.Embedding | nn.EmbeddingBag) for owner in place.owners):
        return 1.0  # every number enters by itself
    uses = zip(place.owners, place.names, strict=True)
    return 1 / math.sqrt(max(_inputs(owner, name.rpartition(".")[2]) for owner, name in uses))


def _inputs(layer: nn.Module, name: str) -> int:
    """How many inputs a unit of a parameter sums up; 1 where every number enters by itself."""
    own = {n: p for n, p in layer._parameters.items() if p is not None}
    table = TABLE_NAME.search(name) is not None
    if BIAS_NAME.search(name) and not table:  # as the weight of its name (bias_hh_l0 has weight_hh_l0)
        weights = [n for n, p in own.items() if p.dim() > 1 and not BIAS_NAME.search(n)]
        same = name.replace("bias", "weight")
        name = same if same in weights else next(iter(weights), name)
    weight = own[name]
    if weight.dim() < 2:
        return 1
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):  # (inputs, outputs of a group, ...)
        return weight[:, 0].numel() // layer.groups
    bias = own.get(name.replace("weight", "bias"))
    if not isinstance(layer, LAYERS) and not (bias is not None and bias.shape == weight.shape[:1]):
        if bias is not None and weight.dim() == 2 and bias.shape == weight.shape[1:]:  # it tells which side outputs are
            return len(weight)
        if table or (weight.dim() > 2 and len(weight) == 1):
            return 1
    return weight[0].numel()


def spread(place: Place) -> float:
    """The spread of a tensor; that of the widest one beside it where its own is 0 (a bias of zeros), else 1."""
    own = _std(place.parameter)
    if own > 0:
        return own
    beside = [_std(p) for owner in place.owners for p in owner.parameters(recurse=False)]
    return max(beside, default=0.0) or 1.0


def _std(values: Tensor) -> float:
    """The standard deviation of a tensor; the size of its values where they are all equal."""
    values = values.detach().double().flatten()
    varied = bool((values != values[:1]).any())  # the standard deviation of equal numbers may be a rounding error
    return float(values.std() if varied else values[:1].abs().sum())


# By id: parameters that became random and that somebody still holds. The hook that looks here is one for the process,
# made once, and does nothing while there are none.
_EMPTIED: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()


def watch_optimizers(places: Sequence[Place]) -> None:
    """Let the next step of an optimizer that was built before refuse to go on with tensors that became random."""
    _hook_optimizers()
    _EMPTIED.update({id(place.parameter): place.parameter for place in places})


@cache
def _hook_optimizers() -> None:
    register_optimizer_step_pre_hook(_check_optimizer)


def _check_optimizer(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    if torch.compiler.is_compiling() or not _EMPTIED:
        return
    if any(id(p) in _EMPTIED for group in optimizer.param_groups for p in group["params"]):
        raise ParameterError(
            "a step of an optimizer that was built before bayesian(net)",
            "it holds weights that became random, and would train nothing",
            "bayesian(net) first, then an optimizer of bnn.parameters()",
        )
