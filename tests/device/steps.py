"""What a training step, a prediction and storing ask of a device, by budgets, on the device that counts."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mcrepar
from mcrepar.divergence.methods import METHODS
from mcrepar.models import model
from mcrepar.nn.groups import shared_rows
from tests.device.fake_device import GPU, Counted, fake_device, moved

PRIORS = {"normal": "normal", "radial": "normal", "laplace": "normal", "gamma": "gamma", "lognormal": "lognormal"}
ADAPTIVE = "quad"  # its nodes follow from the values, for which it has to wait
PAIRS = [*PRIORS.items(), ("normal", "laplace"), ("lognormal", "normal")]


def small(width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 5, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, 10),
    )  # fmt: skip


def step(net: nn.Module) -> Counted:
    """What forward and backward of one training step ask of the device."""
    with fake_device() as counted:
        moved(net)
        x, y = torch.empty(8, 3, 16, 16, device=GPU), torch.empty(8, dtype=torch.long, device=GPU)
        for _ in range(2):  # what is made once is made in the first step
            counted.reset()
            if isinstance(net, mcrepar.BayesianModule):
                mcrepar.elbo(net, "categorical", x, y, data_size=50_000).loss.backward()
            else:
                F.cross_entropy(net(x), y).backward()
            net.zero_grad()
    return counted


def bayesian(net: nn.Module, posterior: str, prior: str, method: str, **options) -> mcrepar.BayesianModule:
    draws = 40 if METHODS[method].samples else None
    return mcrepar.bayesian(net, posterior, prior, method, draws, signs="keep", **options)


@pytest.mark.parametrize(("posterior", "prior"), PAIRS)
def test_no_method_waits_for_the_device_or_computes_in_float64(posterior, prior):
    for method in mcrepar.explain(posterior, prior).methods:
        if method == ADAPTIVE:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mcrepar.TaylorWarning)
            counted = step(bayesian(small(), posterior, prior, method))
        assert not counted.faults, (method, counted.faults)


BUDGETS = {"exact": 60, "stats": 80}  # kernels of a draw, the KL and both backwards


@pytest.mark.parametrize(("posterior", "method"), [("radial", "exact"), ("radial", "stats")])
def test_a_resnet_18_is_drawn_summed_and_differentiated_within_the_budget(posterior, method):
    net = bayesian_resnet(posterior, method)
    with fake_device() as counted:
        moved(net)
        for _ in range(2):
            counted.reset()
            with shared_rows():  # as in `elbo`
                weights, kl = list(net.draw().values()), net.kl()
            arrived = [torch.empty_like(w) for w in weights]
            before = counted.count
            torch.autograd.backward([*weights, kl], [*arrived, None])
            net.zero_grad()
    assert before < counted.count <= BUDGETS[method]
    assert not counted.faults


def bayesian_resnet(posterior: str, method: str) -> mcrepar.BayesianModule:
    draws = 1000 if METHODS[method].samples else None
    return mcrepar.bayesian(model("preact_resnet18"), posterior, PRIORS[posterior], method, draws, signs="positive")


def test_a_whole_step_of_it_adds_few_kernels_more_for_its_checks():
    nets = [model("preact_resnet18", depths=(1, 1), width=8) for _ in range(2)]
    added = step(mcrepar.bayesian(nets[0])).count - step(nets[1]).count
    assert 0 < added <= 80


@pytest.mark.parametrize("posterior", PRIORS)
def test_a_prediction_waits_once_for_each_draw(posterior):
    net = bayesian(small(1024), posterior, PRIORS[posterior], "exact").eval()
    net.calibration.warned = True
    with fake_device() as counted:
        moved(net)
        x = torch.empty(24, 3, 16, 16, device=GPU)
        mcrepar.predict(net, x, draws=3, batch_size=8, likelihood="categorical")
    assert {name: count for (name, _), count in counted.waits.items()} == {"copy to the host": 3}
    assert not counted.mixed
    assert not counted.wide


def test_calibration_and_its_statistics_stay_on_the_device():
    net = bayesian(small(), "radial", "normal", "exact").eval()
    with fake_device() as counted:
        moved(net)
        net.calibrate(torch.empty(8, 3, 16, 16, device=GPU))
        with net.frozen(net.draw()):
            net(torch.empty(8, 3, 16, 16, device=GPU))
    assert counted.waits.total() == 1, counted.waits  # whether all statistics are finite
    assert not counted.mixed
    assert not counted.wide


def test_a_state_is_taken_without_waiting():
    """Loading cannot be tried here: it reads the bytes of the priors, and fake tensors have none."""
    net = bayesian(small(), "normal", "normal", "exact")
    with fake_device() as counted:
        state = moved(net).state_dict()
    assert state["latents.0/weight.loc"].device.type == GPU
    assert not counted.faults, counted.faults
