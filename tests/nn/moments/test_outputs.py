"""From mean and variance of an output to a prediction: classes that share the noise of the last layer's inputs."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mcrepar import bayesian, calibrate_moments, predict
from mcrepar.nn.moments.tensor import MomentTensor
from tests.conftest import seeded


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def sampled(x, w, count=200_000):
    """Covariances of a dense layer's outputs by samples of inputs and weights, for one example."""
    xs = x.expectation + x.variance.sqrt() * randn(count, *x.shape, seed=1)
    ws = w.expectation + w.variance.sqrt() * randn(count, *w.shape, seed=2)
    return torch.cov(torch.einsum("kci,ki->ck", ws, xs[:, 0]))


def test_outputs_of_a_dense_layer_share_the_noise_of_its_inputs():
    """A correlation of 200,000 samples has a standard error of at most .0022."""
    x = MomentTensor(randn(1, 4), randn(1, 4, seed=3).square())
    w = MomentTensor(randn(3, 4, seed=4), 0.1 * randn(3, 4, seed=5).square())
    y = F.linear(x, w)
    root = y.mixing.root()[0]
    wanted = sampled(x, w)
    wanted = wanted / (wanted.diag().sqrt().unsqueeze(1) * wanted.diag().sqrt())
    torch.testing.assert_close(root @ root.mT, wanted, atol=0.01, rtol=0)
    assert float(wanted[0, 1].abs()) > 0.1  # so that independent outputs would fail


@pytest.mark.parametrize("change", [torch.relu, lambda y: y + 1, lambda y: y.view(1, 3, 1), lambda y: y.softmax(1)])
def test_what_follows_the_layer_has_no_mixing(change):
    y = F.linear(MomentTensor(randn(1, 4), torch.ones(1, 4).double()), randn(3, 4))
    assert y.mixing is not None
    assert change(y).mixing is None


def test_outputs_of_equal_weights_are_one_number():
    y = F.linear(MomentTensor(randn(2, 4), torch.ones(2, 4).double()), randn(1, 4).expand(3, 4))
    root = y.mixing.root()
    torch.testing.assert_close(root @ root.mT, torch.ones(2, 3, 3).double(), atol=2e-3, rtol=0)


def test_inputs_without_noise_give_independent_outputs():
    y = F.linear(
        MomentTensor(randn(2, 4), torch.zeros(2, 4).double()), MomentTensor(randn(3, 4), torch.ones(3, 4).double())
    )
    root = y.mixing.root()
    torch.testing.assert_close(root @ root.mT, torch.eye(3).double().expand(2, 3, 3), atol=2e-3, rtol=0)


def logits_and_weight():
    x = MomentTensor(randn(2, 4), randn(2, 4, seed=3).square())
    w = MomentTensor(randn(3, 4, seed=4), 0.1 * randn(3, 4, seed=5).square())
    return F.linear(x, w)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_log_softmax_keeps_what_its_logits_share(factor):
    """To first order it subtracts sum_d p_d u_d: the covariance is A C A^T with A = 1 - 1 p^T."""
    logits = MomentTensor(logits_and_weight().expectation, logits_and_weight().variance * factor)  # a fitted one
    logits.mix(logits_and_weight().mixing)
    y = F.log_softmax(logits, 1)
    root, p = logits.mixing.root(), y.expectation.exp()
    spread = (root @ root.mT) * (logits.variance.unsqueeze(1) * logits.variance.unsqueeze(2)).sqrt()
    a = torch.eye(3).double() - p.unsqueeze(1)
    wanted = a @ spread @ a.mT
    torch.testing.assert_close(y.variance, wanted.diagonal(dim1=1, dim2=2), rtol=0.01, atol=0)  # ties add .001
    found = y.mixing.root() * y.variance.sqrt().unsqueeze(2)
    torch.testing.assert_close(found @ found.mT, wanted, rtol=0, atol=0.005 * float(wanted.max()))
    independent = F.log_softmax(MomentTensor(logits.expectation, logits.variance), 1)
    assert float((independent.variance / y.variance - 1).abs().max()) > 0.1  # so that forgetting it would fail


def test_gradients_of_log_softmax_are_finite_without_variance():
    weight = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    spread = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    y = F.log_softmax(F.linear(MomentTensor(randn(2, 4), spread), weight), 1)
    (y.expectation.sum() + y.variance.sum()).backward()
    assert weight.grad.isfinite().all()
    assert spread.grad.isfinite().all()


@pytest.mark.parametrize("own", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("asked", [None, torch.float32, torch.float64])
def test_log_softmax_in_other_dtypes(own, asked):
    x = MomentTensor(randn(2, 4).to(own), randn(2, 4).square().to(own))
    y = F.log_softmax(F.linear(x, randn(3, 4, seed=4).to(own)), -1, dtype=asked)
    assert y.dtype == y.variance.dtype == (asked or own)
    wanted = F.log_softmax(F.linear(MomentTensor(x.expectation.double(), x.variance.double()), randn(3, 4, seed=4)), -1)
    torch.testing.assert_close(y.variance.double(), wanted.variance, rtol=0.1, atol=0.02)
    assert y.mixing.root().isfinite().all()


def test_autocast_does_not_round_what_logits_share():
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 6), nn.LogSoftmax(1)))
    x = torch.randn(20, 4)
    with torch.autocast("cpu", torch.bfloat16):
        low = predict(bnn, x, draws="moments", likelihood="categorical")
    full = predict(bnn, x, draws="moments", likelihood="categorical")
    torch.testing.assert_close(low.probs.float(), full.probs, rtol=0, atol=0.02)


@pytest.mark.parametrize("batch_size", [40, 7])
@pytest.mark.parametrize("options", [{}, {"structure": "rank1"}, {"structure": "rank1", "members": 2}])
@pytest.mark.parametrize("end", [nn.Identity, partial(nn.LogSoftmax, 1)], ids=["logits", "log_softmax"])
def test_mutual_information_is_that_of_draws(options, end, batch_size):
    """Random features before a last layer without noise of its own: classes are far from independent."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 6), end()).double()
    with torch.no_grad():
        net[1].weight[1:] = net[1].weight[:1] + 0.2 * net[1].weight[1:]  # classes rise and fall together
        net[1].weight.mul_(5)
    bnn = bayesian(net, posterior="normal", select=["0.weight"], initial_std=0.3, **options)
    x = randn(40, 4)
    one = predict(bnn, x, draws="moments", likelihood="categorical", generator=seeded(1), batch_size=batch_size)
    many = predict(bnn, x, draws=4000, likelihood="categorical", generator=seeded(2))
    ratio = one.mutual_information.mean() / many.mutual_information.mean()
    assert not one.probs.requires_grad
    assert 0.85 < float(ratio) < 1.15  # as if classes were independent: 20 and more


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_log_softmax_of_logits_whose_input_is_not_random(classes, fitted):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, classes), nn.LogSoftmax(1)).double(), posterior="normal", initial_std=0.1)
    x = randn(100, 4)
    if fitted:
        calibrate_moments(bnn, x, 400, seeded(3), likelihood="categorical")
    one = predict(bnn, x, draws="moments", likelihood="categorical", generator=seeded(1))
    many = predict(bnn, x, draws=4000, likelihood="categorical", generator=seeded(2))
    ratio = one.mutual_information.mean() / many.mutual_information.mean()
    assert 0.9 < float(ratio) < 1.1  # as if log probabilities were independent: 1/2 and 2/3
