"""Modes come back after a prediction, and an ordinary network of Bayesian layers has norm statistics for every draw."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar import ParameterError, bayesian, predict
from mcrepar.nn import calibrate
from tests.conftest import seeded


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


X, BATCH = randn(5, 4), 2 + 3 * randn(32, 4, seed=2)


def by_hand() -> nn.Sequential:
    torch.manual_seed(0)
    first, second = mcrepar.nn.Linear(4, 6, start_std=1.0), mcrepar.nn.Linear(6, 2, start_std=1.0)
    return nn.Sequential(first, nn.BatchNorm1d(6), nn.Dropout(0.5), second).double()


def nested() -> nn.Sequential:
    """The norm is inside a Bayesian part."""
    torch.manual_seed(0)
    part = bayesian(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), start_std=1.0)
    return nn.Sequential(part, nn.Tanh(), mcrepar.nn.Linear(6, 2, start_std=1.0)).double()


def expected(net: nn.Sequential, draws: int) -> Tensor:
    """Every draw by hand: its parts frozen, its norm fed with the kept batch alone, then predicting."""
    generator, outs = seeded(3), []
    for _ in range(draws):
        weights = [part.to_module(part.draw(generator)) for part in net if isinstance(part, mcrepar.BayesianModule)]
        parts = iter(weights)
        plain = nn.Sequential(
            *(next(parts) if isinstance(m, mcrepar.BayesianModule) else copy.deepcopy(m) for m in net)
        )
        plain.eval()
        norm = next(m for m in plain.modules() if isinstance(m, nn.BatchNorm1d))
        norm.train()
        norm.momentum = 1.0
        with torch.no_grad():
            plain(BATCH)
            outs.append(plain.eval()(X))
    return torch.stack(outs)


@pytest.mark.parametrize("build", [by_hand, nested])
def test_every_draw_has_statistics_of_its_own(build):
    net = calibrate(build(), BATCH)
    state = {name: t.clone() for name, t in net.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = predict(net, X, draws=3, batch_size=2, generator=seeded(3)).samples
    torch.testing.assert_close(got, expected(net, 3))
    assert net.training
    assert net.state_dict().keys() == state.keys()  # the batch is no part of the network
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())


def test_a_converted_network_has_its_method():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).double())
    assert calibrate(bnn, BATCH) is bnn
    assert torch.equal(bnn.calibration.kept[0][0], BATCH)


def test_without_a_batch_it_warns_once():
    net = by_hand()
    with pytest.warns(UserWarning, match=r"BatchNorm.*mcrepar\.nn\.calibrate\(net, x\)") as seen:
        predict(net, X, draws=3)
    assert len(seen) == 1
    part = nested()
    with pytest.warns(UserWarning, match=r"bnn\.calibrate\(x\)") as seen:  # the part that has the norm
        predict(part, X, draws=3)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(net, X, draws=2)
        part[0].calibrate(BATCH)  # a batch of its own serves too
        predict(part, X, draws=2)


def test_the_batch_is_copied_and_moved_with_the_network():
    net = calibrate(by_hand(), BATCH)
    wanted = predict(net, X, draws=2, generator=seeded(4)).samples
    assert torch.equal(predict(copy.deepcopy(net), X, draws=2, generator=seeded(4)).samples, wanted)
    assert predict(net.float(), X.float(), draws=2).mean.dtype == torch.float32


def test_a_pickle_has_pooled_statistics_and_no_data():
    net = calibrate(by_hand(), BATCH)
    stored = pickle.dumps(net)
    assert BATCH[0].numpy().tobytes() not in stored
    twin = pickle.loads(stored).eval()  # noqa: S301
    with pytest.warns(UserWarning, match=r"pooled over draws.*mcrepar\.nn\.calibrate\(net, x\)"):
        got = predict(twin, X, draws=2, generator=seeded(4)).samples
    generator, plain = seeded(0), []
    for _ in range(32):
        layer = net[0].to_module(net[0].draw(generator))
        net[3].draw(generator)
        plain.append(layer(BATCH).detach())
    means, variances = torch.stack([h.mean(0) for h in plain]), torch.stack([h.var(0) for h in plain])
    twin[1].running_mean, twin[1].running_var = means.mean(0), variances.mean(0) + means.var(0, correction=0)
    generator, wanted = seeded(4), []
    for _ in range(2):
        first, second = (twin[k].to_module(twin[k].draw(generator)) for k in (0, 3))
        wanted.append(second(twin[1](first(X))).detach())
    torch.testing.assert_close(got, torch.stack(wanted))


def test_threads_do_not_disturb_each_other():
    net = calibrate(by_hand(), BATCH)
    wanted = [predict(net, X, draws=10, generator=seeded(k)).samples for k in range(3)]
    got: dict[int, Tensor] = {}

    def work(k: int) -> None:
        got[k] = predict(net, X, draws=10, generator=seeded(k)).samples

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(got[k], wanted[k]) for k in range(3))


WRONG = {
    "nothing": ((), "does not run on this batch"),
    "one row": ((BATCH[:1],), "does not run on this batch .*more than 1 value per channel"),
    "shape": ((BATCH[:, :3],), r"does not run on this batch .*. Use finite training data, several rows"),
    "nan": ((torch.full((8, 4), torch.nan).double(),), r"1\.running_mean is not finite on this batch"),
    "infinite": ((torch.full((8, 4), torch.inf).double(),), r"1\.running_mean is not finite on this batch"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_a_batch_that_gives_no_statistics_is_refused_at_once(wrong):
    net = calibrate(by_hand(), BATCH)
    wanted = predict(net, X, draws=2, generator=seeded(4)).samples
    with pytest.raises(ParameterError, match=wrong[1]):
        calibrate(net, *wrong[0])
    assert torch.equal(predict(net, X, draws=2, generator=seeded(4)).samples, wanted)  # with the batch of before
    with pytest.raises(ParameterError, match=wrong[1]):
        calibrate(by_hand(), *wrong[0])


@pytest.mark.filterwarnings("ignore:the network has BatchNorm")
def test_a_norm_layer_may_be_replaced():
    net = by_hand()
    predict(net, X, draws=1)
    net[1] = nn.Identity()
    assert predict(calibrate(net, BATCH), X, draws=2).mean.shape == (5, 2)
    net[1] = nn.BatchNorm1d(6).double()
    torch.testing.assert_close(predict(net, X, draws=3, generator=seeded(3)).samples, expected(net, 3))


@pytest.mark.parametrize("build", [by_hand, nested])
def test_what_is_frozen_stays_so_in_a_prediction(build):
    net = calibrate(build(), BATCH)
    with net[0].frozen("mean"):
        one = predict(nn.Sequential(net[0]), X, draws=3).samples
        whole = predict(net, X, draws=3).samples
        torch.testing.assert_close(one[0], net.eval()[0](X))
    assert torch.equal(one[0], one[1])
    assert not torch.equal(whole[0], whole[1])  # the other part is drawn


def test_nothing_bayesian_is_refused():
    with pytest.raises(ParameterError, match="the calibration of Sequential: nothing in it is Bayesian"):
        calibrate(nn.Sequential(nn.BatchNorm1d(4)), BATCH)


# ---- eval mode


def network() -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    return bayesian(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), start_std=0.8)


def test_modes_come_back_even_after_an_error():
    bnn = network()
    bnn.train()
    bnn.net[1].eval()
    modes = [m.training for m in bnn.modules()]
    predict(bnn, torch.randn(7, 4, generator=seeded(1)), draws=2)
    assert [m.training for m in bnn.modules()] == modes
    with pytest.raises(ParameterError, match="the network cannot take"):
        predict(bnn, torch.zeros(3, 9), draws=2)
    assert [m.training for m in bnn.modules()] == modes


def test_threads_do_not_disturb_each_other_in_a_bayesian_network():
    bnn, x = network(), torch.randn(40, 4, generator=seeded(1))
    bnn.net.add_module("dropout", nn.Dropout(0.5))
    bnn.train()
    expected = [predict(bnn, x, draws=10, batch_size=8, generator=seeded(k)).mean for k in range(4)]
    found: dict[int, torch.Tensor] = {}

    def work(k):
        for _ in range(3):
            found[k] = predict(bnn, x, draws=10, batch_size=8, generator=seeded(k)).mean

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        assert torch.equal(found[k], expected[k])
    assert all(m.training for m in bnn.modules())


class AlwaysDrops(nn.Dropout):
    """Monte Carlo dropout: it sets its own mode."""

    def forward(self, x: Tensor) -> Tensor:
        self.train()
        return super().forward(x)


def test_a_layer_may_set_its_own_mode():
    net = nn.Sequential(mcrepar.nn.Linear(4, 3), AlwaysDrops(0.5)).eval()
    assert predict(net, torch.ones(2, 4), draws=2).mean.shape == (2, 3)
