import math
from dataclasses import astuple

import pytest
import torch
from torch import nn

from mcrepar import bayesian
from mcrepar.data.dataset import Split
from mcrepar.inspect.graph import saved_bytes
from mcrepar.likelihoods import Categorical, Normal
from mcrepar.nn.swap import run as run_on
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.learner import BATCH, Learner, validate
from mcrepar.workbench.training.task import Task
from tests.workbench.training.tiny import config, write_numbers


def as_is(part: Split):
    return part.x, part.y if not part.y.is_floating_point() else part.y[:, None]


def test_without_noise_it_is_the_cross_entropy_and_the_accuracy():
    torch.manual_seed(0)
    net, x = nn.Linear(3, 4), torch.randn(BATCH + 7, 3)
    split = Split(x, torch.arange(len(x)) % 4)
    with torch.no_grad():
        out = net(x)
    nll = nn.functional.cross_entropy(out, split.y).item()
    wanted = nll, -nll, (out.argmax(1) == split.y).double().mean().item()
    assert astuple(validate(net, Categorical(), split, as_is, 5, World())) == pytest.approx(wanted, rel=1e-5)
    bnn = bayesian(net, start_std=1e-12)
    assert astuple(validate(bnn, Categorical(), split, as_is, 3, World())) == pytest.approx(wanted, rel=1e-5)
    assert bnn.training


def test_the_nll_is_the_mean_over_draws_and_density_and_score_are_those_of_their_mean():
    torch.manual_seed(0)
    bnn, x = bayesian(nn.Linear(3, 4), start_std=2.0), torch.randn(50, 3)
    split = Split(x, torch.arange(50) % 4)
    torch.manual_seed(5)
    got = validate(bnn, Categorical(), split, as_is, 4, World())
    torch.manual_seed(5)
    with torch.no_grad():
        outs = [run_on(bnn, bnn.draw(), x) for _ in range(4)]
    nll = sum(nn.functional.cross_entropy(out, split.y).item() for out in outs) / 4
    mean = sum(out.softmax(1) for out in outs)
    lpd = (mean / 4)[torch.arange(50), split.y].log().mean().item()
    assert astuple(got) == pytest.approx((nll, lpd, (mean.argmax(1) == split.y).double().mean().item()), rel=1e-5)
    assert got.lpd > -got.nll + 0.1, "averaging helps"


def test_regression_has_a_root_mean_squared_error():
    net = nn.Linear(2, 1)
    nn.init.zeros_(net.weight)
    nn.init.constant_(net.bias, 3.0)
    split = Split(torch.zeros(4, 2), torch.tensor([3.0, 3.0, 5.0, 1.0]))
    found = validate(net, Normal(1.0), split, as_is, 1, World())
    assert found.score == pytest.approx(math.sqrt(2))
    assert found.nll == pytest.approx(1.0 + 0.5 * math.log(2 * math.pi))


# ---- gradient accumulation, the paper's baseline

M = 6


def linear(folder, **options) -> tuple[Learner, torch.Tensor, torch.Tensor]:
    """A linear regression with known noise, of which everything has a closed form, and a batch."""
    write_numbers(folder)
    given = {
        "model": "fcnet", "model_options": {"hidden": []}, "augment": "none", "validation": 0.0, "noise": 60.0,
        "posterior": "normal", "prior_options": {}, "kl_schedule": "graves", "beta": 1.0, "initial_std": 0.5,
    }  # fmt: skip
    c = config(folder, **{**given, **options})
    c.check()
    task = Task.of(c, World())
    return Learner(c, task, World()), *task.batch(torch.arange(12), 0)


def gradients(learner: Learner) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in learner.net.parameters()])
    learner.net.zero_grad()
    return found


def accumulated(learner: Learner, x, y) -> torch.Tensor:
    for _ in range(learner.iterations):
        learner.backward(learner.objective(x, y, 0))
    return gradients(learner)


def test_accumulated_gradients_are_those_of_all_draws_in_one_graph(tmp_path):
    """On the same noise: the M forwards, and the M weights of the KL, in one mean that autograd differentiates."""
    learner, x, y = linear(tmp_path, gradient_accumulation=M)
    assert learner.iterations == M
    torch.manual_seed(3)
    got = accumulated(learner, x, y)
    torch.manual_seed(3)
    parts = [learner.objective(x, y, 0) for _ in range(M)]
    (sum(e.nll for e in parts) / M).backward(retain_graph=True)
    wanted = gradients(learner)
    for random in learner.bayesian.latents.values():  # prior N(0, 1): dKL/dloc = w, from which the noise is known
        drawn = torch.stack([torch.autograd.grad(e.kl, random.loc, retain_graph=True)[0] for e in parts])
        xi = ((drawn - random.loc) / random.log_scale.exp()).detach()
        w = random.loc + random.log_scale.exp() * xi  # (M, ...), as direct has it
        (((w**2).sum() / 2 / M - random.log_scale.sum()) / len(learner.task.train)).backward()
    wanted = wanted + torch.cat([torch.zeros(0) if p.grad is None else p.grad.flatten()
                                 for p in learner.net.parameters()])  # fmt: skip
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_accumulated_gradients_are_right_in_the_mean_and_quieter_the_more_draws(tmp_path):
    """Against the closed form of likelihood and KL; 16 numbers at 5 standard errors: a false alarm in 100,000 runs."""
    steps, found = 200, {}
    for m in (1, 8):
        learner, x, y = linear(tmp_path / str(m), gradient_accumulation=m)
        torch.manual_seed(0)
        found[m] = torch.stack([accumulated(learner, x, y) for _ in range(steps)]).double()
    bnn, units = learner.bayesian, learner.net.net
    weight, bias = bnn.latents.values()
    mean = units.mean + units.std * (x @ weight.loc.T + bias.loc)
    variance = units.std**2 * ((x**2) @ (2 * weight.log_scale).exp().T + (2 * bias.log_scale).exp())
    nll = (((y - mean) ** 2 + variance) / (2 * 60.0**2)).mean()
    (nll + bnn.kl("exact") / len(learner.task.train)).backward()
    exact = gradients(learner).double()
    for m, each in found.items():
        error = each.std(0) / steps**0.5
        assert ((each.mean(0) - exact).abs() < 5 * error).all(), m
    ratio = (found[1].var(0) / found[8].var(0)).log().mean().exp().item()
    assert 4.5 < ratio < 14, "a mean of 8 draws"


def test_one_iteration_is_alive_at_a_time(tmp_path):
    """What autograd holds at most while a step accumulates is what one draw holds, whatever M."""
    learner, x, y = linear(tmp_path, gradient_accumulation=50)
    one = saved_bytes(lambda: learner.objective(x, y, 0).loss)
    assert saved_bytes(lambda: torch.stack([learner.objective(x, y, 0).loss for _ in range(3)]).sum()) > 2 * one
    e = learner.objective(x, y, 0)
    kept = learner.backward(e)
    assert kept.loss.grad_fn is None
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        e.loss.backward()


def test_the_network_is_run_once_while_it_is_deterministic(tmp_path):
    learner, _, _ = linear(tmp_path, gradient_accumulation=5, deterministic_epochs=1)
    assert learner.iterations == 1
    learner.become_bayesian()
    assert learner.iterations == 5
