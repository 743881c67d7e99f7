"""The objective, usable in anyone's loop: the only place that scales a KL by beta and the size of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from mcrepar import checks
from mcrepar.distributions.random import new_seed
from mcrepar.errors import MethodError, ParameterError
from mcrepar.kl_schedules import beta_number
from mcrepar.likelihoods import LIKELIHOODS, Categorical, Likelihood, likelihood_of
from mcrepar.nn.batches import Output, copies, fitting, from_numpy, real_tensors, the_tensor
from mcrepar.nn.groups import shared_rows
from mcrepar.nn.last_layer import log_prob as last_layer_log_prob
from mcrepar.nn.locks import SEEDING, note_training
from mcrepar.nn.module import BayesianModule, random_parts
from mcrepar.nn.module import kl as total_kl
from mcrepar.nn.moments.moment_pass import check_moments, members_of, moment_pass
from mcrepar.nn.preactivation import capture
from mcrepar.nn.stacks import draw_stack, run_repeated, run_stack, stack_size, stacked
from mcrepar.validation import check_generator, whole_number


@dataclass(frozen=True, eq=False)
class Elbo:
    """One estimate of the objective.

    Args:
        loss: nll + beta * kl / data_size, to be minimised.
        nll: -log p(y | x, W), the mean over examples and draws.
        kl: KL(q || p), the sum over all random tensors, unscaled, in nats.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor


def elbo(
    bnn: nn.Module,
    likelihood: nn.Module | str,
    x: Any,
    y: Any,
    data_size: int | None = None,
    *,
    beta: float = 1.0,
    draws: int | str = 1,
    last_layer_draws: int | str | None = None,
    last_layer_method: str | None = None,
    generator: torch.Generator | None = None,
    output: Output = None,
) -> Elbo:
    """The negative evidence lower bound per example, estimated on a batch.

    loss = -mean_b log p(y_b | x_b, W) + beta * KL(q || p) / data_size

    Args:
        bnn: a Bayesian neural network, also wrapped (DistributedDataParallel) or a part of a larger one.
        likelihood: of y given the network's output: an object, or "categorical", "bernoulli", "normal" (with scale 1).
        x: the network's input: a tensor or array, a tuple or list of arguments, or a mapping of keyword arguments.
        y: a tensor or array as the likelihood takes it; soft labels (mixup, label smoothing) for classes too.
        data_size: the number of examples in the whole training set.
        beta: the weight of the KL; see `kl_weight`.
        draws: how many draws of all weights the nll is averaged over; "moments" takes E log p(y | output) from mean and
            variance of the output, carried through the network in one pass without sampling: an approximation.
        last_layer_draws: M draws of the last dense layer's output for each of them, at the cost of one; "exact" is
            M -> infinity, for Categorical a lower bound of it (by cumulants: Normal, Laplace and Logistic posteriors).
        last_layer_method: for Bernoulli "stream" (M draws), "quadrature" ("exact" only), "bound" or "taylor".
        generator: decides all noise, of the weights and of the network (dropout), on whatever device it is; None is the
            default RNG.
        output: what to take of a network that returns more than a tensor: an index, a key or a function.

    >>> from mcrepar import bayesian
    >>> from mcrepar.likelihoods import Normal
    >>> bnn = bayesian(nn.Linear(3, 1))
    >>> e = elbo(bnn, Normal(), torch.zeros(8, 3), torch.zeros(8, 1), data_size=1000)
    >>> e.loss.backward()
    >>> torch.allclose(e.loss, e.nll + e.kl / 1000)
    True
    """
    random = random_parts(bnn)
    if not isinstance(likelihood, Likelihood | str):
        wrong = f"elbo with a likelihood of type {type(likelihood).__name__}"
        raise ParameterError(wrong, "it is no Likelihood", "one such as 'categorical' or likelihoods.Categorical()")
    chosen = likelihood_of(likelihood)
    assert chosen is not None
    x, y = from_numpy(x, bnn), from_numpy(y, bnn)
    count = None if draws == "moments" else whole_number("draws", draws, other="'moments'")
    size, beta = _data_size(data_size, y, chosen), beta_number("beta", beta)
    check_generator(generator)
    with checks.step(bnn) as record:
        nll, kl = _nll_and_kl(bnn, random, chosen, x, y, count, last_layer_draws, last_layer_method, generator, output)
        loss = loss_of(nll, kl, size, beta)
    if record.wrong is not None:
        checks.skip_gradients(loss, record, [*bnn.parameters(), *chosen.parameters()])
    return Elbo(loss, nll, kl)


@overload
def loss_of(nll: Tensor, kl: Tensor, data_size: float, beta: float) -> Tensor: ...


@overload
def loss_of(nll: float, kl: float, data_size: float, beta: float) -> float: ...


def loss_of(nll: Any, kl: Any, data_size: float, beta: float) -> Any:
    """The loss per example, nll + beta * kl / data_size.

    Args:
        nll: the mean over examples.
        kl: the sum over weights.
        data_size: the number of examples in the whole training set, or the sum of their weights.
        beta: the weight of the KL.

    >>> loss_of(0.5, 200.0, 1000, 1.0)
    0.7
    """
    if isinstance(nll, Tensor):
        return torch.add(nll, kl, alpha=beta / data_size)
    return nll + beta * kl / data_size


def _mean_nll(log_prob: Tensor) -> Tensor:
    """The mean over examples; 0 where y leaves all of them out (voxels)."""
    return -log_prob.mean() if log_prob.numel() else -log_prob.sum()


def _nll_and_kl(
    bnn: nn.Module,
    random: list[BayesianModule],
    chosen: Likelihood,
    x: Any,
    y: Any,
    draws: int | None,
    last_layer_draws: int | str | None,
    last_layer_method: str | None,
    generator: torch.Generator | None,
    output: Output,
) -> tuple[Tensor, Tensor]:
    """The two parts of the objective, with the checks of what goes in and comes out."""
    _check_input(x)
    args, kwargs = _arguments(x)
    if draws is None:
        nll = _expected_nll(bnn, chosen, (args, kwargs), y, output, last_layer_draws)
        return nll, total_kl(bnn, generator=generator)
    nlls, eager = [], not torch.compiler.is_compiling()
    if not eager and generator is not None:
        torch._dynamo.graph_break(
            msg="elbo(generator=...) seeds the default RNG, which no graph does: leave out fullgraph=True, or call "
            "torch.manual_seed before the step"
        )
    inner = bnn.module if isinstance(bnn, nn.parallel.DistributedDataParallel) else bnn
    shared = eager and inner is random[0]  # another wrapper may run it in a region of its own
    with shared_rows() if shared else contextlib.nullcontext():
        alike = eager and draws > 1 and last_layer_draws is None and type(chosen) in LIKELIHOODS.values()
        stack = _outputs_at_once(bnn, draws, args, kwargs, output, generator) if alike else None
        for _ in range(draws if stack is None else 1):
            if stack is not None:
                chosen.check(stack[0], y)
                u, y = stack.flatten(0, 1), y.expand(draws, *y.shape).flatten(0, 1)
            else:
                again, named = copies(args, kwargs) if draws > 1 else (args, kwargs)
                with _default_rng_from(generator, bnn):
                    if last_layer_draws is None:
                        with fitting("elbo", bnn, args, kwargs) if eager else contextlib.nullcontext():
                            out = bnn(*again, **named)
                        u = the_tensor(out, output)
                    else:
                        bound = last_layer_draws == "exact" and isinstance(chosen, Categorical)
                        run = partial(bnn, *again, **named)
                        u, last = capture(random, lambda run=run: the_tensor(run(), output), not bound)  # type: ignore[misc]
                chosen.check(u, y)
            if last_layer_draws is None:
                log_prob = chosen.log_prob(u.float() if u.dtype.itemsize < 4 else u, y)
            else:
                log_prob = last_layer_log_prob(chosen, last, y, last_layer_draws, last_layer_method, generator)
            nlls.append(_mean_nll(log_prob))
            checks.refuse(
                lambda found=log_prob: found.isfinite().all().logical_not(),  # type: ignore[misc]
                partial(_not_finite, bnn, chosen, x, u, log_prob),
                "the nll is not finite",
                nlls[-1].detach,
            )
        return nlls[0] if len(nlls) == 1 else torch.stack(nlls).mean(), total_kl(bnn, generator=generator)


def _outputs_at_once(
    bnn: nn.Module,
    draws: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Output,
    generator: torch.Generator | None,
) -> Tensor | None:
    """The outputs of all draws, (draws, examples, ...); None where they run one after the other."""
    if not isinstance(bnn, BayesianModule) or bnn.members:
        return None
    if bnn.mode != "weights" and (bnn.mode != "auto" or bnn.examplewise):  # examples have noise of their own
        with fitting("elbo", bnn, args, kwargs):
            return run_repeated(bnn, draws, args, kwargs, output) if generator is None else None
    if stack_size(bnn, args, kwargs, output) < draws:
        return None
    note_training(bnn, bnn.slots.lock)
    if generator is None:
        return run_stack(bnn, draw_stack(bnn, draws), output, args, kwargs)
    device = next(bnn.parameters()).device
    seeds = [new_seed(generator) for _ in range(draws)]
    each = [bnn.draw(torch.Generator(device).manual_seed(seed)) for seed in seeds]
    return run_stack(bnn, stacked(each), output, args, kwargs)


def _expected_nll(
    bnn: nn.Module, likelihood: Likelihood, call: Any, y: Tensor, output: Output, last_layer_draws: object
) -> Tensor:
    """-E log p(y | output), the mean over examples and members, from mean and variance of the output."""
    if last_layer_draws is not None:
        why = "moments average over the last layer too"
        raise MethodError(f"elbo(draws='moments', last_layer_draws={last_layer_draws!r})", why, "either of them")
    check_moments(bnn)
    (args, kwargs), members, total = call, members_of(bnn), []
    for member in range(members):
        fits = contextlib.nullcontext() if torch.compiler.is_compiling() else fitting("elbo", bnn, args, kwargs)
        with moment_pass(bnn, output, member) as run, fits:
            mean, variance = (t.float() if t.dtype.itemsize < 4 else t for t in run(*args, **kwargs)[:2])
        likelihood.check(mean, y)
        log_prob = likelihood.expected_log_prob(mean, variance, y)
        total.append(_mean_nll(log_prob))
        checks.refuse(
            lambda found=log_prob: found.isfinite().all().logical_not(),  # type: ignore[misc]
            partial(_not_finite, bnn, likelihood, args or kwargs, mean, log_prob),
            "the nll is not finite",
            total[-1].detach,
        )
    return torch.stack(total).mean()


@contextlib.contextmanager
def _default_rng_from(generator: torch.Generator | None, bnn: nn.Module) -> Iterator[None]:
    """The default RNGs of the network's devices, seeded by one number of `generator`; afterwards as they were before.

    So that whatever a forward draws (weights, outputs, signs, dropout) is decided, in wrapped networks and in
    checkpointed regions too, for which torch restores its default RNG. No other device is seeded, as
    torch.manual_seed would do.
    """
    if generator is None:
        yield
        return
    devices = {p.device for p in bnn.parameters() if p.device.type != "cpu"}
    kind = next((device.type for device in devices), "cuda")
    seed = new_seed(generator)
    with SEEDING, torch.random.fork_rng(devices=list(devices), device_type=kind):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            state = torch.Generator(device).manual_seed(seed).get_state()
            torch.get_device_module(device).set_rng_state(state, device)
        yield


def _arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(x, Mapping):
        return (), dict(x)
    several = isinstance(x, tuple | list) and not hasattr(x, "_fields")  # a PackedSequence is one argument
    return (tuple(x), {}) if several else ((x,), {})


def _check_input(x: Any) -> None:
    for name, tensor in real_tensors(x):
        checks.refuse(
            lambda found=tensor: found.isnan().any(),  # type: ignore[misc]
            partial(_missing, name, tensor),
            f"{name} is NaN",
            lambda found=tensor: found.detach().sum(),  # type: ignore[misc]
        )


def _missing(name: str, tensor: Tensor) -> ParameterError:
    where = tuple(tensor.isnan().nonzero()[0].tolist())
    return ParameterError("elbo", f"{name} is NaN at {where}", "data without missing values")


def _data_size(data_size: int | None, y: object, likelihood: Likelihood) -> int:
    instead = "data_size=len(dataset), or the number of its voxels where each counts as an example"
    if data_size is None:
        raise ParameterError(
            "elbo without data_size",
            "the KL is divided by the number of examples in the whole training set, which a batch does not tell",
            instead,
        )
    size = whole_number("data_size", data_size)
    if isinstance(y, Tensor) and y.dim() and size < (count := likelihood.examples(y)):
        raise ParameterError(f"data_size={size}", f"the batch alone has {count} examples", instead)
    return size


def _not_finite(bnn: nn.Module, likelihood: Likelihood, x: Any, output: Tensor, log_prob: Tensor) -> ParameterError:
    """Which tensor it was: a parameter, else the input, else the output, else the likelihood."""
    named: dict[str, Tensor] = dict(bnn.named_parameters())
    named |= {f"likelihood.{name}": p for name, p in likelihood.named_parameters()}
    inputs = dict(real_tensors(x))
    named |= inputs | {"the network's output": output}
    wrong = next((name for name, t in named.items() if not bool(t.isfinite().all())), "log p(y | output) alone")
    value = log_prob[~log_prob.isfinite()][0].item()
    instead = "the parameters as they are (nothing was changed) with a smaller step, or the last good ones"
    if wrong in inputs:
        instead = "finite data"
    return ParameterError("elbo", f"the nll is {-value:g}; the first tensor that is not finite: {wrong}", instead)
