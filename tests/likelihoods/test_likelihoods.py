"""Likelihoods against torch.distributions, and everything they refuse (float64)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from mcrepar.errors import MethodError, ParameterError
from mcrepar.likelihoods import Bernoulli, Categorical, Likelihood, NoisyDirichlet, Normal, PerVoxel
from mcrepar.likelihoods.classes import expected_normaliser
from tests.conftest import seeded


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def classes(count: int, *shape: int) -> torch.Tensor:
    return torch.randint(count, shape, generator=seeded(1))


@pytest.mark.parametrize("positions", [(), (6,), (2, 3, 4)], ids=["label", "sequence", "volume"])
def test_categorical_is_that_of_torch(positions):
    output, y = 3 * randn(5, 7, *positions), classes(7, 5, *positions)
    Categorical().check(output, y)
    reference = td.Categorical(logits=output.movedim(1, -1))
    expected = reference.log_prob(y).reshape(5, -1).sum(1)
    torch.testing.assert_close(Categorical().log_prob(output, y), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(Categorical().mean(output), reference.probs.movedim(-1, 1))


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3, 8, 8)], ids=str)
@pytest.mark.parametrize("soft", [False, True])
def test_bernoulli_is_that_of_torch(shape, soft):
    output = 5 * randn(*shape)
    y = randn(*shape, seed=1).sigmoid() if soft else classes(2, *shape).double()
    Bernoulli().check(output, y)
    reference = td.Bernoulli(logits=output, validate_args=False)
    expected = reference.log_prob(y).reshape(5, -1).sum(1)
    torch.testing.assert_close(Bernoulli().log_prob(output, y), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(Bernoulli().aleatoric(output), reference.variance)
    assert torch.equal(Bernoulli().probs(output), Bernoulli().mean(output))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_bernoulli_takes_any_zeros_and_ones(dtype):
    output, y = randn(4, 2), classes(2, 4, 2)
    Bernoulli().check(output, y.to(dtype))
    assert torch.equal(Bernoulli().log_prob(output, y.to(dtype)), Bernoulli().log_prob(output, y.double()))


@pytest.mark.parametrize("kind", [0.3, "learned", "heteroscedastic"])
def test_normal_is_that_of_torch(kind):
    likelihood, output = Normal(kind), randn(5, 2, 6)
    if likelihood.log_scale is not None:
        torch.nn.init.constant_(likelihood.log_scale, -0.5)
    mean, scale = {
        0.3: (output, torch.tensor(0.3, dtype=torch.float64)),
        "learned": (output, torch.tensor(-0.5).double().exp()),
        "heteroscedastic": (output[..., :3], output[..., 3:].exp()),
    }[kind]
    y = randn(*mean.shape, seed=1)
    likelihood.check(output, y)
    reference = td.Normal(mean, scale)
    expected = reference.log_prob(y).reshape(5, -1).sum(1)
    torch.testing.assert_close(likelihood.log_prob(output, y), expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(likelihood.mean(output), mean)
    torch.testing.assert_close(likelihood.aleatoric(output), reference.variance.expand_as(mean))


def test_a_learned_scale_finds_the_spread_of_the_residuals():
    likelihood, y = Normal("learned").double(), 2.5 * randn(200, 3)
    optimizer = torch.optim.LBFGS(likelihood.parameters(), line_search_fn="strong_wolfe", max_iter=50)

    def loss():
        optimizer.zero_grad()
        value = -likelihood.log_prob(torch.zeros_like(y), y).mean()
        value.backward()
        return value

    optimizer.step(loss)
    assert math.isclose(float(likelihood.log_scale.detach().exp()), float(y.square().mean().sqrt()), rel_tol=1e-6)


def test_every_voxel_is_an_example():
    """The categorical log probability, voxel by voxel; the mean of them is what `elbo` takes."""
    u, y = torch.randn(2, 4, 3, 5, generator=seeded(0)), torch.randint(4, (2, 3, 5), generator=seeded(1))
    expected = td.Categorical(logits=u.movedim(1, -1)).log_prob(y)
    found = PerVoxel().log_prob(u, y)
    assert torch.allclose(found, expected.flatten())
    assert torch.allclose(found.view(2, -1).sum(1), Categorical().log_prob(u, y))
    PerVoxel().check(u, y)


def test_voxels_may_be_left_out():
    u, y = torch.randn(1, 3, 4, generator=seeded(0)), torch.tensor([[0, 255, 2, 255]], dtype=torch.uint8)
    PerVoxel().check(u, y)
    expected = td.Categorical(logits=u[0].T).log_prob(torch.tensor([0, 0, 2, 0]))[[0, 2]]
    assert torch.allclose(PerVoxel().log_prob(u, y), expected)
    zero = torch.zeros_like(u)
    assert torch.allclose(PerVoxel().expected_log_prob(u, zero, y), expected)


def test_weighted_labels_weigh_their_voxels():
    u, y = torch.randn(2, 3, 4, 4, generator=seeded(0)), torch.randint(3, (2, 4, 4), generator=seeded(1))
    weight = torch.rand(2, 4, 4, generator=seeded(2)) * 3
    labels = torch.nn.functional.one_hot(y, 3).movedim(-1, 1) * weight[:, None]
    PerVoxel().check(u, labels)
    expected = PerVoxel().log_prob(u, y) * weight.flatten()
    assert torch.allclose(PerVoxel().log_prob(u, labels), expected, atol=1e-6)
    v = torch.rand(u.shape, generator=seeded(3))
    plain = PerVoxel().expected_log_prob(u, v, y)
    assert torch.allclose(PerVoxel().expected_log_prob(u, v, labels), plain * weight.flatten(), atol=1e-5)
    assert torch.allclose(plain.view(2, -1).sum(1), Categorical().expected_log_prob(u, v, y), atol=1e-4)


def test_an_autoencoder_has_its_input_as_y():
    x = randn(4, 1, 6, 6).sigmoid()
    for likelihood in (Bernoulli(), Normal()):
        likelihood.check(randn(4, 1, 6, 6, seed=1), x)
        assert likelihood.log_prob(randn(4, 1, 6, 6, seed=1), x).shape == (4,)


def test_soft_labels_are_a_mean_over_classes():
    """Mixup and label smoothing: the cross-entropy of td.Categorical with the label's probabilities."""
    for shape in ((5, 3), (5, 3, 2, 2)):
        output, y = randn(*shape), randn(*shape, seed=1).softmax(1)
        Categorical().check(output, y)
        expected = (y * output.log_softmax(1)).reshape(5, -1).sum(1)
        torch.testing.assert_close(Categorical().log_prob(output, y), expected, atol=1e-12, rtol=1e-12)
    hard = torch.tensor([0, 2])
    soft = torch.nn.functional.one_hot(hard, 3).to(torch.bfloat16)
    Categorical().check(randn(2, 3), soft)
    torch.testing.assert_close(*(Categorical().log_prob(randn(2, 3), y) for y in (hard, soft)))


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Normal(0.7), randn(4, 6, seed=1)), (Normal("heteroscedastic"), randn(4, 3, seed=1)),
        (Bernoulli(), classes(2, 4, 6)), (NoisyDirichlet(), classes(6, 4)),
        (NoisyDirichlet(0.1), randn(4, 6, seed=1).softmax(1)),
    ],
)  # fmt: skip
def test_the_expected_log_likelihood_is_the_mean_over_normal_outputs(likelihood, y):
    """100,000 samples of the output; |z| < 5 by chance but for 6e-7 of the numbers."""
    mean, variance = randn(4, 6, seed=2), 0.5 * randn(4, 6, seed=3).square()
    u = mean + variance.sqrt() * torch.randn(100_000, 4, 6, generator=seeded(4), dtype=torch.float64)
    each = likelihood.log_prob(u.flatten(0, 1), y.repeat(100_000, *[1] * (y.dim() - 1))).view(-1, 4)
    z = (likelihood.expected_log_prob(mean, variance, y) - each.mean(0)) / (each.std(0) / 100_000**0.5)
    assert float(z.abs().max()) < 5
    torch.testing.assert_close(
        likelihood.expected_log_prob(mean, 0 * variance, y), likelihood.log_prob(mean, y), atol=1e-9, rtol=1e-9
    )


@pytest.mark.parametrize("y", [classes(5, 4, 2), randn(4, 5, 2, seed=1).softmax(1)], ids=["classes", "soft"])
def test_the_expectation_of_classes_is_a_bound(y):
    mean, variance = randn(4, 5, 2, seed=2), randn(4, 5, 2, seed=3).square()
    u = mean + variance.sqrt() * torch.randn(2000, 4, 5, 2, generator=seeded(4), dtype=torch.float64)
    each = Categorical().log_prob(u.flatten(0, 1), y.repeat(2000, *[1] * (y.dim() - 1))).view(-1, 4).mean(0)
    bound = Categorical().expected_log_prob(mean, variance, y)
    assert bool((bound < each).all())
    assert float((each - bound).max()) < 1.5
    jensen = (torch.logsumexp(mean + 0.5 * variance, 1) - expected_normaliser(mean, variance)).sum(1)
    assert bool(
        (each - bound < 0.5 * (each - bound + jensen)).all()
    )  # less than half of the gap of Jensen's inequality
    without = Categorical().expected_log_prob(mean, 0 * variance, y)
    torch.testing.assert_close(without, Categorical().log_prob(mean, y))


@pytest.mark.parametrize("size", [1.0, 32.0, 512.0])
def test_the_bound_is_never_above_jensens(size):
    mean, variance = 3 * randn(50, 10, seed=5), size * randn(50, 10, seed=6).square()
    jensen, bound = torch.logsumexp(mean + 0.5 * variance, 1), expected_normaliser(mean, variance)
    assert bool((bound <= jensen).all())
    u = mean + variance.sqrt() * torch.randn(4000, 50, 10, generator=seeded(7), dtype=torch.float64)
    found = torch.logsumexp(u, 2)
    assert bool((bound > found.mean(0) - 5 * found.std(0) / math.sqrt(4000)).all())  # a false alarm: 1e-5


def test_the_noisy_dirichlet_matches_gammas():
    """exp of its Normal has the mean and the variance of Gamma(a, 1): both are a."""
    likelihood, y = NoisyDirichlet(0.3), torch.tensor([1])
    target, log_scale = likelihood.target(torch.zeros(1, 2, dtype=torch.float64), y)
    variance = torch.exp(2 * log_scale)
    a = torch.tensor([[0.3, 1.3]])
    mean = torch.exp(target + variance / 2)
    torch.testing.assert_close(mean, a, check_dtype=False)
    torch.testing.assert_close((variance.exp() - 1) * mean.square(), a, check_dtype=False)
    expected = td.Normal(target, variance.sqrt()).log_prob(randn(1, 2)).sum(1)
    torch.testing.assert_close(likelihood.log_prob(randn(1, 2), y), expected)
    assert likelihood.options == {"epsilon": 0.3}
    torch.testing.assert_close(likelihood.probs(randn(2, 3)), randn(2, 3).softmax(1))
    with pytest.raises(ParameterError, match="NoisyDirichlet"):
        NoisyDirichlet(0.0)
    with pytest.raises(ParameterError, match="3 classes"):
        likelihood.check(randn(2, 3), torch.tensor([0, 3]))


def test_a_likelihood_without_an_expectation_says_so():
    class Own(Likelihood):
        def log_prob(self, output, y):
            return output.sum(1)

        def _check(self, output, y):
            pass

    with pytest.raises(MethodError, match="draws='moments' with Own"):
        Own().expected_log_prob(randn(2, 1), randn(2, 1), randn(2, 1))


def test_probabilities_of_halves_sum_to_one():
    logits = (4 * randn(50, 10)).to(torch.bfloat16)
    assert (Categorical().probs(logits).sum(1) - 1).abs().max() < 1e-6
    assert Bernoulli().probs(logits).dtype == torch.float32


NAN = torch.tensor([[0.0], [math.nan]], dtype=torch.float64)
REFUSED: list[tuple[Likelihood, object, object, str]] = [
    (Categorical(), randn(2, 3), torch.tensor([0, 3]), "y lies between 0 and 3, and there are 3 classes. Use 0 to 2"),
    (Categorical(), randn(2, 3), torch.tensor([-1, 0]), "y lies between -1 and 0"),
    (Categorical(), randn(2, 3), torch.zeros(2), r"y has dtype torch.float32. Use class numbers .* shape \(2, 3\)"),
    (Categorical(), randn(2, 3), torch.zeros(2, 3), "soft labels lie above 0 and sum to 0 up to 0. Use probabilities"),
    (Categorical(), randn(2, 3), torch.tensor([[-1.0, 1, 1]] * 2), "soft labels lie above -1"),
    (Categorical(), randn(2, 3), torch.ones(2, 4) / 4, r"a y of shape \(2, 3\)"),
    (Categorical(), randn(2, 3), torch.zeros(2, dtype=torch.bool), "y has dtype torch.bool"),
    (Categorical(), randn(2, 3), torch.zeros(2, 1, dtype=torch.long), r"shape \(2, 1\), and the output \(2, 3\)"),
    (Categorical(), randn(2, 3, 4, 4), torch.zeros(2, 1, 4, 4, dtype=torch.long), r"a y of shape \(2, 4, 4\)"),
    (Categorical(), randn(2), torch.zeros(2, dtype=torch.long), r"an output of \(batch, classes, ...\)"),
    (Bernoulli(), randn(2, 1), torch.zeros(2), r"shape \(2,\), and the output \(2, 1\). Use a y of shape \(2, 1\)"),
    (Bernoulli(), randn(2, 1), torch.tensor([[0.0], [2.0]]), "y lies between 0 and 2. Use values between 0 and 1"),
    (Bernoulli(), randn(2, 1), NAN, r"y is NaN at \(1, 0\), one of 1"),
    (Normal(), randn(2, 1), NAN, r"y is NaN at \(1, 0\)"),
    (Normal(), randn(2, 1), torch.zeros(2), r"y.reshape\(2, 1\)"),
    (Normal(), randn(2, 1), torch.zeros(2, 1, dtype=torch.long), "y has dtype torch.int64"),
    (Normal("heteroscedastic"), randn(2, 2), torch.zeros(2, 2), r"a y of shape \(2, 1\)"),
    (Normal("heteroscedastic"), randn(2, 3), torch.zeros(2, 1), "without halves"),
    (Normal(), (randn(2, 1), 0), torch.zeros(2, 1), "output is a tuple. Use a tensor"),
    (Normal(), randn(2, 1), [[0.0], [0.0]], "y is a list"),
    (Normal(), torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 1), "output has dtype torch.int64"),
    (Normal(), torch.tensor(0.0), torch.tensor(0.0), "without a batch"),
    (Normal(), torch.zeros(0, 1), torch.zeros(0, 1), "without a batch"),
    (Normal(), randn(2, 1), torch.zeros(2, 1, device="meta"), "y on meta. Use one device"),
    (PerVoxel(), randn(2, 3), torch.zeros(2, dtype=torch.long), "a class for a whole image. Use a network"),
    (PerVoxel(), randn(2, 3, 4), torch.full((2, 4), 3, dtype=torch.uint8), "y lies between 3 and 3, and there are 3"),
    (PerVoxel(), randn(2, 3, 4), torch.zeros(2, dtype=torch.long), r"a y of shape \(2, 4\)"),
    (PerVoxel(), randn(2, 3, 4), torch.full((2, 3, 4), -1.0), "weights of labels lie between -1 and -1"),
]


@pytest.mark.parametrize(("likelihood", "output", "y", "message"), REFUSED, ids=[r[3][:40] for r in REFUSED])
def test_refused(likelihood, output, y, message):
    with pytest.raises(ParameterError, match=message):
        likelihood.check(output, y)


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, True, "fixed", None])
def test_a_scale_is_a_positive_number_or_a_word(scale):
    with pytest.raises(ParameterError, match="'learned' or 'heteroscedastic'"):
        Normal(scale)


def test_a_normal_y_has_no_classes():
    with pytest.raises(MethodError, match=r"probs of Normal: its y is not a class\. Use mean"):
        Normal().probs(randn(2, 1))


def test_reprs():
    assert repr(Normal(0.5)) == "Normal(scale=0.5)"
    assert repr(Normal("learned")) == "Normal(scale='learned')"


def test_a_reshape_is_suggested_only_where_it_is_possible():
    with pytest.raises(ParameterError) as caught:
        Categorical().check(torch.zeros(5, 3), torch.zeros(4, dtype=torch.long))
    assert "reshape" not in str(caught.value)
    with pytest.raises(ParameterError, match="reshape"):
        Categorical().check(torch.zeros(5, 3), torch.zeros(5, 1, dtype=torch.long))
