import pytest
import torch

from mcrepar.experiments.timed_steps import accumulate, median_seconds
from mcrepar.experiments.training_step import TrainingStep


def test_cases_take_turns():
    order = []
    seconds = median_seconds({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2)
    assert order == list("ababab")
    assert set(seconds) == {"a", "b"}
    assert min(seconds.values()) >= 0


@pytest.mark.parametrize("draws", [1, 3])
def test_accumulation_averages_over_fresh_draws(draws, monkeypatch):
    step = TrainingStep("small_conv", (8, 8))
    forwards, before = [], [p.detach().clone() for p in step.bnn.parameters()]
    monkeypatch.setattr(step, "looped", lambda m: forwards.append(m) or torch.zeros(()))
    accumulate(step, 4, draws)
    assert forwards == [1] * draws
    assert all(not torch.equal(a, b) for a, b in zip(before, step.bnn.parameters(), strict=True))
    assert all(p.grad is None for p in step.bnn.parameters())
