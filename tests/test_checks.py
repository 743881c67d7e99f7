"""Checks that are noted in a flag and read later; the CPU stands in for a device, `waits` aside."""

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import ParameterError, checks


def noted(owner: nn.Module, wrong: bool, what: str = "x is NaN") -> checks.Record:
    with checks.step(owner) as record:
        record.notes.append((what, torch.tensor(wrong)))
    return record


def test_on_the_cpu_a_check_raises_at_once():
    with pytest.raises(ParameterError, match="it is"), checks.step(nn.Linear(1, 1)):
        checks.refuse(lambda: torch.tensor(True), lambda: ParameterError("a number", "it is 3", "another"), "3")


def test_a_flag_stays_until_it_is_read_and_the_report_names_check_and_parameter():
    net = nn.Linear(2, 1)
    assert not noted(net, False).wrong
    assert noted(net, True).wrong
    assert noted(net, False).wrong
    net.bias.data.fill_(torch.nan)
    with pytest.raises(ParameterError, match=r"x is NaN in one of the last 3 steps.*bias is not finite now"):
        checks.read(net)
    checks.read(net)  # nothing is left of it
    assert not noted(net, False).wrong


def test_it_is_read_every_so_many_steps(monkeypatch):
    monkeypatch.setattr(checks, "EVERY", 3)
    net = nn.Linear(2, 1)
    noted(net, True), noted(net, False)
    with pytest.raises(ParameterError, match="all parameters are finite"):
        noted(net, False)


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_are_zero_under_the_flag_also_where_they_were_nan(wrong):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    net[1].to(torch.float32)
    record = noted(net, wrong)
    x = torch.full((1, 2), torch.nan if wrong else 1.0, dtype=torch.float64)
    loss = net[1](net[0](x).float()).sum()
    checks.skip_gradients(loss, record, net.parameters())
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) and bool(p.grad.any()) != wrong for p in net.parameters())


def test_steps_inside_one_another_are_one():
    bnn = mcrepar.bayesian(nn.Linear(2, 1))
    with checks.step(bnn) as outer, checks.step(bnn.net) as inner:
        assert inner is outer
