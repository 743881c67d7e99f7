"""The estimators of scikit-learn: its own checks, and what its users do with them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import mcrepar

pytest.importorskip("sklearn", reason="scikit-learn is what these tests are about")
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine, make_moons
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from mcrepar.errors import ParameterError
from mcrepar.sklearn import BayesianClassifier, BayesianRegressor

QUICK = {"steps": 16, "lr": 0.15, "draws": 3, "hidden": (16,), "random_state": 0}
SMALL = {**QUICK, "steps": 60, "lr": 0.05, "draws": 20}
SKIPPED = {
    "check_sample_weight_equivalence_on_dense_data": "training draws batches and noise: a weight of 2 has the expected "
    "loss of two copies of an example, but not the same random numbers",
}


@parametrize_with_checks(
    [BayesianClassifier(**QUICK), BayesianRegressor(**QUICK)], expected_failed_checks=lambda estimator: SKIPPED
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def moons(n=200):
    return train_test_split(*make_moons(n, noise=0.2, random_state=0), random_state=0)


def line(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 1))
    return x, 100 + 30 * x[:, 0] + 5 * rng.normal(size=n)


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits, load_wine])
def test_real_classes_are_learned_with_probabilities_that_are_right(load):
    x, x_test, y, y_test = train_test_split(*load(return_X_y=True), test_size=0.3, random_state=0)
    model = BayesianClassifier(steps=400, draws=50, random_state=0).fit(x, y)
    assert model.score(x_test, y_test) > 0.92
    shares = np.bincount(y) / len(y)
    probs = model.predict_proba(x_test)
    assert mcrepar.metrics.nll(probs, y_test) < 0.35 * mcrepar.metrics.nll(np.tile(shares, (len(y_test), 1)), y_test)
    assert mcrepar.metrics.ece(probs, y_test) < 0.08


def test_real_numbers_are_learned_with_intervals_that_are_right():
    x, x_test, y, y_test = train_test_split(*load_diabetes(return_X_y=True), test_size=0.3, random_state=0)
    model = BayesianRegressor(steps=400, draws=50, random_state=0).fit(x, y)
    assert model.score(x_test, y_test) > 0.3  # least squares have 0.4
    low, high = model.predict_interval(x_test, level=0.9)
    covered = ((y_test >= low) & (y_test <= high)).sum()
    # a right interval covers Binomial(133, 0.9) targets: outside of these limits with a probability below 1e-3
    assert 107 <= covered <= 131


def test_a_calibrated_classifier():
    x, x_test, y, y_test = moons(400)
    model = BayesianClassifier(steps=200, draws=50, random_state=0).fit(x, y)
    assert model.score(x_test, y_test) > 0.9
    assert mcrepar.metrics.nll(model.predict_proba(x_test), y_test) < 0.3
    far = model.prediction(np.array([[30.0, 30.0], [-30.0, 20.0]]))
    near = model.prediction(x_test)
    assert near.mutual_information.mean() > 0
    assert far.probs.shape == (2, 2)
    rule = near.conformal(y_test, level=0.9)
    assert rule(near).shape == (len(y_test), 2)


def test_a_regression_in_the_units_of_y():
    x, y = line()
    model = BayesianRegressor(steps=500, lr=0.03, draws=50, random_state=0).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert model.score(x, y) > 0.95
    assert std.mean() == pytest.approx(5, rel=0.3)  # the noise
    lower, upper = model.predict_interval(x, level=0.9)
    assert 0.8 < ((lower <= y) & (y <= upper)).mean() <= 1
    p = model.prediction(x)
    np.testing.assert_allclose(p.mean[:, 0], mean)
    expected = torch.distributions.Normal(p.samples, p.noise.sqrt()).log_prob(torch.tensor(y)[:, None])
    torch.testing.assert_close(p.log_prob(y[:, None]), expected.logsumexp(0) - np.log(50))


def test_several_targets_keep_their_units():
    x, y = line()
    both = BayesianRegressor(**{**SMALL, "steps": 200}).fit(x, np.stack([y, -y / 100], 1))
    mean, std = both.predict(x, return_std=True)
    assert mean.shape == std.shape == (120, 2)
    np.testing.assert_allclose(mean[:, 1], -mean[:, 0] / 100, atol=0.3)
    assert both.predict_interval(x)[0].shape == (120, 2)


def test_names_pandas_pipelines_and_searches():
    pandas = pytest.importorskip("pandas", reason="pandas is what this test is about")
    iris = load_iris(as_frame=True)
    names = iris.target_names[iris.target]
    model = BayesianClassifier(**SMALL).fit(iris.data, names)
    assert list(model.classes_) == sorted(set(names))
    assert list(model.feature_names_in_) == list(iris.data.columns)
    assert model.score(iris.data, names) > 0.85
    pipe = make_pipeline(FunctionTransformer(np.log1p), BayesianClassifier(**SMALL))
    assert cross_val_score(pipe, iris.data.to_numpy(), names, cv=2).mean() > 0.8
    search = GridSearchCV(BayesianClassifier(**QUICK), {"hidden": [(8,), (8, 8)], "prior": ["normal", None]}, cv=2)
    search.fit(iris.data, pandas.Series(names))
    assert set(search.best_params_) == {"hidden", "prior"}


@pytest.mark.parametrize("structure", ["weights", "rank1"])
def test_any_module(structure):
    x, x_test, y, _ = moons()
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    before = [p.clone() for p in net.parameters()]
    options = {**QUICK, "structure": structure}
    model = BayesianClassifier(net, **options).fit(x, y)
    assert model.predict_proba(x_test).shape == (50, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)), "the user's network changed"
    made = BayesianClassifier(lambda inputs, outputs: nn.Linear(inputs, outputs), **QUICK).fit(x, y)
    assert made.bnn_.mean()["weight"].shape == (2, 2)


def test_images_go_through_a_module_of_their_own():
    images = np.random.default_rng(0).normal(size=(30, 1, 4, 4))
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    model = BayesianClassifier(net, **QUICK).fit(images, np.arange(30) % 2)
    assert model.predict(images).shape == (30,)


def test_a_seed_decides_everything_and_touches_nothing():
    x, x_test, y, _ = moons()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    models = [BayesianClassifier(**QUICK).fit(x, y) for _ in range(2)]
    assert torch.equal(before, torch.random.get_rng_state())
    a, b = (m.predict_proba(x_test) for m in models)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, pickle.loads(pickle.dumps(models[0])).predict_proba(x_test))  # noqa: S301
    other = clone(models[0]).set_params(random_state=1).fit(x, y)
    assert not np.array_equal(a, other.predict_proba(x_test))
    free = [BayesianClassifier(**{**QUICK, "random_state": None}).fit(x, y) for _ in range(2)]
    assert free[0].seed_ != free[1].seed_


def test_weights_count_examples():
    """A class with weight 0 is not learned, and one with a large weight is more probable."""
    x, y = np.zeros((100, 1)), np.arange(100) % 2
    heavy = BayesianClassifier(**SMALL).fit(x, y, sample_weight=np.where(y == 1, 9.0, 1.0))
    assert heavy.predict_proba(x[:1])[0, 1] == pytest.approx(0.9, abs=0.08)
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        BayesianClassifier(**QUICK).fit(x, y, sample_weight=-np.ones(100))
    one = BayesianRegressor(**SMALL).fit(*line(), sample_weight=np.r_[np.ones(60), np.zeros(60)])
    same = BayesianRegressor(**SMALL).fit(*(a[:60] for a in line()))
    assert one.x_mean_ == pytest.approx(same.x_mean_)
    assert one.y_mean_ == pytest.approx(same.y_mean_)
    assert one.y_scale_ == pytest.approx(same.y_scale_)


@pytest.mark.parametrize("targets", [1, 2])
def test_a_weight_of_two_standardises_as_two_copies(targets):
    x, y = line(40)
    y = y if targets == 1 else np.stack([y, y**2], 1)
    weight = np.where(x[:, 0] > 0, 2.0, 1.0)
    one = BayesianRegressor(**QUICK).fit(x, y, sample_weight=weight)
    same = BayesianRegressor(**QUICK).fit(*(np.repeat(a, weight.astype(int), 0) for a in (x, y)))
    for name in ("x_mean_", "x_scale_", "y_mean_", "y_scale_"):
        np.testing.assert_allclose(getattr(one, name), getattr(same, name), rtol=1e-9)


def test_a_constant_stays_one_under_weights():
    """Its standard deviation is 0 but for rounding, by which nothing is divided."""
    x, y = np.c_[line(30)[0], np.full(30, 0.1)], np.full(30, 0.1)
    model = BayesianRegressor(**QUICK).fit(x, y, sample_weight=np.linspace(0.1, 0.7, 30))
    assert model.x_scale_[1] == 1
    assert model.y_scale_ == 1


@pytest.mark.parametrize("steps", range(1, 8))
def test_any_number_of_steps(steps):
    x, _, y, _ = moons()
    model = BayesianClassifier(**{**QUICK, "steps": steps}).fit(x, y)
    assert np.isfinite(model.predict_proba(x)).all()


def test_one_class_is_refused():
    with pytest.raises(mcrepar.ParameterError, match="only one class"):
        BayesianClassifier(**QUICK).fit(np.zeros((4, 2)), np.ones(4))


class Two(nn.Linear):
    """A network that returns more than a tensor."""

    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"module": nn.Linear(2, 5)}, r"gives \(5,\) numbers for an example, and 2 are needed"),
        ({"module": 5}, "it is no network"),
        ({"beta": -1.0}, "beta"),
        ({"steps": -1}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"hidden": (0,)}, "hidden"),
        ({"hidden": 8}, "hidden=8: it is of type int, not a width for every hidden layer"),
        ({"hidden": None}, "hidden=None"),
        ({"lr": "a"}, "lr='a'"),
        ({"lr": -1.0}, "lr"),
        ({"module": Two(2, 2)}, "it returns a tuple"),
        ({"module": nn.Linear(3, 2)}, r"Linear: it cannot take an example of shape \(2,\)"),
        ({"module": nn.Bilinear(2, 2, 2)}, "Bilinear: it cannot take an example"),
        ({"module": lambda inputs, outputs: 3}, "module int: it is no network"),
    ],
)
def test_options_that_no_training_has_are_refused_before_it(options, words):
    x = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ParameterError, match=words):
        BayesianClassifier(**options).fit(x, x[:, 0] > 0)
