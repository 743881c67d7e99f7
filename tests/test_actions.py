"""What is done with predictions: temperatures against scipy's optimum, tables, figures, ensembles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, special
from torch import nn

import mcrepar
from mcrepar import predict
from mcrepar.likelihoods import Normal
from tests.conftest import seeded


def network(outputs=3, seed=0):
    torch.manual_seed(seed)
    return mcrepar.bayesian(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)), initial_std=0.8)


def prediction(likelihood="categorical", outputs=3, n=40, draws=6):
    x = torch.randn(n, 4, generator=seeded(1))
    return predict(network(outputs), x, draws, likelihood=likelihood, generator=seeded(2))


# ---- temperature


def test_the_temperature_is_the_optimum_of_scipy():
    p, y = prediction(n=200), torch.randint(3, (200,), generator=seeded(3))
    log_p = np.log(p.samples.double().numpy())

    def nll(t):
        tempered = special.log_softmax(log_p / t, axis=2)[:, np.arange(200), y.numpy()]
        return -special.logsumexp(tempered, axis=0, b=1 / len(tempered)).mean()

    best = optimize.minimize_scalar(nll, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-8}).x
    assert p.temperature(y) == pytest.approx(best, rel=1e-4)
    warm = p.tempered(p.temperature(y))
    assert -float(warm.log_prob(y).mean()) == pytest.approx(nll(best), rel=1e-5)
    assert -float(warm.log_prob(y).mean()) <= -float(p.log_prob(y).mean())


def test_it_recovers_the_temperature_that_made_the_labels():
    """Within five standard errors of 1 / T, from its Fisher information: a false alarm has probability 6e-7."""
    p = prediction(n=20_000, draws=1)
    u = p.probs.double().log()
    true = (u / 2.5).softmax(1)
    y = torch.multinomial(true, 1, generator=seeded(4))[:, 0]
    information = ((true * u.square()).sum(1) - (true * u).sum(1).square()).sum()
    assert abs(1 / p.temperature(y) - 1 / 2.5) < 5 / information.sqrt()


@pytest.mark.parametrize(("likelihood", "outputs"), [("categorical", 3), ("bernoulli", 1)])
def test_a_temperature_of_one_changes_nothing(likelihood, outputs):
    p = prediction(likelihood, outputs)
    same, warm = p.tempered(1.0), p.tempered(3)
    for name in ("mean", "probs", "samples", "aleatoric", "epistemic", "expected_entropy", "votes"):
        torch.testing.assert_close(getattr(same, name), getattr(p, name), atol=1e-6, rtol=1e-5)
    assert warm.mean.shape == p.mean.shape
    assert bool((warm.entropy > p.entropy).all())
    torch.testing.assert_close(warm.label, p.label)
    torch.testing.assert_close(warm.probs.sum(1), torch.ones_like(warm.probs.sum(1)))


def test_temperatures_that_cannot_be():
    with pytest.raises(mcrepar.MethodError, match="its y is not a class"):
        prediction("normal").temperature(torch.zeros(40))
    with pytest.raises(mcrepar.ParameterError, match="not a positive number"):
        prediction().tempered(0.0)
    with pytest.raises(mcrepar.ParameterError, match="classes from 0 to 2"):
        prediction().temperature(torch.full((40,), 3))


# ---- tables


def test_a_table_of_classes():
    pytest.importorskip("pandas", reason="pandas makes the tables")
    p = prediction()
    table = p.to_pandas(names=["cat", "dog", "bird"])
    assert list(table.columns) == ["label", "confidence", "p_cat", "p_dog", "p_bird", "entropy", "expected_entropy",
                                   "mutual_information"]  # fmt: skip
    assert len(table) == 40
    assert [["cat", "dog", "bird"].index(name) for name in table["label"]] == p.label.tolist()
    np.testing.assert_allclose(table["p_dog"], p.probs[:, 1])
    assert p.to_pandas(index=range(5, 45)).index[0] == 5
    assert prediction("bernoulli", 1).to_pandas().columns[2:4].tolist() == ["p_0", "p_1"]
    with pytest.raises(mcrepar.ParameterError, match="3 names"):
        p.to_pandas(names=["a"])


def test_a_table_of_numbers():
    pytest.importorskip("pandas", reason="pandas makes the tables")
    p = prediction(Normal(0.5), 1)
    table = p.to_pandas()
    assert list(table.columns) == ["mean", "std", "aleatoric", "epistemic", "lower_90", "upper_90"]
    np.testing.assert_allclose(table["upper_90"], p.interval(0.9)[1][:, 0])
    assert "std_1" in prediction(None, 2).to_pandas().columns
    assert "mean_height" in prediction(None, 2).to_pandas(names=["height", "width"]).columns


# ---- figures


@pytest.mark.parametrize("kind", ["reliability", "confidence", "share", "uncertainty", None])
def test_figures_of_classes(kind):
    figure = prediction().plot(torch.randint(3, (40,), generator=seeded(1)), kind)
    assert figure.axes[0].get_title(loc="left")


@pytest.mark.parametrize("kind", ["intervals", "calibration", "uncertainty", None])
def test_figures_of_numbers(kind):
    figure = prediction(Normal(0.5), 1).plot(torch.randn(40, 1, generator=seeded(1)), kind)
    assert figure.axes[0].get_title(loc="left")


def test_without_the_truth_there_is_only_uncertainty():
    assert "Uncertainty" in prediction().plot().axes[0].get_title(loc="left")
    with pytest.raises(mcrepar.ParameterError, match=r"plot\(y, kind='reliability'\)"):
        prediction().plot(kind="reliability")
    with pytest.raises(mcrepar.MethodError, match="reliability"):
        prediction().plot(torch.zeros(40), "reliabilty")


# ---- ensembles


@pytest.mark.parametrize(("likelihood", "outputs"), [("categorical", 3), ("bernoulli", 1), (Normal(0.5), 2), (None, 2)])
def test_an_ensemble_is_the_mixture_of_all_draws(likelihood, outputs):
    members, x = [network(outputs, seed) for seed in (0, 1)], torch.randn(9, 4, generator=seeded(1))
    p = predict(members, x, draws=9, likelihood=likelihood, generator=seeded(5))
    assert p.draws == 10
    rng = seeded(5)
    parts = [predict(bnn, x, draws=5, likelihood=likelihood, generator=rng) for bnn in members]
    samples = torch.cat([part.samples for part in parts])
    torch.testing.assert_close(p.samples, samples)
    torch.testing.assert_close(p.mean, samples.mean(0))
    torch.testing.assert_close(p.epistemic, samples.var(0, correction=0))
    if p.classes is not None:
        torch.testing.assert_close(p.votes, parts[0].votes + parts[1].votes)
        torch.testing.assert_close(p.expected_entropy, (parts[0].expected_entropy + parts[1].expected_entropy) / 2)
    if isinstance(likelihood, Normal):
        torch.testing.assert_close(p.aleatoric, torch.full_like(p.mean, 0.25))
        assert p.interval(0.9)[0].shape == p.mean.shape


def test_members_of_one_network_weigh_the_same_and_none_is_refused():
    assert predict((network(), network(), network()), torch.zeros(2, 4), draws=3).draws == 3
    with pytest.raises(mcrepar.ParameterError, match="the number of networks"):
        predict([], torch.zeros(2, 4))
    light = predict([network(), network(seed=1)], torch.zeros(2, 4), draws=4, max_bytes=0)
    with pytest.raises(mcrepar.MethodError, match="max_bytes"):
        _ = light.samples


@pytest.mark.parametrize(("likelihood", "outputs"), [("categorical", 3), (Normal(0.5), 1)])
def test_a_prediction_by_moments_is_acted_upon_alike(likelihood, outputs):
    x = torch.randn(40, 4, generator=seeded(1))
    p = predict(network(outputs), x, "moments", likelihood=likelihood, generator=seeded(2))
    y = torch.randint(3, (40,), generator=seeded(3)) if outputs == 3 else torch.randn(40, 1, generator=seeded(3))
    covered = p.conformal(y, level=0.8, method="split").covered(p, y)  # without random shares: exactly
    assert covered.double().mean() >= 0.8
    assert p.plot(y).axes
