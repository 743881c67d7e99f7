"""Predictions against numpy and scipy on the kept draws, and their behaviour with any x, network and thread."""

import builtins
import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn

import mcrepar
from mcrepar import MethodError, ParameterError
from mcrepar.likelihoods import Bernoulli, Categorical, Normal, PerVoxel
from mcrepar.nn.swap import run as run_on
from mcrepar.prediction import Classes, Prediction, predict
from tests.conftest import seeded


def network(outputs=3, inputs=4, seed=0, **options):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    return mcrepar.bayesian(net, start_std=0.8, **options)


def data(n=7, inputs=4):
    return torch.randn(n, inputs, generator=seeded(1))


def by_hand(bnn, x, draws, seed):
    """The outputs of the same draws, one after the other."""
    generator = seeded(seed)
    with torch.no_grad():
        return torch.stack([run_on(bnn, bnn.draw(generator), x) for _ in range(draws)])


# --- regression -------------------------------------------------------------------------------------------------------


def test_regression_without_noise_is_the_statistics_of_the_outputs():
    bnn, x = network(), data()
    p = predict(bnn, x, draws=20, batch_size=3, generator=seeded(5))
    expected = by_hand(bnn, x, 20, 5).numpy()
    np.testing.assert_allclose(p.samples, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(p.mean, expected.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(p.std, expected.std(0), rtol=1e-5)
    np.testing.assert_allclose(p.epistemic, expected.var(0), rtol=1e-5)
    assert not p.aleatoric.any()
    for level in (0.5, 0.9):
        lower, upper = p.interval(level)
        np.testing.assert_allclose(lower, np.quantile(expected, (1 - level) / 2, axis=0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(upper, np.quantile(expected, (1 + level) / 2, axis=0), rtol=1e-4, atol=1e-6)


def test_a_normal_likelihood_adds_its_noise():
    bnn, x = network(), data()
    p = predict(bnn, x, draws=15, likelihood=Normal(scale=0.5), generator=seeded(5))
    means = by_hand(bnn, x, 15, 5).double().numpy()
    np.testing.assert_allclose(p.std, np.sqrt(means.var(0) + 0.25), rtol=1e-5)
    lower, upper = p.interval(0.8)
    for bound, level in ((lower, 0.1), (upper, 0.9)):
        for place in np.ndindex(*bound.shape):
            parts = means[(slice(None), *place)]
            root = optimize.brentq(lambda y, parts=parts, q=level: stats.norm(parts, 0.5).cdf(y).mean() - q, -50, 50)
            assert float(bound[place]) == pytest.approx(root, abs=1e-4)


def test_a_heteroscedastic_interval_holds_its_share_of_the_mixture():
    bnn, x = network(outputs=2), data(3)
    p = predict(bnn, x, draws=10, likelihood=Normal("heteroscedastic"), generator=seeded(2))
    assert p.mean.shape == (3, 1)
    out = by_hand(bnn, x, 10, 2).double().numpy()
    parts = stats.norm(out[..., :1], np.exp(out[..., 1:]))
    for bound, share in zip(p.interval(0.9), (0.05, 0.95), strict=True):
        np.testing.assert_allclose(parts.cdf(bound.double()).mean(0), share, atol=1e-6)
    np.testing.assert_allclose(p.std, np.sqrt(parts.var().mean(0) + parts.mean().var(0)), rtol=1e-5)


def test_one_draw_and_a_vector_of_outputs():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x):
            return self.inner(x)[:, 0]

    p = predict(mcrepar.bayesian(Flat()), data(), draws=1)
    assert p.mean.shape == (7,)
    assert not p.std.any()
    assert torch.equal(*p.interval(0.9))


@pytest.mark.parametrize("level", [0, 1, -0.2, 90, math.nan, "0.9", None])
def test_a_level_is_a_probability(level):
    with pytest.raises(ParameterError, match=r"interval.*between 0 and 1"):
        predict(network(), data(), draws=2).interval(level)


@pytest.mark.parametrize("level", [-0.2, 90, math.nan, "0.9", None, True])
def test_confidence_is_a_share_of_draws(level):
    with pytest.raises(ParameterError, match=r"confident.*between 0 and 1. Use confident\(0.9\)"):
        classes([[0.9, 0.1]], [[9, 1]]).confident(level)


# --- classification ---------------------------------------------------------------------------------------------------


def softmax(u):
    e = np.exp(u - u.max(2, keepdims=True))
    return e / e.sum(2, keepdims=True)


@pytest.mark.parametrize("likelihood", ["categorical", Categorical()])
def test_classification_against_scipy(likelihood):
    bnn, x = network(), 3 * data(20)
    p = predict(bnn, x, draws=25, batch_size=6, likelihood=likelihood, generator=seeded(3))
    probs = softmax(by_hand(bnn, x, 25, 3).double().numpy())  # (draws, data, classes)
    np.testing.assert_allclose(p.probs, probs.mean(0), atol=1e-6)
    np.testing.assert_allclose(p.mean, probs.mean(0), atol=1e-6)
    np.testing.assert_allclose(p.std, np.sqrt(probs.mean(0) * (1 - probs.mean(0))), rtol=1e-4)
    np.testing.assert_allclose(p.entropy, stats.entropy(probs.mean(0), axis=1), rtol=1e-5)
    np.testing.assert_allclose(p.expected_entropy, stats.entropy(probs, axis=2).mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(p.mutual_information, p.entropy - p.expected_entropy, atol=1e-6)
    assert bool((p.mutual_information >= 0).all())
    votes = np.stack([np.bincount(row, minlength=3) for row in probs.argmax(2).T])
    np.testing.assert_array_equal(p.votes, votes)
    np.testing.assert_allclose(p.confidence, votes.max(1) / 25)
    np.testing.assert_array_equal(p.confident(0.8), votes.max(1) >= 20)
    unique = (votes == votes.max(1, keepdims=True)).sum(1) == 1
    np.testing.assert_array_equal(p.label.numpy()[unique], votes.argmax(1)[unique])


def classes(probs, votes):
    probs, votes = torch.tensor(probs), torch.tensor(votes)
    zero = torch.zeros_like(probs)
    return Prediction(int(votes.sum(1)[0]), probs, zero, zero, Categorical(), classes=Classes(probs, votes, zero[:, 0]))


def test_a_tie_of_votes_goes_to_the_larger_mean_probability():
    p = classes([[0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], [[5, 5, 0], [5, 4, 1]])
    assert p.label.tolist() == [1, 0]  # the vote wins over the mean where it is clear, as in the paper


@pytest.mark.parametrize("draws", [10, 30, 70, 100])
def test_nine_of_ten_is_confident_at_nine_tenths(draws):
    nine = draws * 9 // 10
    p = classes([[0.9, 0.1]] * 2, [[nine, draws - nine], [nine - 1, draws - nine + 1]])
    assert p.confident(0.9).tolist() == [True, False]
    assert p.confident(0.1 + 0.2 + 0.6).tolist() == [True, False]
    assert p.confident(0).all()
    assert not p.confident(1).any()


def test_certain_classes_have_no_entropy():
    p = classes([[1.0, 0.0], [0.5, 0.5]], [[4, 0], [2, 2]])
    assert p.entropy.tolist() == pytest.approx([0.0, math.log(2)])


def test_infinite_logits_are_certain():
    class Certain(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x):
            out = self.inner(x)
            return torch.cat([out, torch.full_like(out, -math.inf)], 1)

    p = predict(mcrepar.bayesian(Certain()), data(), draws=3, likelihood="categorical")
    assert p.label.tolist() == [0] * 7
    assert not p.entropy.any()
    assert not p.expected_entropy.any()


def test_pixels_have_classes_too():
    torch.manual_seed(0)
    bnn = mcrepar.bayesian(nn.Conv2d(1, 4, 3, padding=1))
    p = predict(bnn, torch.randn(3, 1, 5, 6), draws=4, likelihood="categorical")
    assert p.probs.shape == (3, 4, 5, 6)
    assert p.label.shape == p.entropy.shape == p.confident().shape == (3, 5, 6)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(3, 5, 6))


@pytest.mark.parametrize("likelihood", ["bernoulli", Bernoulli()])
def test_bernoulli_has_two_classes(likelihood):
    bnn, x = network(outputs=1), data()
    p = predict(bnn, x, draws=9, likelihood=likelihood, generator=seeded(3))
    yes = 1 / (1 + np.exp(-by_hand(bnn, x, 9, 3).double().numpy()))
    np.testing.assert_allclose(p.mean, yes.mean(0), rtol=1e-5)
    assert p.probs.shape == (7, 2, 1)
    np.testing.assert_allclose(p.probs[:, 1], yes.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(p.label, (yes > 0.5).sum(0) > 4)
    np.testing.assert_allclose(p.entropy, stats.bernoulli(yes.mean(0)).entropy(), rtol=1e-4)


def test_an_autoencoder_is_a_prediction_of_x():
    bnn, x = network(outputs=4), data().sigmoid()
    assert predict(bnn, x, draws=3, likelihood="bernoulli").mean.shape == x.shape


def test_what_the_other_kind_has_is_refused():
    with pytest.raises(MethodError, match="likelihood='categorical'"):
        _ = predict(network(), data(), draws=2).label
    with pytest.raises(MethodError, match="not Normal"):
        predict(network(), data(), draws=2, likelihood="categorical").interval(0.9)


# --- draws, batches, memory -------------------------------------------------------------------------------------------


def test_one_draw_serves_all_of_x():
    bnn = network()
    x = data(1).expand(10, 4)
    samples = predict(bnn, x, draws=5, batch_size=3).samples
    torch.testing.assert_close(samples, samples[:, :1].expand_as(samples))
    assert len(samples[:, 0, 0].unique()) == 5


def test_a_generator_makes_it_reproducible_and_the_batch_size_does_not_matter():
    bnn, x = network(), data(9)
    first = predict(bnn, x, draws=5, generator=seeded(4))
    second = predict(bnn, x, draws=5, batch_size=2, generator=seeded(4))
    torch.testing.assert_close(first.samples, second.samples)
    assert torch.equal(first.samples, predict(bnn, x, draws=5, generator=seeded(4)).samples)
    assert not torch.equal(first.samples, predict(bnn, x, draws=5, generator=seeded(6)).samples)


@pytest.mark.parametrize("likelihood", [None, "categorical", Normal(0.3)])
def test_beyond_the_bound_only_statistics_remain(likelihood):
    bnn, x = network(), data()
    whole = predict(bnn, x, draws=6, likelihood=likelihood, generator=seeded(1))
    least = predict(bnn, x, draws=6, likelihood=likelihood, generator=seeded(1), max_bytes=100)
    for name in ("mean", "std", "aleatoric", "epistemic"):
        assert torch.equal(getattr(whole, name), getattr(least, name))
    assert (least.kept, least.noise) == (None, None)
    with pytest.raises(MethodError, match="max_bytes"):
        _ = least.samples
    if likelihood == "categorical":
        assert torch.equal(whole.label, least.label)
    else:
        with pytest.raises(MethodError, match="max_bytes"):
            least.interval(0.9)


def test_nan_in_x_names_the_example():
    x = data()
    x[4, 1] = math.nan
    with pytest.raises(ParameterError, match="1 of 7 examples, the first being 4"):
        predict(network(), x, draws=2)


SHAPES = [
    (Normal("heteroscedastic"), 1, r"Normal likelihood: output has the shape \(7, 1\), without halves"),
    (Normal("heteroscedastic"), 3, "without halves. Use a last dimension of means and log scales"),
    ("categorical", None, r"Categorical likelihood: output has the shape \(7,\). Use an output of \(batch, classes"),
]


@pytest.mark.parametrize(("likelihood", "outputs", "words"), SHAPES, ids=["one", "three", "flat"])
def test_outputs_of_a_shape_that_says_nothing_of_y(likelihood, outputs, words):
    bnn = network(outputs or 1)
    take = None if outputs else (lambda out: out[:, 0])
    with pytest.raises(ParameterError, match=words):
        predict(bnn, data(), draws=2, likelihood=likelihood, output=take)


@pytest.mark.parametrize("weights", ["mean", "draw"])
def test_frozen_weights_stay_frozen(weights):
    bnn = network()
    with bnn.frozen(weights):
        p = predict(bnn, data(), draws=3, batch_size=2)
        torch.testing.assert_close(p.mean, bnn(data()))
    assert not p.epistemic.any()
    assert predict(bnn, data(), draws=3).epistemic.any()


@pytest.mark.parametrize("options", [{"draws": 0}, {"draws": 2.5}, {"batch_size": -1}, {"draws": True}])
def test_counts_are_checked(options):
    with pytest.raises(ParameterError, match=f"{next(iter(options))}=.*. Use a whole number"):
        predict(network(), data(), **options)


def test_other_arguments_are_checked():
    for options, words in (
        ({"max_bytes": "1 GB"}, "it is a str. Use a whole"),
        ({"generator": 0}, "not a torch.Generator"),
    ):
        with pytest.raises(ParameterError, match=words):
            predict(network(), data(), draws=2, **options)
    assert predict(network(), data(), draws=2, max_bytes=0).kept is None
    with pytest.raises(ParameterError, match="a prediction of int: nothing in it is Bayesian"):
        predict(3, data())


def test_an_unknown_likelihood():
    with pytest.raises(ParameterError, match="'categorical' or 'bernoulli' or 'normal'"):
        predict(network(), data(), likelihood="softmax")


# --- networks ---------------------------------------------------------------------------------------------------------


def test_an_ordinary_network_of_bayesian_layers():
    torch.manual_seed(0)
    net = nn.Sequential(mcrepar.nn.Linear(4, 8), nn.Dropout(0.5), mcrepar.nn.Linear(8, 2)).train()
    x = data(1).expand(10, 4)
    p = predict(net, x, draws=5, batch_size=3, generator=seeded(0))
    torch.testing.assert_close(p.samples, p.samples[:, :1].expand_as(p.samples))
    assert torch.equal(p.samples, predict(net, x, draws=5, batch_size=3, generator=seeded(0)).samples)
    assert net.training
    with pytest.raises(ParameterError, match=r"mcrepar.bayesian\(net\)"):
        predict(nn.Linear(2, 2), torch.zeros(1, 2))


def test_no_gradient_remains():
    p = predict(network(), data(), draws=2)
    assert not p.mean.requires_grad
    assert not p.samples.requires_grad


def test_float64_and_half():
    bnn = network().double()
    assert predict(bnn, data().double(), draws=2).mean.dtype == torch.float64
    half = network().bfloat16()
    p = predict(half, data().bfloat16(), draws=4)
    assert (p.mean.dtype, p.samples.dtype) == (torch.float32, torch.bfloat16)
    assert p.interval(0.5)[0].dtype == torch.float32


def test_progress_with_and_without_rich(monkeypatch, capsys):
    assert predict(network(), data(), draws=2, progress=True).draws == 2
    assert "draws" in capsys.readouterr().out
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert predict(network(), data(), draws=2, progress=True).draws == 2
    assert not capsys.readouterr().out


def test_a_calibrated_interval_covers_at_its_level():
    """y ~ N(w x, 0.5^2) with w drawn from the posterior itself.

    The number of covered data is Binomial(data, level), and the quantiles over draws err by no more than
    Binomial(draws, level): |z| < 5, false alarms 6e-7.
    """
    torch.manual_seed(0)
    count, draws, level = 1000, 1000, 0.9
    bnn = mcrepar.bayesian(nn.Linear(1, 1, bias=False).double(), posterior="normal", start_std=0.6)
    x = torch.randn(count, 1).double()
    with torch.no_grad():
        w = bnn.latents["weight"].posterior.draw(count, generator=seeded(3))[:, 0]
    y = x * w + 0.5 * torch.randn(count, 1)
    lower, upper = predict(bnn, x, draws, count, Normal(0.5), seeded(4)).interval(level)
    coverage = ((lower <= y) & (y <= upper)).double().mean().item()
    assert abs(coverage - level) < 5 * math.sqrt(level * (1 - level) * (1 / count + 1 / draws))


# --- the log predictive density ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, "heteroscedastic"])
def test_the_log_density_of_a_normal_y_is_that_of_the_mixture(scale):
    bnn, x = network(outputs=2), data()
    likelihood = Normal(scale)
    p = predict(bnn, x, draws=15, likelihood=likelihood, generator=seeded(5))
    outputs = by_hand(bnn, x, 15, 5)
    mean, std = likelihood.mean(outputs).numpy(), likelihood.aleatoric(outputs).sqrt().numpy()
    y = np.linspace(-1, 1, p.mean.numel(), dtype="f4").reshape(p.mean.shape)
    expected = np.log(stats.norm(mean, std).pdf(y).mean(0))
    for given in (y, torch.from_numpy(y)):
        np.testing.assert_allclose(p.log_prob(given), expected, rtol=1e-4, atol=1e-5)


def test_the_log_density_of_classes_is_the_log_of_the_mean_probability():
    bnn, x = network(), data()
    p = predict(bnn, x, draws=15, likelihood="categorical", generator=seeded(5))
    y, probs = np.arange(7) % 3, by_hand(bnn, x, 15, 5).softmax(-1).mean(0).numpy()
    np.testing.assert_allclose(p.log_prob(y), np.log(probs[np.arange(7), y]), rtol=1e-5)
    soft = np.eye(3, dtype="f4")[y] * 0.9 + 0.1 / 3
    np.testing.assert_allclose(p.log_prob(soft), (soft * np.log(probs)).sum(1), rtol=1e-5)
    p = predict(bnn, x, draws=15, likelihood="bernoulli", generator=seeded(5))
    yes, probs = np.arange(21).reshape(7, 3) % 2, by_hand(bnn, x, 15, 5).sigmoid().mean(0).numpy()
    np.testing.assert_allclose(p.log_prob(yes), np.log(np.where(yes == 1, probs, 1 - probs)), rtol=1e-4)


def test_a_log_density_that_cannot_be_is_refused():
    bnn, x = network(), data()
    with pytest.raises(MethodError, match=r"without a likelihood: .* Use predict"):
        predict(bnn, x, draws=2).log_prob(torch.zeros(7, 3))
    with pytest.raises(MethodError, match="passed max_bytes"):
        predict(bnn, x, draws=2, likelihood="normal", max_bytes=0).log_prob(torch.zeros(7, 3))
    for name, y in (("normal", torch.zeros(7)), ("categorical", torch.full((7,), 3)), ("bernoulli", torch.ones(7))):
        with pytest.raises(ParameterError, match="likelihood: y"):
            predict(bnn, x, draws=2, likelihood=name).log_prob(y)


def test_its_repr_is_one_short_line():
    p = predict(network(), data(), draws=2, likelihood="categorical")
    assert repr(p) == "Prediction(2 draws, y of shape (7, 3), likelihood=Categorical(), with samples)"


def test_probabilities_of_a_half_precision_network_sum_to_one():
    p = predict(network(outputs=10).bfloat16(), data().bfloat16(), draws=3, likelihood="categorical")
    assert (p.probs.sum(1) - 1).abs().max() < 1e-6
    assert p.probs.dtype == torch.float32


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bernoulli_has_the_density_of_what_is_very_improbable(sign):
    bnn = mcrepar.bayesian(nn.Linear(1, 1, bias=False), "normal", initial_std=1e-6)
    with torch.no_grad():
        bnn.latents.get_parameter("weight.loc").fill_(20.0)
    y = torch.tensor([[float(sign < 0)]])
    p = predict(bnn, torch.tensor([[sign]]), draws=3, likelihood="bernoulli")
    assert p.log_prob(y).item() == pytest.approx(-20.0, abs=1e-3)
    assert p.aleatoric.item() == pytest.approx(math.exp(-20.0), rel=1e-3)


def test_voxels_that_are_left_out_have_no_density():
    p = predict(mcrepar.bayesian(nn.Conv2d(1, 3, 1)), torch.randn(2, 1, 2, 2), draws=2, likelihood=PerVoxel())
    y = torch.tensor([[[0, 255], [1, 2]], [[255, 255], [2, 2]]], dtype=torch.uint8)
    found = p.log_prob(y)
    assert torch.equal(found.isnan(), y == 255)
    assert found[0, 1, 0] == p.probs[0, 1, 1, 0].log()
