"""The pass as an ordinary module: the same numbers as predict, and as an ONNX graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar import MethodError, bayesian, calibrate_moments, predict
from mcrepar.nn import moment_module
from tests.conftest import seeded

X = torch.randn(4, 2, 8, 8, generator=seeded(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


@pytest.mark.parametrize("structure", ["weights", "rank1"])
@pytest.mark.parametrize("fitted", [False, True])
def test_its_answer_is_that_of_predict(structure, fitted):
    bnn = bayesian(network(), posterior="normal", structure=structure).calibrate(X)
    if fitted:
        calibrate_moments(bnn, X)
    plain = moment_module(bnn)
    wanted = predict(bnn, X, draws="moments")
    mean, variance = plain(X)
    torch.testing.assert_close(mean, wanted.mean)
    torch.testing.assert_close(variance, wanted.epistemic)
    torch.testing.assert_close(plain(X)[1], variance)
    assert not any(isinstance(m, mcrepar.BayesianModule) for m in plain.modules())
    other = bayesian(network(), posterior="normal", structure=structure).calibrate(2 * X.flip(0))
    if fitted:
        rows = bnn.calibration.moment_factors
        other.calibration.moment_factors = tuple(row._replace(factor=2 * row.factor) for row in rows)
        assert not torch.allclose(moment_module(other)(X)[1], variance)
    again = moment_module(other)
    again.load_state_dict(plain.state_dict())
    assert torch.equal(again.eval()(X)[1], variance)


def test_the_state_of_a_fitted_module_does_not_fit_one_without_factors():
    bnn = bayesian(network(), posterior="normal").calibrate(X)
    without = moment_module(bnn)
    with pytest.raises(RuntimeError, match="factors"):
        without.load_state_dict(moment_module(calibrate_moments(bnn, X, draws=16)).state_dict())


class Attending(nn.Module):
    """Every row of an image is a token."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm, self.linear = (
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.LayerNorm(8),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(1)
        return self.linear(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


EXPORTED = {"norm and pooling": (network, "weights"), "rank-1": (network, "rank1"), "attention": (Attending, "weights")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # torch's own
@pytest.mark.parametrize("name", EXPORTED)
def test_it_goes_to_onnx(name, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install mcrepar[export]")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
    torch.manual_seed(0)
    make, structure = EXPORTED[name]
    bnn = bayesian(make(), posterior="normal", structure=structure).calibrate(X).eval()
    plain = moment_module(calibrate_moments(bnn, X))
    path = tmp_path / "moments.onnx"
    shapes = (({0: torch.export.Dim.AUTO},),)
    torch.onnx.export(plain, (X[:3],), dynamo=True, dynamic_shapes=shapes, verbose=False).save(path)
    session = runtime.InferenceSession(str(path))
    many = X.repeat(20, 1, 1, 1)  # more than are worked on at once elsewhere
    got: list[Tensor] = [torch.from_numpy(t) for t in session.run(None, {session.get_inputs()[0].name: many.numpy()})]
    for ours, wanted in zip(got, plain(many), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-6)


def test_what_is_not_one_network_is_refused():
    with pytest.raises(MethodError, match="several members"):
        moment_module(bayesian(nn.Linear(2, 2), structure="rank1", members=2))
    with pytest.raises(MethodError, match="put together by hand"):
        moment_module(nn.Sequential(mcrepar.nn.Linear(2, 2)))


def test_an_exported_program_takes_any_number_of_examples():
    """Neither blocks of an activation nor what logits share may depend on the number of examples."""
    net = nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 100), nn.LogSoftmax(1))
    plain = moment_module(bayesian(net, posterior="normal"))
    program = torch.export.export(plain, (torch.randn(5, 4),), dynamic_shapes=(({0: torch.export.Dim("batch")},),))
    x = torch.randn(1000, 4, generator=seeded(1))
    for found, wanted in zip(program.module()(x), plain(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "layers", [[nn.GroupNorm(2, 4)], [nn.InstanceNorm1d(4)], [nn.Flatten(), nn.Linear(12, 3), nn.LogSoftmax(1)]]
)
def test_norms_and_log_softmax_of_an_exported_program_take_any_number_of_examples(layers):
    plain = moment_module(bayesian(nn.Sequential(nn.Conv1d(2, 4, 2), *layers), posterior="normal", initial_std=0.2))
    x = torch.randn(9, 2, 4, generator=seeded(1))
    program = torch.export.export(plain, (x[:3],), dynamic_shapes=(({0: torch.export.Dim("batch")},),))
    for found, wanted in zip(program.module()(x), plain(x), strict=True):
        torch.testing.assert_close(found, wanted)


def test_factors_keep_their_digits_and_are_where_the_network_is():
    bnn = bayesian(network(), posterior="normal").calibrate(X)
    calibrate_moments(bnn, X)
    wanted = [row.factor for row in bnn.calibration.moment_factors]
    halves = moment_module(bnn.to(torch.bfloat16))
    assert halves(X.bfloat16())[1].dtype == torch.bfloat16
    kept = set(halves.factors.tolist())
    assert all(any(abs(factor - number) < 1e-6 * abs(factor) for number in kept) for factor in wanted)
    dense = bayesian(nn.Linear(2, 3), posterior="normal")
    calibrate_moments(dense, X[:, :, 0, 0])
    assert moment_module(dense.to("meta")).factors.device.type == "meta"
