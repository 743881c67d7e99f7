"""Positions of an image share the noise of a convolution's weights, as their input patches are alike."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mcrepar
from mcrepar import MethodError, bayesian, calibrate_moments, predict
from mcrepar.nn.calibration import MomentFactor
from mcrepar.nn.description import factors_from
from mcrepar.nn.moments.positions import patches_of
from mcrepar.nn.moments.tensor import MomentTensor
from mcrepar.nn.random_tensor import random_tensors
from tests.conftest import seeded


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


class Pooled(nn.Module):
    """A convolution, a mean over positions in one of several ways, and classes."""

    def __init__(self, pool, norm=False):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.pool, self.linear = nn.Conv2d(2, 12, 3, padding=1), pool, nn.Linear(12, 3)
        self.norm = nn.BatchNorm2d(12) if norm else nn.Identity()
        self.double()

    def forward(self, x):
        return self.linear(self.pool(torch.relu(self.norm(self.conv(x)))).flatten(1))


POOLS = {
    "mean": lambda x: x.mean((2, 3)),
    "adaptive": nn.AdaptiveAvgPool2d(1),
    "window": nn.AvgPool2d(8),
    "in turn": lambda x: x.flatten(2).mean(2),  # positions are no longer those of the convolution
}


def mixed(count):
    """Images of all kinds: noise, more or less of it, around a level of their own."""
    return randn(count, 2, 1, 1, seed=1) + randn(count, 1, 1, 1, seed=2).exp() * randn(count, 2, 8, 8)


def smooth(count):
    """Images whose positions are alike, far from the others."""
    return 2 + 0.1 * randn(count, 2, 8, 8)


def ratios(bnn, x, draws=600):
    """The variance of the pass over that of draws, for every example."""
    one, many = predict(bnn, x, draws="moments"), predict(bnn, x, draws=draws, generator=seeded(9))
    return (one.epistemic / many.epistemic).mean(1)


def centres(bnn):
    return [row.centre for row in bnn.calibration.moment_factors if row.centre]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_correlations_are_those_of_patches(dims, stride, padding, dilation):
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]
    x = randn(2, 3, *(7, 6, 5)[:dims])
    weight = torch.eye(3 * 3**dims, dtype=torch.float64).view(-1, 3, *(3,) * dims)  # a patch's numbers, one by one
    vectors = conv(x, weight, None, stride, padding, dilation).flatten(2).mT
    wanted = vectors @ vectors.mT / (vectors.norm(dim=2, keepdim=True) * vectors.norm(dim=2).unsqueeze(1))
    found = patches_of(conv, x, weight, (stride,) * dims, padding, dilation=dilation).correlation(torch.zeros(1))
    torch.testing.assert_close(found, wanted.nan_to_num())


@pytest.mark.parametrize(("func", "options"), [(F.linear, {}), (F.conv2d, {"padding": "same"}), (F.conv1d, {})])
def test_other_layers_have_no_patches(func, options):
    assert patches_of(func, randn(2, 3, 5, 5), randn(4, 3, 3, 3), **options) is None


def test_grouped_channels_have_no_common_patches():
    assert patches_of(F.conv2d, randn(2, 4, 5, 5), randn(4, 1, 3, 3), groups=4) is None


def test_positions_share_the_noise_of_a_bias():
    """On an image of zeros nothing else is left: Var = Var b, of any mean."""
    x, w, b = randn(2, 3, 8, 8) * 0, (randn(4, 3, 3, 3), randn(4, 3, 3, 3).square()), (randn(4), torch.ones(4).double())
    result = F.conv2d(x, MomentTensor(*w), MomentTensor(*b)).mean((2, 3))
    torch.testing.assert_close(result.shared(torch.zeros(1)), torch.ones(2, 4).double())


@pytest.mark.parametrize(
    "change",
    [lambda y: y.flip(2), lambda y: y.transpose(2, 3), lambda y: y.roll(1, 0), lambda y: F.max_pool2d(y, 3, 1, 1),
     lambda y: F.conv2d(y, randn(4, 4, 3, 3), padding="same")],
)  # fmt: skip
def test_patches_go_through_what_keeps_positions_alone(change):
    y = F.conv2d(randn(2, 3, 8, 8), MomentTensor(randn(4, 3, 3, 3), randn(4, 3, 3, 3).square()))
    assert torch.relu(y + 1).patches is y.patches is not None
    assert change(y).patches is None


@pytest.mark.parametrize(
    "mean",
    [lambda y: F.avg_pool2d(y, 5), lambda y: F.avg_pool2d(y, 6, divisor_override=2), lambda y: y.mean(1),
     lambda y: y.mean((0, 2, 3)), lambda y: y.mean()],
)  # fmt: skip
def test_means_of_something_else_share_nothing(mean):
    y = F.conv2d(randn(2, 3, 8, 8), MomentTensor(randn(4, 3, 3, 3), randn(4, 3, 3, 3).square()))
    assert mean(y).shared is None
    assert F.avg_pool2d(y, 6).shared is not None


def test_an_input_that_was_overwritten_is_not_compared():
    x = randn(2, 3, 8, 8)
    y = F.conv2d(x, MomentTensor(randn(4, 3, 3, 3), randn(4, 3, 3, 3).square()))
    x.zero_()
    assert y.mean((2, 3)).shared is None


def test_a_linear_network_is_exact_for_images_of_any_kind():
    """The mean over positions of a convolution with equal noise: Var = sigma^2 sum_k (mean_p x_pk)^2."""
    net = nn.Sequential(nn.Conv2d(2, 5, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    bnn = bayesian(net, posterior="normal", initial_std=0.2).eval()
    x, other = mixed(64), smooth(4)
    calibrate_moments(bnn, x, draws=2000, generator=seeded(1))
    assert [(row.operation, row.centre) for row in bnn.calibration.moment_factors] == [
        ("conv2d", ()),
        ("adaptive_avg_pool2d", (0.0,)),
    ]
    (tensor,) = random_tensors(bnn).values()
    equal = tensor.posterior.variance.flatten()[0].detach()
    assert bool((tensor.posterior.variance == equal).all())
    for images in (x, other):
        exact = F.unfold(images, 3).mean(2).square().sum(1, keepdim=True).expand(-1, 5) * equal
        found = predict(bnn, images, draws="moments").epistemic
        torch.testing.assert_close(found, exact, rtol=0.1, atol=0)  # factors of 2,000 draws: 3 %


@pytest.mark.parametrize(
    ("pool", "norm", "structure"),
    [("mean", False, "weights"), ("adaptive", True, "weights"), ("window", False, "weights"), ("mean", True, "rank1")],
)
def test_out_of_distribution_images_have_the_variance_of_draws(pool, norm, structure):
    """Ratios of variances of 600 draws have a standard error of 6 %, and seeds are fixed."""
    x, other = mixed(128), smooth(8)
    bnn = bayesian(Pooled(POOLS[pool], norm), posterior="normal", initial_std=0.2, structure=structure).eval()
    bnn = bnn.calibrate(x).eval() if norm else bnn
    calibrate_moments(bnn, x, generator=seeded(1))
    assert centres(bnn)
    found = [float(ratios(bnn, images).mean()) for images in (x[:8], other)]
    assert all(0.7 < ratio < 1.3 for ratio in found), found


def test_independent_positions_would_have_too_small_a_variance(monkeypatch):
    monkeypatch.setattr("mcrepar.nn.moments.linear_rules.MOST", 0)
    x = mixed(128)
    bnn = bayesian(Pooled(POOLS["mean"], True), posterior="normal", initial_std=0.2).calibrate(x).eval()
    calibrate_moments(bnn, x, generator=seeded(1))
    found = [float(ratios(bnn, images).mean()) for images in (x[:8], smooth(8))]
    assert found[1] < 0.6 < 0.9 < found[0], found


def test_positions_that_changed_are_not_compared():
    bnn = bayesian(Pooled(POOLS["in turn"]), posterior="normal").eval()
    calibrate_moments(bnn, mixed(16), draws=8, generator=seeded(1))
    assert not centres(bnn)


def test_a_centre_is_kept_with_the_network_and_exported(tmp_path):
    x, other = mixed(64), smooth(4)
    bnn = bayesian(Pooled(POOLS["mean"], True), posterior="normal", initial_std=0.2).calibrate(x).eval()
    calibrate_moments(bnn, x, draws=16, generator=seeded(1))
    wanted = predict(bnn, other, draws="moments").epistemic
    mcrepar.save(bnn, tmp_path / "model")
    same = mcrepar.load(tmp_path / "model", Pooled(POOLS["mean"], True)).eval()
    torch.testing.assert_close(predict(same, other, draws="moments").epistemic, wanted)
    torch.testing.assert_close(mcrepar.nn.moment_module(same)(other)[1], wanted)


def test_larger_images_than_those_that_were_fitted_are_refused():
    bnn = bayesian(Pooled(POOLS["adaptive"]), posterior="normal").eval()
    calibrate_moments(bnn, mixed(64), draws=16, generator=seeded(1))
    assert centres(bnn)
    with pytest.raises(MethodError, match=r"all positions of an image, at most 256.*calibrate_moments"):
        predict(bnn, randn(2, 2, 20, 20), draws="moments")


def test_centres_that_were_saved_as_rows_of_their_own_load():
    rows = [["conv2d", 1.5], ["mean", 2.0], ["centre", 0.25], ["centre", 0.5], ["linear", 1.0, []]]
    assert factors_from(rows) == (
        MomentFactor("conv2d", 1.5),
        MomentFactor("mean", 2.0, (0.25, 0.5)),
        MomentFactor("linear", 1.0),
    )


def test_members_are_averaged_with_the_centre_of_the_first():
    x = mixed(64)
    net = Pooled(POOLS["mean"], True)
    bnn = bayesian(net, structure="rank1", posterior="normal", members=3, initial_std=0.2).calibrate(x).eval()
    calibrate_moments(bnn, x, draws=16, generator=seeded(1))
    assert len(bnn.calibration.moment_factors) == 4
    assert predict(bnn, x[:4], draws="moments").mean.isfinite().all()


def test_correlations_of_many_examples_are_made_in_parts(monkeypatch):
    y = F.conv2d(randn(7, 3, 8, 8), MomentTensor(randn(4, 3, 3, 3), randn(4, 3, 3, 3).square())).mean((2, 3))
    whole = y.shared(torch.zeros(1))
    monkeypatch.setattr("mcrepar.nn.moments.positions.EXAMPLES", 3)
    torch.testing.assert_close(y.shared(torch.zeros(1)), whole)
