"""The distribution of the last dense layer's output, given the features that enter it: M draws cost one forward (D5).

With the features h of an example, the output of a layer with Normal or Radial weights is u = a + sum_p b_p zeta_p:
a = h loc^T, b^2 = (h^2) (scale^2)^T, and the parts p are the weight and a random bias. Only zeta has M draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcrepar.distributions.noise import Noise
from mcrepar.distributions.random import Source
from mcrepar.distributions.statistics import Monomial
from mcrepar.errors import MethodError
from mcrepar.nn.forwards.layer_rows import LOOKING
from mcrepar.nn.locks import locked
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.rank1 import RankOne
from mcrepar.nn.swap import frozen_weights

AT_ONCE = 30  # draws from which every noise has a distribution of its means, with their own mean and covariance (D2 RQ)


@dataclass(frozen=True, eq=False)
class Part:
    """What one random tensor adds to the output: sqrt(square) * zeta."""

    square: Tensor  # b^2, in the shape of the output
    noise: Noise  # of the whole tensor
    tensor: RandomTensor | None = None
    features: Tensor | None = None  # what multiplies it; None for a bias

    @property
    def spread(self) -> Tensor:
        """b, with the gradient 0 where it vanishes."""
        return self.square.clamp_min(torch.finfo(self.square.dtype).tiny).sqrt()

    def draw(self, draws: int, source: Source) -> Tensor:
        """zeta, (draws, *square.shape)."""
        return self.noise.project(source, draws, *self.square.shape)

    @property
    def cumulant(self) -> Tensor:
        """log E exp of what the tensor adds: sum_i k(h_i scale_i), k(t) = log E exp(t xi); Normal b^2 / 2."""
        if self.noise.stable:
            return 0.5 * self.square
        assert self.tensor is not None, "a part of a layer has one"
        scale = self.tensor.log_scale.exp()
        if self.features is None:
            found = self.noise.log_mgf(scale)
        else:
            rows = [self.noise.log_mgf(self.features * row) for row in scale]  # (batch, inputs) for every class
            found = None if rows[0] is None else torch.stack([row.sum(-1) for row in rows if row is not None], -1)
        if found is not None and bool(found.isfinite().all()):
            return found.expand_as(self.square)
        why = "there is no bound by cumulants for its noise"
        if found is not None:
            why = "a feature times a scale reaches 1, where E exp(u) is infinite under its noise"
        instead = "last_layer_draws=1000, or draws=M" if self.noise.projects else "draws=M, an average of M forwards"
        raise MethodError(f"last_layer_draws='exact' with {self.tensor.name}", why, instead)

    @property
    def variance(self) -> float:
        """E zeta^2."""
        return self.noise.moment(Monomial(2.0))


@dataclass(frozen=True, eq=False)
class Preactivation:
    """The distribution of the last layer's output given its input: u = loc + sum of the parts."""

    loc: Tensor  # a, (batch, ..., outputs)
    parts: tuple[Part, ...]  # one for independent Normal noise, one for every tensor of Radial noise

    def source(self, generator: torch.Generator | None) -> Source:
        """Of random numbers."""
        return Source(self.loc.dtype, self.loc.device, generator)

    def draw(self, draws: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """zeta of every part, without a graph: (draws, *loc.shape) each."""
        with torch.no_grad():
            return [part.draw(draws, self.source(generator)) for part in self.parts]

    def central_means(self, draws: int | None, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """mean_i (u_i - a) and mean_i (u_i - a)^2 over M draws, their expectations for None.

        sum_p b_p t1_p and sum_p b_p^2 t2_p (+ 2 b_1 b_2 t12): linear in t, which has no graph.
        """
        if draws is None:
            return torch.zeros_like(self.loc), sum(
                (p.square * p.variance for p in self.parts), torch.zeros_like(self.loc)
            )
        with torch.no_grad():
            means, cross = self._means(draws, generator)
        spreads = [part.spread for part in self.parts]
        first, second = torch.zeros_like(self.loc), torch.zeros_like(self.loc)
        for part, b, (t1, t2) in zip(self.parts, spreads, means, strict=True):
            first, second = first + b * t1, second + part.square * t2
        if cross is not None:
            second = second + 2 * spreads[0] * spreads[1] * cross
        return first, second

    def _means(
        self, draws: int, generator: torch.Generator | None
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """(mean zeta, mean zeta^2) of every part, and mean zeta_1 zeta_2."""
        if draws >= AT_ONCE:
            source = self.source(generator)
            means = [part.noise.project_means(source, draws, *part.square.shape) for part in self.parts]
            if len(means) == 1:
                return means, None
            std = math.sqrt(math.prod(part.variance for part in self.parts) / draws)
            return means, source.normal(*self.loc.shape, std=std)  # uncorrelated with all the others
        zetas = self.draw(draws, generator)
        cross = (zetas[0] * zetas[1]).mean(0) if len(zetas) == 2 else None
        return [(zeta.mean(0), zeta.square().mean(0)) for zeta in zetas], cross


class AffineOutput(nn.Module):
    """A network whose output is an affine map, number by number, of that of the network inside."""

    net: nn.Module

    def of_last_layer(self, u: Preactivation) -> Preactivation:
        """The distribution of the output, given that of `net`."""
        raise NotImplementedError


# ---- finding the layer


def capture(
    owners: Sequence[BayesianModule], run: Callable[[], Any], projects: bool = True
) -> tuple[Any, Preactivation]:
    """The output of a forward, and the distribution of that output given the input of the last dense layer.

    Args:
        owners: the Bayesian parts of the network.
        run: the forward.
        projects: whether outputs will be drawn; else cumulants will do, which more families have.
    """
    homes = {m: (owner, name) for owner in owners for name, m in owner.net.named_modules() if _dense(m)}
    for owner in owners:
        if owner.mode == "per_example" or frozen_weights(owner) is not None:
            what = "its layers run example by example" if owner.mode == "per_example" else "its weights are frozen"
            raise MethodError("last_layer_draws", what, "forward='weights' or 'local', outside of frozen(...)")
    seen: list[_Use] = []  # of dense layers
    mapped: list[_Use] = []  # of affine maps at the end of a part
    inside: dict[nn.Module, Tensor] = {}  # the outputs before those
    wrappers = [owner.net for owner in owners if isinstance(owner.net, AffineOutput)]

    def keep(layer: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: Any) -> None:
        features = args[0] if args else kwargs["input"]
        seen.append(_Use(layer, features, output, (_content(features), _content(output))))

    def keep_inside(net: nn.Module, args: object, output: Tensor) -> None:
        inside[net] = output

    def keep_mapped(wrapper: nn.Module, args: object, output: Tensor) -> None:
        before = inside[wrapper.get_submodule("net")]
        mapped.append(_Use(wrapper, before, output, (_content(before), _content(output))))

    def begin(net: nn.Module, args: object) -> None:
        """A network that runs again before it was tried takes its run of before back (forward="auto")."""
        seen[:] = [use for use in seen if homes[use.layer][0].net is not net or homes[use.layer][0].tried]

    def proper(hook: Callable[..., None]) -> Callable[..., None]:
        """The hook for forwards proper, not for those that only look at the rows of layers."""
        return lambda *args: None if LOOKING.get() else hook(*args)

    with locked(owner.slots.lock for owner in owners), ExitStack() as stack:  # a hook is seen by all threads
        for layer in homes:  # before the user's hooks, whose output is not the layer's
            stack.callback(layer.register_forward_hook(proper(keep), prepend=True, with_kwargs=True).remove)
        for wrapper in wrappers:
            stack.callback(wrapper.net.register_forward_hook(proper(keep_inside)).remove)
            stack.callback(wrapper.register_forward_hook(proper(keep_mapped), prepend=True).remove)
        for owner in owners:
            stack.callback(owner.net.register_forward_pre_hook(begin, prepend=True).remove)
        output = run()
    use = mapped[-1] if mapped and mapped[-1].output is output and not mapped[-1].changed else None
    last = output if use is None else use.features
    if not seen or seen[-1].output is not last or seen[-1].changed:
        raise MethodError(
            "last_layer_draws",
            "the network's output is not that of a dense layer (nn.Linear), as it is",
            "last_layer_draws=None with draws=M, or a network that ends with nn.Linear",
        )
    layer, name = seen[-1].layer, homes[seen[-1].layer][1]
    if sum(use.layer is layer for use in seen) > 1:
        raise _refusal(name, "it is used more than once, so its input depends on its weights")
    if not {"weight", "bias"} <= layer._parameters.keys():  # weight_norm, spectral_norm, any parametrization
        raise _refusal(name, "its weight or bias is parametrized, a function of other tensors")
    found = preactivation(layer, seen[-1].features, *homes[layer], projects)
    return output, found if use is None or not isinstance(use.layer, AffineOutput) else use.layer.of_last_layer(found)


@dataclass(frozen=True, eq=False)
class _Use:
    """One call of a dense layer or of an affine map, and what input and output held then."""

    layer: nn.Module
    features: Tensor
    output: Tensor
    contents: tuple[int | Tensor, int | Tensor]

    @property
    def changed(self) -> bool:
        """Whether either was written to since: x += 1, nn.ReLU(inplace=True)."""
        pairs = zip(self.contents, (self.features, self.output), strict=True)
        return any(not torch.equal(c, t) if isinstance(c, Tensor) else c != t._version for c, t in pairs)


def _content(tensor: Tensor) -> int | Tensor:
    """The number of writes to a tensor; under torch.inference_mode, where nobody counts, a copy."""
    return tensor.clone() if tensor.is_inference() else tensor._version


def _dense(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def preactivation(
    layer: nn.Module, features: Tensor, owner: BayesianModule, name: str, projects: bool = True
) -> Preactivation:
    """The distribution of a dense layer's output given its features, from the posteriors of its weight and bias."""
    tensors = {kind: _random(owner, f"{name}.{kind}".lstrip("."), projects) for kind in ("weight", "bias")}
    if not any(tensors.values()):
        raise _refusal(name, "neither its weight nor its bias is random")
    with torch.autocast(features.device.type, enabled=False):
        locs: dict[str, Any] = {k: getattr(layer, k) if q is None else q.loc for k, q in tensors.items()}
        h = features.to(locs["weight"].dtype)
        loc, parts = F.linear(h, locs["weight"], locs["bias"]), []
        for kind, tensor in tensors.items():
            if tensor is not None:
                variance, noise = torch.exp(2 * tensor.log_scale), tensor.posterior.noise
                if kind == "weight":
                    parts.append(Part(F.linear(h * h, variance), noise, tensor, h))
                else:
                    parts.append(Part(variance.expand_as(loc), noise, tensor))
        if len(parts) == 2 and all(part.noise.stable for part in parts):
            parts = [replace(parts[0], square=parts[0].square + parts[1].square)]
    return Preactivation(loc, tuple(parts))


def _random(owner: BayesianModule, name: str, projects: bool) -> RandomTensor | None:
    for names, tensor in random_tensors(owner).items():
        if name not in names:
            continue
        if isinstance(tensor, RankOne):
            raise _refusal(name, "its noise multiplies inputs and outputs")
        if len(names) > 1:
            raise _refusal(name, f"it is tied to {', '.join(n for n in names if n != name)}")
        form, noise = tensor.options.posterior.form, tensor.posterior.noise
        if tensor.loc is None or form.outer.name != "identity" or (projects and not noise.projects):
            family = tensor.options.posterior.name
            raise _refusal(
                name, f"under its posterior {family!r} the output has no distribution that can be drawn at once"
            )
        return tensor
    return None


def _refusal(name: str, why: str) -> MethodError:
    instead = "draws=M, or a Normal or Radial posterior for a last layer of its own"
    return MethodError(f"last_layer_draws with {name or 'the layer'}", why, instead)
