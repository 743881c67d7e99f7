import pytest
import torch

import mcrepar
from experiments import training_step
from experiments.training_step import TrainingStep, device, looped_kl
from tests.conftest import example_posterior, example_prior


@pytest.mark.parametrize("name", ["normal", "radial", "laplace"])
def test_the_loop_estimates_the_kl_up_to_a_constant(name):
    """The gradient of the mean over many draws is that of the exact KL; |z| < 5 by chance 6e-7 per number."""
    q, p = example_posterior(name, 3, requires_grad=True), example_prior("normal", loc=0.2)
    exact = torch.autograd.grad(mcrepar.kl_divergence(q, p, "exact"), q.learned)
    for entropy in ("exact", "mc"):
        torch.manual_seed(0)
        found = [torch.autograd.grad(looped_kl(q, p, 5, entropy), q.learned) for _ in range(100)]
        for k, gradient in enumerate(exact):
            sample = torch.stack([g[k] for g in found])
            error = sample.std(0) / len(found) ** 0.5
            assert bool(((sample.mean(0) - gradient).abs() < 5 * error).all())


def test_what_stands_between_steps():
    """Two learned numbers per weight, each with Adam's two averages (and a step count), and no norm layer here."""
    step = TrainingStep("small_conv", (8, 8))
    parameters = list(step.bnn.parameters())
    assert sum(p.numel() for p in parameters) == 2 * step.weights
    assert step.standing == 4 * (2 * step.weights) * 3 + 4 * len(parameters)


def test_the_peak_grows_by_what_a_draw_keeps():
    step = TrainingStep("small_conv", (8, 8))
    few, many = (step.peak(4, lambda m=m: step.looped(m)) for m in (8, 16))
    assert (many - few) / 8 == pytest.approx(8 * step.weights, rel=0.05)
    ours = [step.peak(4, lambda m=m: step.kl("stats", m)) for m in (100, 10**6)]
    assert ours[0] == ours[1] < few


def test_a_step_changes_the_parameters():
    step = TrainingStep("small_conv", (8, 8))
    before = [p.detach().clone() for p in step.bnn.parameters()]
    step.run(4, lambda: step.kl("exact"))
    assert all(not torch.equal(a, b) for a, b in zip(before, step.bnn.parameters(), strict=True))


def test_a_gpu_is_used_if_there_is_one(monkeypatch):
    assert device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device().type == "cuda"


def test_data_and_parameters_are_on_the_device(monkeypatch):
    moved = []
    monkeypatch.setattr(training_step, "device", lambda: torch.device("meta"))
    monkeypatch.setattr(TrainingStep, "run", lambda self, batch, kl: moved.extend(self.data(batch)))
    step = TrainingStep("small_conv", (8, 8))
    assert {t.device.type for t in (*moved, *step.bnn.parameters())} == {"meta"}


def test_the_peak_of_a_gpu_is_its_own(monkeypatch):
    step, order = TrainingStep("small_conv", (8, 8)), []
    step.device = torch.device("cuda")
    monkeypatch.setattr(step, "run", lambda batch, kl: order.append("run"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: order.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 123)
    assert step.peak(4, lambda: step.kl("exact")) == 123
    assert order == ["reset", "run"]


@pytest.mark.parametrize("draws", [1, 3])
def test_accumulation_averages_over_fresh_draws(draws, monkeypatch):
    step = TrainingStep("small_conv", (8, 8))
    forwards, before = [], [p.detach().clone() for p in step.bnn.parameters()]
    monkeypatch.setattr(step, "looped", lambda m: forwards.append(m) or torch.zeros(()))
    step.accumulate(4, draws)
    assert forwards == [1] * draws
    assert all(not torch.equal(a, b) for a, b in zip(before, step.bnn.parameters(), strict=True))
    assert all(p.grad is None for p in step.bnn.parameters())
