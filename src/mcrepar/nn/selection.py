"""Which parameters of a network become random, and with which options."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

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


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: torch's own and, by their names, everyone's."""
    return "norm" in type(module).__name__.lower()


def selected(net: nn.Module, select: Select) -> list[Place]:
    """The parameters that become random: all floating ones that are trained, norm layers aside, or what was asked."""
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
            if not any(_matches(pattern, p) for p in every):
                raise _unknown("select", pattern, every)
        chosen = [p for p in free if any(_matches(pattern, p) for pattern in patterns)]
    if not chosen:
        raise ParameterError(
            "bayesian(net, select=...)", "it selects no trainable parameter", f"names such as {_some(every)}"
        )
    return chosen


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
            raise _unknown("overrides", key if isinstance(key, str) else _title(key), chosen)
        for option in options:
            if option not in known:
                raise ParameterError(f"overrides with {option!r}", "there is no such option", ", ".join(known))


def _rank(key: Any) -> int:
    if isinstance(key, type):
        return 0
    return 1 if isinstance(key, nn.Module) else 2


def _applies(key: Any, place: Place) -> bool:
    if isinstance(key, str):
        return _matches(key, place)
    if isinstance(key, type):
        return any(isinstance(owner, key) for owner in place.owners)
    return any(owner is inner for owner in place.owners for inner in _inside(key))


def _inside(module: Any) -> Iterator[nn.Module]:
    return module.modules() if isinstance(module, nn.Module) else iter(())


def _matches(pattern: str, place: Place) -> bool:
    return any(fnmatch.fnmatchcase(n, pattern) or fnmatch.fnmatchcase(n, f"{pattern}.*") for n in place.names)


def _title(key: Any) -> str:
    return key.__name__ if isinstance(key, type) else type(key).__name__


def _some(every: Sequence[Place]) -> str:
    return ", ".join(repr(p.name) for p in every[:4])


def _unknown(what: str, pattern: str, every: Sequence[Place]) -> ParameterError:
    return ParameterError(
        f"bayesian(net, {what}=...) with {pattern!r}", "no parameter matches it", f"names such as {_some(every)}"
    )


def spread(place: Place) -> float:
    """The spread of a tensor; that of the widest one beside it where its own is 0 (a bias of zeros), else 1."""
    own = _deviation(place.parameter)
    if own > 0:
        return own
    beside = [_deviation(p) for owner in place.owners for p in owner.parameters(recurse=False)]
    return max(beside, default=0.0) or 1.0


def _deviation(values: Tensor) -> float:
    values = values.detach().double()
    return float(values.std()) if values.numel() > 1 else float(values.abs().sum())
