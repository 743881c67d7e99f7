import math
from itertools import product

import pytest
import torch

from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.schedules import RATES, beta_schedule, final_beta, generator_of, rate, seed_of


@pytest.mark.parametrize("steps", [4, 10, 37, 1000])
def test_onecycle_is_that_of_torch(steps):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps)
    for step in range(steps):
        factor, beta1 = rate("onecycle", step, steps)
        group = optimizer.param_groups[0]
        assert 0.02 * factor == pytest.approx(group["lr"], rel=1e-9)
        assert beta1 == pytest.approx(group["betas"][0], rel=1e-9)
        optimizer.step()
        if step < steps - 1:
            schedule.step()


def test_cosine_is_that_of_torch():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for step in range(20):
        assert rate("cosine", step, 20)[0] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        schedule.step()


def test_step_falls_twice():
    assert [rate("step", k, 8)[0] for k in (0, 3, 4, 5, 6, 7)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_runs_have_a_rate(name, steps):
    for step in range(steps):
        factor, beta1 = rate(name, step, steps)
        assert 0 < factor <= 1
        assert 0 < beta1 < 1


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, 1.0, 1.0),
        ({"kl_schedule": "constant", "beta": 0.2}, 0.2, 0.2),
        ({"kl_schedule": "linear", "beta": 0.2}, 0.0, 0.2),
        ({"kl_schedule": "cyclic", "beta": 0.2}, 0.0, 0.2),
        ({"kl_schedule": "paper", "batch_size": 7}, 7.0, 7.0),
    ],
)
def test_the_weight_of_the_kl_ends_where_validation_measures(options, first, last):
    config = TrainConfig(**options)
    beta = beta_schedule(config, steps=100, batches=10)
    assert (beta(0), beta(99)) == pytest.approx((first, last))
    assert final_beta(config) == last


def test_linear_warms_up_over_its_share_of_steps():
    beta = beta_schedule(TrainConfig(kl_schedule="linear", kl_warmup=0.5), steps=100, batches=10)
    assert (beta(25), beta(50)) == pytest.approx((0.5, 1.0))


def test_blundell_has_the_mean_one_over_an_epoch():
    config = TrainConfig(kl_schedule="blundell")
    beta = beta_schedule(config, steps=100, batches=10)
    assert math.fsum(beta(k) for k in range(10)) / 10 == pytest.approx(1.0)
    assert final_beta(config) == 1.0


def test_seeds_differ_by_every_word():
    places = list(product((0, 1), ("noise", "order"), ((1, 2), (2, 1), (12,), (1, 22))))
    seeds = [seed_of(seed, purpose, *where) for seed, purpose, where in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_in_every_process():
    """A fixed number: another one would change what a run becomes that is resumed by a later version."""
    assert seed_of(0, "noise", 3, 1) == 8066431987024229991
    a, b = (torch.randn(3, generator=generator_of(0, "order", 5)) for _ in range(2))
    assert torch.equal(a, b)
