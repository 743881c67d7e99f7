import pytest
import torch

from mcrepar.inspect.graph import saved_bytes
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.learner import Learner
from mcrepar.workbench.training.task import Task
from tests.workbench.training.tiny import config, write_numbers

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
