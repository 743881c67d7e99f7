"""The pass through whole networks: against 10,000 draws, exact where it must be, and refused where it cannot be."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import mcrepar
from mcrepar import BayesianModule, MethodError, ParameterError, bayesian, calibrate_moments, posterior, predict
from mcrepar.nn.calibration import MomentFactor
from mcrepar.nn.moments.moment_pass import check_moments, moment_pass, moments_of_parts
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.rank1 import RankOne
from tests.conftest import seeded

X = torch.randn(8, 5, generator=seeded(1), dtype=torch.float64)
IMAGES = torch.randn(6, 2, 8, 8, generator=seeded(2), dtype=torch.float64)


def dense(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 30), nn.ReLU(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 3)).double()


class Residual(nn.Module):
    """Convolutions, batch norm, an in-place ReLU, a residual sum and global pooling."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)), inplace=True)
        h = F.relu(h + self.second(h))
        return self.head(h.mean((2, 3)))


def drawn(tensor: RandomTensor | RankOne, draws: int, rng: torch.Generator, member: int) -> Tensor:
    """Many samples of a weight at once, (draws, *shape)."""
    if isinstance(tensor, RankOne):
        sides = (tensor.outputs[member], tensor.by_output), (tensor.inputs[member], tensor.by_input)
        r, s = (side.posterior.draw(draws, rng).view(draws, *shape) for side, shape in sides)
        return (tensor.weight.view(tensor.grouped) * r * s).view(draws, *tensor.shape)
    w = tensor.posterior.draw(draws, rng)
    return w if tensor.signs is None else w * tensor.signs


def oracle(bnn: BayesianModule, x: Tensor, draws: int = 10_000) -> tuple[Tensor, Tensor]:
    """Mean and variance over draws, with the norm statistics that the pass uses."""
    rng, plain, out = seeded(7), bnn.to_module("mean").train(bnn.training), []
    members = max(bnn.members, 1)
    with torch.no_grad():
        for member in range(members):
            weights = {
                name: drawn(tensor, draws // members, rng, member)
                for names, tensor in random_tensors(bnn).items()
                for name in names
            }
            run = torch.vmap(lambda w: functional_call(plain, w, (x,)), chunk_size=500)
            out.append(run(weights))
    found = torch.cat(out)
    return found.mean(0), found.var(0)


def output(bnn: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    check_moments(bnn)
    with torch.no_grad(), moment_pass(bnn) as run:
        return run(x)[:2]


def few_draws(q: str) -> dict[str, object]:
    """Options with which a posterior of any family has a variance."""
    fixed = {"concentration": 12.0} if "concentration" in mcrepar.posterior(q).fixed else {}
    return {"posterior": posterior(q, **fixed), "signs": "keep" if posterior(q).row.support.lower >= 0 else ""}


@pytest.mark.parametrize("q", [name for name in mcrepar.POSTERIORS if name not in ("expgamma",)])
def test_one_random_layer_is_exact_for_every_posterior(q):
    """Mean and variance of the rows' sums, from the tables; for a wide family 10,000 draws are too few an oracle."""
    torch.manual_seed(0)
    bnn = bayesian(nn.Linear(5, 3).double(), initial_std=0.2, **few_draws(q))
    weight, bias = (tensor.posterior for tensor in bnn.latents.values())
    signs = [t.signs if t.signs is not None else torch.ones((), dtype=torch.float64) for t in bnn.latents.values()]
    mean, variance = output(bnn, X)
    torch.testing.assert_close(mean, F.linear(X, weight.mean * signs[0], bias.mean * signs[1]))
    torch.testing.assert_close(variance, F.linear(X.square(), weight.stddev**2, bias.stddev**2))


@pytest.mark.parametrize("q", ["normal", "radial", "laplace", "lognormal", "gamma"])
def test_a_dense_network_against_draws(q):
    """Means within 0.15 standard deviations, variances within a quarter on average."""
    bnn = bayesian(dense(), initial_std=0.3, **few_draws(q)).eval()
    mean, variance = output(bnn, X)
    wanted, spread = oracle(bnn, X)
    assert float(((mean - wanted) / spread.sqrt()).abs().max()) < 0.15
    assert 0.75 < float((variance / spread).mean()) < 1.25


def test_a_linear_network_is_exact():
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double(), posterior="normal", initial_std=0.5)
    (w1, b1, w2, b2) = (tensor.posterior for tensor in bnn.latents.values())
    h, hv = F.linear(X, w1.mean, b1.mean), F.linear(X.square(), w1.variance, b1.variance)
    mean, variance = output(bnn, X)
    torch.testing.assert_close(mean, F.linear(h, w2.mean, b2.mean), rtol=1e-12, atol=1e-12)
    wanted = F.linear(h.square() + hv, w2.variance, b2.variance) + F.linear(hv, w2.mean.square())
    torch.testing.assert_close(variance, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("structure", ["weights", "rank1"])
def test_without_noise_it_is_the_network(structure):
    net = Residual().eval()
    with torch.no_grad():
        wanted = net(IMAGES)
    bnn = bayesian(net, posterior="normal", structure=structure, initial_std=1e-9).eval()
    with pytest.warns(UserWarning, match="BatchNorm with running statistics"):
        mean, variance = output(bnn, IMAGES)
    torch.testing.assert_close(mean, wanted, rtol=1e-7, atol=1e-7)
    assert float(variance.max()) < 1e-12


@pytest.mark.parametrize("structure", ["weights", "rank1"])
def test_a_residual_network_and_its_calibration(structure):
    options = {"structure": structure, "initial_std": 0.15, "select": ["first.weight", "second.weight"]}
    bnn = bayesian(Residual(), posterior="normal", **options).eval()
    bnn.calibration.warned = True
    wanted, spread = oracle(bnn, IMAGES, 2000)
    mean, variance = output(bnn, IMAGES)
    assert float(((mean - wanted) / spread.sqrt()).abs().max()) < 0.5
    assert calibrate_moments(bnn, IMAGES, draws=100, generator=seeded(3)) is bnn
    fitted = output(bnn, IMAGES)
    torch.testing.assert_close(fitted[0], mean, rtol=0.2, atol=0.1)
    ratios = [float((v / spread).log().mean().abs()) for v in (variance, fitted[1])]
    assert ratios[1] < 0.2 < ratios[0]  # positions share weights: unfitted variances are far too small
    names = [row.operation for row in bnn.calibration.moment_factors]
    assert names == ["conv2d", "batch_norm", "conv2d", "add", "mean", "linear"]


def test_factors_of_one_dense_layer_are_near_one():
    bnn = bayesian(nn.Linear(5, 3).double(), posterior="normal")
    calibrate_moments(bnn, X, draws=400, generator=seeded(0))
    ((name, factor, _),) = bnn.calibration.moment_factors
    assert name == "linear"
    assert abs(factor - 1) < 0.2  # 12 independent numbers in effect, 400 draws: a standard error of 0.02


def test_the_last_factor_weighs_logits_by_what_they_decide():
    """Fitted to the same draws on the same inputs, the weighted sums of variances agree to rounding."""
    bnn, plain = (bayesian(dense(), posterior="normal", initial_std=0.3) for _ in range(2))
    calibrate_moments(bnn, X, draws=50, generator=seeded(3), likelihood="categorical")
    calibrate_moments(plain, X, draws=50, generator=seeded(3))
    first, second = bnn.calibration.moment_factors, plain.calibration.moment_factors
    assert first[:-1] == second[:-1]
    mean, variance = output(bnn, X)
    rng, drawn = seeded(3), []
    for _ in range(50):
        with torch.no_grad():
            drawn.append(functional_call(bnn.to_module("mean"), bnn.draw(rng), (X,)))
    p, logits = mean.softmax(1), torch.stack(drawn)
    with torch.no_grad(), moment_pass(bnn) as run:
        root = run(X).mixing.root() * variance.sqrt().unsqueeze(2)
    matrix = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)  # Var[y | u] of classes
    wanted = sum((matrix[k] * torch.cov(logits[:, k].T)).sum() for k in range(len(X)))
    torch.testing.assert_close((matrix * (root @ root.mT)).sum(), wanted)
    with pytest.raises(ParameterError, match="there is no such likelihood"):
        calibrate_moments(bnn, X, likelihood="categoric")


def test_the_last_factor_weighs_outputs_without_a_correlation_one_by_one():
    bnn = bayesian(nn.Sequential(dense(), nn.Identity(), nn.Unflatten(1, (3, 1))), posterior="normal", initial_std=0.3)
    calibrate_moments(bnn, X, draws=50, generator=seeded(3), likelihood="bernoulli")
    mean, variance = output(bnn, X)
    rng, drawn = seeded(3), []
    for _ in range(50):
        with torch.no_grad():
            drawn.append(functional_call(bnn.to_module("mean"), bnn.draw(rng), (X,)))
    weight = mean.sigmoid() * (1 - mean.sigmoid())
    torch.testing.assert_close((weight * variance).sum(), (weight * torch.stack(drawn).var(0)).sum())


def test_factors_are_kept_with_the_network(tmp_path):
    bnn = calibrate_moments(bayesian(dense(), posterior="normal"), X)
    factors, wanted = bnn.calibration.moment_factors, predict(bnn, X, draws="moments")
    assert len(factors) == 3
    mcrepar.save(bnn, tmp_path / "model")
    twin = bayesian(dense(1), posterior="normal")
    twin.load_state_dict(bnn.state_dict())
    for same in (mcrepar.load(tmp_path / "model", dense(2)), twin, copy.deepcopy(bnn)):
        assert same.calibration.moment_factors == factors
        assert torch.equal(predict(same, X, draws="moments").epistemic, wanted.epistemic)


def test_factors_of_another_network_are_refused():
    bnn = bayesian(nn.Linear(5, 3).double())
    for operations in (["linear", "mean"], ["conv2d"]):
        bnn.calibration.moment_factors = tuple(MomentFactor(name, 1.0) for name in operations)
        with pytest.raises(MethodError, match=r"when factors were fitted.*calibrate_moments"):
            output(bnn, X)


def test_draws_with_norm_statistics_of_their_own():
    """With a batch every draw has its own; the factors are fitted to such draws, and the pass takes pooled ones."""
    bnn = bayesian(Residual(), posterior="normal", initial_std=0.2).calibrate(IMAGES).eval()
    calibrate_moments(bnn, IMAGES, draws=60, generator=seeded(3))
    got = predict(bnn, IMAGES, draws="moments")
    wanted = predict(bnn, IMAGES, draws=400, generator=seeded(4))
    assert float(((got.mean - wanted.mean) / wanted.std).abs().max()) < 0.6
    assert 0.6 < float((got.epistemic / wanted.epistemic).mean()) < 1.6


def test_norm_layers_that_were_trained_are_pooled_again():
    bnn = bayesian(Residual(), posterior="normal").calibrate(IMAGES)
    bnn(IMAGES)  # in training mode, norm layers learn
    before = bnn.calibration.pooled
    predict(bnn, IMAGES, draws="moments")
    assert bnn.calibration.pooled is not before


def test_members_are_a_mixture():
    torch.manual_seed(0)
    bnn = bayesian(dense(), structure="rank1", members=3, initial_std=0.1)
    got = predict(bnn, X, draws="moments")
    wanted, spread = oracle(bnn, X)
    assert float(((got.mean - wanted) / spread.sqrt()).abs().max()) < 0.2
    assert 0.8 < float((got.epistemic / spread).mean()) < 1.25
    assert got.samples.shape == (got.draws, 8, 3)
    torch.testing.assert_close(got.samples.mean(0), got.mean)
    calibrate_moments(bnn, X)
    assert len(bnn.calibration.moment_factors) == 3


def test_every_member_has_norm_statistics_of_its_own():
    bnn = bayesian(Residual(), structure="rank1", members=3).calibrate(IMAGES).eval()
    held = [moments_of_parts(bnn, k)[bnn] for k in range(3)]
    for name in (name for name, _ in bnn.net.named_buffers() if name.endswith("running_mean")):
        for k in range(3):
            assert torch.equal(held[k][name], bnn.calibration.pooled[k][name])
            assert not torch.equal(held[k][name], held[k - 1][name])


def test_a_network_by_hand():
    torch.manual_seed(0)
    parts = [mcrepar.nn.Linear(5, 20, posterior="normal", start_std=0.3) for _ in range(1)]
    net = nn.Sequential(*parts, nn.GELU(), nn.LayerNorm(20), nn.Linear(20, 2)).double()
    got, wanted = predict(net, X, draws="moments"), predict(net, X, draws=1000, generator=seeded(0))
    assert float(((got.mean - wanted.mean) / wanted.std).abs().max()) < 0.2
    assert 0.7 < float((got.epistemic / wanted.epistemic).mean()) < 1.4
    assert calibrate_moments(net, X) is net
    assert predict(net, X, draws="moments").mean.shape == (8, 2)


def test_padding_rows_have_no_variance():
    torch.manual_seed(0)
    bnn = bayesian(nn.Embedding(6, 4, padding_idx=2).double(), posterior="normal")
    mean, variance = output(bnn, torch.tensor([2, 3]))
    assert float(mean[0].detach().abs().sum() + variance[0].abs().sum()) == 0
    assert float(variance[1].min()) > 0


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_transformer_layer_against_draws():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True).double()
    bnn = bayesian(layer, posterior="normal", initial_std=0.1)  # in training mode, without torch's fused layer
    x = torch.randn(3, 5, 16, generator=seeded(0), dtype=torch.float64)
    mean, variance = output(bnn, x)
    wanted, spread = oracle(bnn, x, 1000)
    assert float(((mean - wanted) / spread.sqrt()).abs().mean()) < 0.1
    assert 0.7 < float((variance / spread).mean()) < 1.3


# ---- refusals


@pytest.mark.parametrize("q", [posterior("horseshoe", slab=None), posterior("student_t", df=2.0)])
def test_a_posterior_without_variance_is_refused_by_name(q):
    bnn = bayesian(nn.Linear(5, 3).double(), posterior=q, prior="cauchy")
    with pytest.raises(MethodError, match=f"posterior '{q.name}' for weight: its weights have no finite variance"):
        predict(bnn, X, draws="moments")


def test_frozen_draws_are_refused():
    bnn = bayesian(dense())
    with bnn.frozen(), pytest.raises(MethodError, match=r"inside of bnn\.frozen"):
        predict(bnn, X, draws="moments")
    with bnn.frozen(), pytest.raises(MethodError, match=r"inside of bnn\.frozen"):
        calibrate_moments(bnn, X)


def mish(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x)) + y


class Scripted(nn.Module):
    def __init__(self, other: int) -> None:
        super().__init__()
        self.mish = torch.jit.script(mish)
        self.layer, self.other = nn.Linear(5, 3), nn.Parameter(torch.zeros(other), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        self.mish(self.other, torch.zeros(2, dtype=out.dtype))  # which is not random, and may fail by itself
        activation: Tensor = self.mish(out, out)
        return activation


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_activation_is_refused():
    bnn = bayesian(Scripted(2).double())
    for run in (lambda: predict(bnn, X, draws="moments"), lambda: calibrate_moments(bnn, X)):
        with pytest.raises(
            MethodError, match=r"with softplus.*no rule can be found.*scripted functions.*Use draws=100"
        ):
            run()
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        predict(bayesian(Scripted(3).double()), X, draws="moments")
    assert not isinstance(caught.value, MethodError)


def test_a_network_that_decides_is_refused():
    class Deciding(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if y.mean() > 0 else -y

    with pytest.raises(MethodError, match="the operation gt: it would decide on values of activations"):
        predict(bayesian(Deciding(5, 3).double()), X, draws="moments")


def test_recurrent_layers_are_refused_by_name():
    with pytest.raises(MethodError, match="the operation lstm: there is no rule"):
        predict(bayesian(nn.LSTM(5, 3).double()), X[None], draws="moments", output=0)


def test_factors_outside_of_layers_are_refused():
    class Outside(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    bnn = bayesian(Outside(5, 3).double(), structure="rank1")
    with pytest.raises(MethodError, match="the operation T on a weight with random factors"):
        predict(bnn, X, draws="moments")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_factors_of_an_attention_s_last_projection():
    """Nothing before it is random, so that its moments are exact: of 4,000 draws the variance is known to 2 %."""
    torch.manual_seed(0)
    bnn = bayesian(
        nn.MultiheadAttention(8, 2, batch_first=True).double(), structure="rank1", select=["out_proj.weight"]
    )
    x = torch.randn(4, 5, 8, generator=seeded(0), dtype=torch.float64)
    one, many = (predict(bnn, (x, x, x), draws=draws, generator=seeded(1), output=0) for draws in ("moments", 4000))
    assert 0.9 < float(one.epistemic.sum() / many.epistemic.sum()) < 1.1  # false alarms: below 1e-5


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("size", [8, 6])
def test_factors_of_all_projections_of_attention(size):
    """With one weight for queries, keys and values, or one for each; 400 and 4,000 draws tell a variance to 5 %."""
    torch.manual_seed(0)
    net = nn.MultiheadAttention(8, 2, batch_first=True, kdim=size, vdim=size).double()
    bnn = bayesian(net, structure="rank1", initial_std=0.1)
    x = torch.randn(4, 5, 8, generator=seeded(0), dtype=torch.float64)
    inputs = x, x[..., :size], x[..., :size]
    calibrate_moments(bnn, inputs, draws=400, generator=seeded(2), output=0)
    one, many = (predict(bnn, inputs, draws=draws, generator=seeded(1), output=0) for draws in ("moments", 4000))
    assert 0.8 < float(one.epistemic.sum() / many.epistemic.sum()) < 1.25  # false alarms: below 1e-4


def test_bad_arguments():
    bnn = bayesian(dense())
    with pytest.raises(ParameterError, match="draws"):
        calibrate_moments(bnn, X, draws=1)
    with pytest.raises(ParameterError, match="x holds no batch"):
        predict(bnn, [], draws="moments")
    with pytest.raises(ParameterError, match="x holds no example"):
        calibrate_moments(bnn, [X[:0]])
    assert [len(predict(bnn, [X[:0]], draws=draws).mean) for draws in (2, "moments")] == [0, 0]
    with pytest.raises(ParameterError, match="not finite for 1 of 8 examples"):
        predict(bnn, torch.cat([X[:7], X[:1] * torch.nan]), draws="moments")
    with pytest.raises(ParameterError):
        predict(bnn, X, draws="moment")
    with pytest.raises(ParameterError, match="nothing in it is Bayesian"):
        calibrate_moments(nn.Linear(2, 2), X)


def test_factors_are_fitted_to_finite_data_only():
    with pytest.raises(ParameterError, match="not finite"):
        mcrepar.calibrate_moments(mcrepar.bayesian(nn.Linear(2, 1)), torch.tensor([[math.nan, 1.0]]))


def test_a_likelihood_that_is_certain_leaves_the_last_factor_as_it_is():
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([1e4, -1e4]))
    bnn = mcrepar.bayesian(net)
    factors = []
    for likelihood in (None, "categorical"):
        mcrepar.calibrate_moments(bnn, torch.ones(4, 2), generator=seeded(0), likelihood=likelihood)
        factors.append(bnn.calibration.moment_factors)
    assert factors[0] == factors[1]
    assert factors[0][0][1] > 0.5


class Refused(nn.Module):
    """A norm layer, and then an operation without a rule."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.special.bessel_j0(self.norm(self.linear(x)))


def test_a_refused_pass_leaves_norm_layers_as_they_were():
    bnn = bayesian(Refused(), posterior="normal").train()
    before = {name: buffer.clone() for name, buffer in bnn.net.named_buffers()}
    with pytest.raises(MethodError, match="bessel_j0"):
        mcrepar.elbo(bnn, "normal", torch.randn(5, 3), torch.zeros(5, 4), data_size=5, draws="moments")
    for name, buffer in bnn.net.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_calibration_is_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.setattr("mcrepar.nn.moments.moment_calibration.sampled_moments", None)
    bnn = bayesian(Refused(), posterior="normal").calibrate(torch.randn(8, 3)).eval()
    with pytest.raises(MethodError, match="bessel_j0"):
        calibrate_moments(bnn, torch.randn(5, 3))


@pytest.mark.parametrize(
    ("x", "message"),
    [(torch.randn(5, 2), "shape"), (torch.randn(5, 3).double(), "float64"), ((torch.randn(5, 3),) * 2, "arguments")],
)
def test_inputs_that_do_not_fit_have_a_sentence(x, message):
    bnn = bayesian(nn.Linear(3, 1), posterior="normal")
    with pytest.raises(ParameterError, match=message):
        mcrepar.elbo(bnn, "normal", x, torch.zeros(5, 1), data_size=5, draws="moments")


def test_a_word_that_is_misspelled_is_answered_with_the_right_one():
    bnn = bayesian(nn.Linear(3, 1), posterior="normal")
    with pytest.raises(ParameterError, match="a whole number or 'moments'"):
        predict(bnn, torch.zeros(5, 3), draws="moment")
    with pytest.raises(ParameterError, match="a whole number or 'moments'"):
        mcrepar.elbo(bnn, "normal", torch.zeros(5, 3), torch.zeros(5, 1), data_size=5, draws="moment")


def test_a_network_with_operations_in_place_trains():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3)
    bnn = bayesian(nn.Sequential(*layers), posterior="normal")
    x, y = torch.randn(6, 1, 8, 8), torch.randint(3, (6,))
    mcrepar.elbo(bnn, "categorical", x, y, data_size=6, draws="moments").loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in bnn.parameters())


def test_inference_mode_and_fewer_digits():
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10, bias=False)
    )
    bnn = bayesian(net.bfloat16(), posterior="normal", select=["0.*"], initial_std=0.5)
    with torch.inference_mode():
        found = predict(bnn, torch.randn(4, 1, 8, 8).bfloat16(), draws="moments", likelihood="categorical")
    assert bool(found.mutual_information.isfinite().all())


class Heads(nn.Module):
    """Two outputs, of which the first is asked for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 1)
        self.double()

    def forward(self, x):
        h = self.first(x).relu()
        return self.second(h), self.third(h)


def test_the_last_factor_is_that_of_the_output_that_was_asked_for():
    bnn, fitted = bayesian(Heads(), posterior="normal", initial_std=0.5), []
    for options in ({}, {"likelihood": "categorical"}):
        calibrate_moments(bnn, X, draws=32, generator=seeded(0), output=0, **options)
        fitted.append([row.factor for row in bnn.calibration.moment_factors])
    assert fitted[0][0] == fitted[1][0]
    assert fitted[0][1] != fitted[1][1]
    assert fitted[0][2] == fitted[1][2]


def test_calibration_checks_the_output():
    with pytest.raises(ParameterError, match="without halves"):
        calibrate_moments(
            bayesian(nn.Linear(5, 3).double()), X, likelihood=mcrepar.likelihoods.Normal("heteroscedastic")
        )


def test_squares_that_do_not_fit_into_half_precision():
    """Autocast to float16 is left out; a network in float16 is refused."""
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)))
    x = 1000 * torch.rand(8, 16)
    wanted = predict(bnn, x, draws="moments", likelihood="categorical")
    for given in (x, x.half()):
        with torch.autocast("cpu", torch.float16):
            found = predict(bnn, given, draws="moments", likelihood="categorical")
        torch.testing.assert_close(found.probs, wanted.probs, rtol=0, atol=1e-3)
    with pytest.raises(MethodError, match="of a network in float16"):
        predict(bnn.half(), x.half(), draws="moments")
