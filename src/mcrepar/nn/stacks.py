"""Stacks of draws: a small network runs on many samples of its weights at once, by vmap.

Dense layers one after the other are products of stacks of matrices, without vmap, which would cost twice as much.

Whether a network can is tried once, on a copy, so that nothing of the network itself changes or happens twice. What
draws random numbers, keeps something of its forward, decides by the values of tensors, or has no batching rule (LSTM)
runs on one sample after the other, and so does a network with hooks, which would see stacks, or one that is compiled.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from mcrepar.nn.batches import Batches, Output, copies, fitting, the_tensor
from mcrepar.nn.calibration import complete
from mcrepar.nn.checkpointing import running
from mcrepar.nn.groups import SMALL, Group
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.prediction_passes import one_draw
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.swap import Draw, Guard, alone, frozen_weights, run, swapped

MAX_BYTES = 2**26  # of the weights and activations of a stack
LARGE = 2**20  # bytes of an activation from which one sample keeps a core busy by itself
CACHE = 2**19  # bytes of the largest activation of draws that run together: half of a core's cache
HELD = 3  # of the largest activation that a forward holds at once
ELEMENTWISE = {nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Sigmoid, nn.Softplus, nn.LeakyReLU, nn.Identity}


def draws_at_once(bnn: nn.Module, batches: Batches, draws: int, output: Output) -> int:
    """How many draws of a prediction run at once: some of a small network, which is tried on the first batch."""
    if draws == 1 or not isinstance(bnn, BayesianModule) or _weights(bnn) > SMALL:
        return 1
    first = next(iter(batches), None)
    return 1 if first is None else min(draws, stack_size(bnn, *first, output))


def outputs(
    bnn: nn.Module, batches: Batches, first: int, draws: int, generator: torch.Generator | None, output: Output
) -> list[Tensor]:
    """The outputs of some draws, numbered from `first`, for every batch: (draws, examples, ...) each."""
    if draws == 1 or not isinstance(bnn, BayesianModule):
        with one_draw(bnn, generator, first) as call:
            return _of_batches(bnn, batches, lambda args, kwargs: the_tensor(call(*args, **kwargs), output)[None])
    stack = draw_stack(bnn, draws, generator, first)
    fixed: dict[str, Tensor] = {}
    if any(isinstance(module, _NormBase) for module in bnn.net.modules()):  # statistics, the same for all draws
        whole = complete(bnn, {name: w[0] for name, w in stack.items()})
        fixed = {name: t for name, t in whole.items() if name not in stack}
    return _of_batches(bnn, batches, lambda args, kwargs: run_stack(bnn, stack, output, args, kwargs, fixed))


def _of_batches(bnn: nn.Module, batches: Batches, run: Callable[[Any, Any], Tensor]) -> list[Tensor]:
    """The outputs for every batch, (draws, examples, ...), of inputs that fit."""
    found = []
    for args, kwargs in batches:
        with fitting("predict(bnn, x)", bnn, args, kwargs):
            found.append(run(args, kwargs))
        batches.check_rows(found[-1].shape[1], args, kwargs)
    return found


def stack_size(bnn: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Output) -> int:
    """How many draws of a network run at once on these arguments; 1 where they run one after the other.

    Args:
        bnn: any network.
        args: of its forward, by position.
        kwargs: of its forward, by name.
        output: what to take of what it returns.
    """
    if not isinstance(bnn, BayesianModule) or frozen_weights(bnn) is not None or bnn.calibration.kept is not None:
        return 1
    if bnn.members > 1 and bnn.calibration.layers:  # a stack has one set of norm statistics
        return 1
    with alone(bnn):  # in the mode in which it will run
        leaves, _ = pytree.tree_flatten((args, dict(kwargs)))
        shapes = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        look = [(m, m.training, vars(m).get("forward")) for m in bnn.net.modules()], shapes, torch.is_grad_enabled()
        if _refused(bnn) or _weights(bnn) > SMALL:
            return 1
        if bnn.groups.tried is None or bnn.groups.tried[0] != look:
            bnn.groups.tried = look, _largest(bnn, args, kwargs, output)
    largest, weights = bnn.groups.tried[1], 8 * _weights(bnn)
    return 1 if largest is None or largest > LARGE else max(1, MAX_BYTES // (weights + HELD * largest))


def draw_stack(
    bnn: BayesianModule, draws: int, generator: torch.Generator | None = None, first: int = 0
) -> dict[str, Tensor]:
    """Samples of all weights, (draws, *shape) each, the same as one draw after the other."""
    layout = bnn.groups.of(bnn)
    if len(layout.drawn) == 1 and not layout.drawn_apart and isinstance(layout.drawn[0], Group):
        return layout.drawn[0].draw(generator, draws)
    return stacked([bnn.draw(generator, (first + k) % max(bnn.members, 1)) for k in range(draws)])


def stacked(draws: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Samples one after the other as a stack."""
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


def run_stack(
    bnn: BayesianModule, stack: Draw, output: Output, args: Any, kwargs: Any, fixed: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The network's output for every sample, (draws, examples, ...); one after the other where this batch differs."""
    own = copies(args, kwargs)  # to which the network may write before it turns out not to run on a stack

    def one(weights: Draw) -> Tensor:
        return the_tensor(swapped(bnn, {**weights, **(fixed or {})}, *own), output)

    largest, count = bnn.groups.tried[1] if bnn.groups.tried is not None else None, len(next(iter(stack.values())))
    together = min(count, max(1, CACHE // largest)) if largest else count
    layers = None if fixed or kwargs or output is not None or len(args) != 1 else _dense_layers(bnn.net)
    with alone(bnn), running(None), contextlib.suppress(RuntimeError, ValueError):
        if layers is not None and args[0].dim() == 2 and bnn.slots.check(bnn.net):
            return _dense(layers, stack, args[0], count, max(1, together // 2))  # larger memory has fresh pages
        found: Tensor = vmap(one, randomness="error", chunk_size=together)(dict(stack))
        return found
    outs = []
    for k in range(count):
        again, named = copies(args, kwargs)
        outs.append(run(bnn, {**{name: w[k] for name, w in stack.items()}, **(fixed or {})}, *again, **named))
    return torch.stack([the_tensor(out, output) for out in outs])


def run_repeated(bnn: BayesianModule, draws: int, args: Any, kwargs: Any, output: Output) -> Tensor | None:
    """The output for every draw, (draws, examples, ...), where examples have noise of their own: the batch, repeated.

    None where examples might meet or share a sample: beyond dense and elementwise layers, or before it is known.
    """
    layers = None if kwargs or output is not None or len(args) != 1 or _refused(bnn) else _dense_layers(bnn.net)
    if layers is None or bnn.mode not in ("auto", "local") or args[0].dim() != 2 or not bnn.slots.check(bnn.net):
        return None
    if bnn.mode == "auto" and not (
        bnn.tried and {n for names in random_tensors(bnn) for n in names} <= bnn.examplewise
    ):
        return None
    width = 2 * args[0].shape[1] + sum(layer.out_features for _, layer in layers if isinstance(layer, nn.Linear))
    if draws * len(args[0]) * width * args[0].element_size() * HELD > MAX_BYTES:
        return None
    found: Tensor = bnn(args[0].repeat(draws, 1)).unflatten(0, (draws, -1))
    return found


def _dense_layers(net: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The layers by name of a network that is a row of dense and elementwise layers, a dense one first; else None."""
    every = [
        (name, layer) for name, layer in net.named_modules(remove_duplicate=False) if type(layer) is not nn.Sequential
    ]
    known = all(type(layer) in ELEMENTWISE or type(layer) is nn.Linear for _, layer in every)
    plain = known and not any("forward" in vars(layer) for layer in net.modules())
    return every if plain and every and type(every[0][1]) is nn.Linear else None


def _dense(layers: list[tuple[str, nn.Module]], stack: Draw, x: Tensor, draws: int, together: int) -> Tensor:
    """The output of such a network for every sample, (draws, examples, outputs), some of them `together`."""
    steps: list[tuple[nn.Module, Sequence[Tensor], Sequence[Tensor]]] = []  # a layer, matrices and biases in cuts
    for name, layer in layers:
        own = [(f"{name}.{last}".lstrip("."), layer._parameters.get(last)) for last in ("weight", "bias")]
        weight, bias = (stack.get(key, fixed) for key, fixed in own)
        turned = None if weight is None else weight.expand(draws, -1, -1).mT
        rows = None if bias is None else bias.expand(draws, -1).unsqueeze(1)
        cuts: list[Sequence[Tensor]] = [() if t is None else torch.split(t, together) for t in (turned, rows)]
        steps.append((layer, cuts[0], cuts[1]))
    outs = []
    for k in range(len(steps[0][1])):
        h = x.expand(len(steps[0][1][k]), -1, -1)
        for layer, matrices, biases in steps:
            if matrices:
                h = torch.baddbmm(biases[k], h, matrices[k]) if biases else torch.bmm(h, matrices[k])
            else:
                h = layer(h)
        outs.append(h)
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _weights(bnn: BayesianModule) -> int:
    return sum(tensor.log_scale.numel() for tensor in bnn.groups.of(bnn).tensors)


def _refused(bnn: BayesianModule) -> bool:
    """Whether something would see stacks where it expects samples: a hook, a compiled graph, autocast."""
    if torch.is_autocast_enabled(next(bnn.parameters()).device.type):  # which vmap follows for some operations only
        return True
    for module in bnn.net.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        compiled = module._compiled_call_impl is not None or "_orig_mod" in module._modules
        if compiled or any(not isinstance(hook, Guard) for hook in hooks):
            return True
    return bool(bnn._forward_hooks or bnn._forward_pre_hooks or bnn._compiled_call_impl)


def _largest(bnn: BayesianModule, args: Any, kwargs: Any, output: Output) -> int | None:
    """The bytes of the largest tensor of a forward on one sample; None where the network does not run on a stack."""
    seen = _Largest()
    try:
        twin, (args, kwargs) = copy.deepcopy(bnn), copies(args, kwargs)
        before, stack = _state(twin.net), {name: torch.stack([w, w]) for name, w in twin.mean().items()}
        with running(None), seen:
            vmap(lambda one: the_tensor(swapped(twin, one, args, kwargs), output), randomness="error")(stack)
    except Exception:  # whatever it is, a forward on one sample tells it as it is
        return None
    return seen.nbytes if _state(twin.net) == before else None


def _state(net: nn.Module) -> list[Any]:
    """What a forward may leave behind in a network: other attributes, longer lists, written buffers."""
    attributes = [value for module in net.modules() for value in vars(module).values()]
    sizes = [len(value) for value in attributes if isinstance(value, list | dict | set)]
    return [[id(value) for value in attributes], sizes, [buffer._version for buffer in net.buffers()]]


class _Largest(TorchFunctionMode):
    """Looks at the tensors of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's value."""
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.nbytes = max(self.nbytes, out.numel() * out.element_size())
        return out
