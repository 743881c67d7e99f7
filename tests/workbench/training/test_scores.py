import math
from dataclasses import astuple

import pytest
import torch
from torch import nn

from mcrepar import bayesian
from mcrepar.data.dataset import Split
from mcrepar.likelihoods import Categorical, Normal
from mcrepar.nn.swap import run as run_on
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.scores import BATCH, validate


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


def test_members_take_turns():
    torch.manual_seed(0)
    bnn, x = bayesian(nn.Linear(3, 4), structure="rank1", members=3, initial_std=1e-9), torch.randn(40, 3)
    split = Split(x, torch.arange(40) % 4)
    with torch.no_grad():
        probs = sum(run_on(bnn, bnn.draw(member=k), x).softmax(1) for k in range(3)) / 3
    lpd = probs[torch.arange(40), split.y].log().mean().item()
    assert validate(bnn, Categorical(), split, as_is, 3, World()).lpd == pytest.approx(lpd, rel=1e-4)
