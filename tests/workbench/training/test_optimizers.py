"""Every optimizer of a training: what it decays, which rates it has, that it learns, and that a run goes on with it."""

import pytest
import torch
from torch import nn

from mcrepar import ParameterError, bayesian, prior
from mcrepar.likelihoods import Normal
from mcrepar.optim import NaturalGradient
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.learner import Learner
from mcrepar.workbench.training.optimizers import OPTIMIZERS, set_rates
from tests.workbench.training.tiny import config, log_of, model_of, write_images


def network(**options):
    torch.manual_seed(0)
    return bayesian(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)), **options)


def groups_of(optimizers):
    return [group for optimizer in optimizers for group in optimizer.param_groups]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("structure", ["weights", "rank1"])
def test_every_parameter_is_in_one_group_and_only_plain_ones_decay(name, structure):
    learned = {"prior": prior("normal", scale="learned")} if structure == "weights" else {}
    net, likelihood = network(structure=structure, **learned), Normal("learned")
    chosen = TrainConfig(optimizer=name, weight_decay=0.1, lr=0.05, scale_lr=0.2)
    found = groups_of(OPTIMIZERS[name](net, likelihood, chosen, 100))
    wanted = {id(p) for p in (*net.parameters(), *likelihood.parameters())}
    seen = [id(p) for group in found for p in group["params"]]
    assert sorted(seen) == sorted(wanted)
    plain = [group for group in found if group.get("kind", "plain") == "plain"]  # natural gradients decay no others
    decayed = {id(p) for group in plain if group.get("weight_decay") for p in group["params"]}
    random = {id(p) for n, p in net.named_parameters() if n.endswith((".log_scale", ".loc")) or ".learned." in n}
    assert decayed == {id(p) for p in net.parameters()} - random
    scales = {id(p) for n, p in net.named_parameters() if n.endswith(".log_scale")}
    assert {group["factor"] for group in found if any(id(p) in scales for p in group["params"])} == {0.2}


def test_rates_and_momentum_follow_the_schedule():
    found = OPTIMIZERS["sgd"](network(), Normal("learned"), TrainConfig(optimizer="sgd", scale_lr=0.1), 100)
    set_rates(found, 0.4, 0.85)
    sgd, adam = found
    assert [group["lr"] for group in groups_of(found)] == [0.4, pytest.approx(0.04)]
    assert sgd.param_groups[0]["momentum"] == 0.85
    assert adam.param_groups[0]["betas"] == (0.85, 0.999)
    natural, _ = OPTIMIZERS["natural"](network(), Normal("learned"), TrainConfig(optimizer="natural"), 100)
    set_rates([natural], 0.4, 0.85)
    assert isinstance(natural, NaturalGradient)
    assert {group.get("momentum", 0.9) for group in natural.param_groups} == {0.9}  # its average is debiased for it


def test_a_deterministic_network_has_one_sgd_in_the_place_of_natural_gradients():
    (only,) = OPTIMIZERS["natural"](nn.Linear(3, 1), Normal(1.0), TrainConfig(optimizer="natural"), 100)
    assert isinstance(only, torch.optim.SGD)


RATES = {"adam": (0.01, 2.0), "sgd": (0.05, 0.2), "natural": (0.2, 0.005)}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("structure", ["weights", "rank1"])
def test_a_training_learns_with_the_whole_kl_and_goes_on_where_it_was_stopped(name, structure, tmp_path, monkeypatch):
    """Two classes of images that any network tells apart; 80 % of 96 would be chance with probability 1e-9."""
    write_images(tmp_path, 120)
    lr, scale_lr = RATES[name]
    given = {
        "optimizer": name, "structure": structure, "posterior": "normal", "prior": "auto", "prior_options": {},
        "kl_schedule": "graves", "beta": 1.0, "lr": lr, "scale_lr": scale_lr, "weight_decay": 1e-4, "epochs": 6,
        "deterministic_epochs": 1, "threads": 1, "forward": "auto", "validation": 0.0,
        "checkpoint_minutes": 0.0,
    }  # fmt: skip
    whole = train(config(tmp_path, "whole", **given))
    assert float(log_of(whole)[-1]["accuracy"]) > 0.8

    objective, steps = Learner.objective, []

    def ended(self, *given):
        steps.append(1)
        if len(steps) == 40:  # of 48
            raise KeyboardInterrupt
        return objective(self, *given)

    monkeypatch.setattr(Learner, "objective", ended)
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, "part", **given))
    monkeypatch.undo()
    assert model_of(train(config(tmp_path, "part", **given, resume=True))) == model_of(whole)


def test_natural_rates_that_are_too_large_are_refused():
    with pytest.raises(ParameterError, match=r"--lr 0\.2 --scale-lr 0\.005"):
        TrainConfig(optimizer="natural").check()
    TrainConfig(optimizer="natural", lr=0.2, scale_lr=0.005).check()


def test_a_checkpoint_whose_optimizer_has_other_groups_is_refused(tmp_path, monkeypatch):
    write_images(tmp_path, 40)
    state, objective, steps = Learner.state, Learner.objective, []

    def older(self):
        found = state(self)
        groups = found["optimizer"][0]["param_groups"]
        return {**found, "optimizer": [{**found["optimizer"][0], "param_groups": groups[:1]}]}

    def ended(self, *given):
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return objective(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "state", older)
        patch.setattr(Learner, "objective", ended)
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path, "run", epochs=3, checkpoint_minutes=0.0))
    with pytest.raises(ParameterError, match="other parameter groups"):
        train(config(tmp_path, "run", epochs=3, checkpoint_minutes=0.0, resume=True))


def test_a_deterministic_network_moves_by_the_rate_times_the_mean_gradient():
    """As a plain parameter of NaturalGradient does: a constant gradient of 1, once the averages have settled."""
    plain, bnn = nn.Linear(3, 1, bias=False), bayesian(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1)), select="1.*")
    chosen, rate = TrainConfig(optimizer="natural", lr=0.2, scale_lr=0.005), 0.2
    steps = []
    for net, p in ((plain, plain.weight), (bnn, bnn.get_parameter("net.0.weight"))):
        first = OPTIMIZERS["natural"](net, Normal(1.0), chosen, 100)[0]
        for _ in range(200):
            set_rates([first], rate, 0.9)
            p.grad, before = torch.ones_like(p), p.detach().clone()
            first.step()
        steps.append(float((before - p.detach()).mean()))
    assert steps == pytest.approx([rate, rate], rel=1e-3)


def test_the_log_has_the_rate_of_the_schedule(tmp_path):
    write_images(tmp_path, 40)
    given = {"lr": 0.2, "scale_lr": 0.005, "lr_schedule": "constant", "posterior": "normal", "epochs": 2}
    rows = log_of(train(config(tmp_path, optimizer="natural", deterministic_epochs=1, **given)))
    assert [float(row["lr"]) for row in rows] == [0.2, 0.2]
