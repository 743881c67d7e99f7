"""Draws as an ordinary module: its mean is that of predict, and it goes to ONNX."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar import ParameterError, bayesian, predict
from mcrepar.likelihoods import Categorical, Normal
from mcrepar.nn import ensemble
from tests.conftest import seeded

X = torch.randn(6, 2, 6, 6, generator=seeded(1))
BATCH = 3 + 2 * torch.randn(16, 2, 6, 6, generator=seeded(2))


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
    )


def by_hand() -> nn.Sequential:
    """The same, of Bayesian layers and an ordinary norm, one part twice."""
    torch.manual_seed(0)
    dense = mcrepar.nn.Linear(8, 8, start_std=0.5)
    return nn.Sequential(
        mcrepar.nn.Conv2d(2, 4, 3, start_std=0.5), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 8),
        dense, nn.Tanh(), dense,
    )  # fmt: skip


NETWORKS = {
    "converted": lambda: bayesian(convolutional(), start_std=0.5).calibrate(BATCH),
    "by hand": lambda: mcrepar.nn.calibrate(by_hand(), BATCH),
}
LIKELIHOODS = {"none": None, "categorical": "categorical", "bernoulli": "bernoulli", "normal": Normal(0.3)}


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=list(LIKELIHOODS))
@pytest.mark.parametrize("build", NETWORKS.values(), ids=list(NETWORKS))
def test_its_answer_is_the_mean_of_predict(build, likelihood):
    bnn = build()
    wanted = predict(bnn, X, draws=3, likelihood=likelihood, generator=seeded(3)).mean
    state = {name: t.clone() for name, t in bnn.state_dict().items()}
    plain = ensemble(bnn, draws=3, likelihood=likelihood, generator=seeded(3))
    torch.testing.assert_close(plain(X), wanted)
    assert bnn.training
    assert not plain.training
    assert all(torch.equal(t, state[name]) for name, t in bnn.state_dict().items())
    assert not any(isinstance(m, mcrepar.BayesianModule) for m in plain.modules())


def test_it_is_a_module_with_a_state():
    bnn = NETWORKS["converted"]()
    one, two = (ensemble(bnn, draws=2, likelihood=Categorical(), generator=seeded(k)) for k in (1, 2))
    assert not torch.equal(one(X), two(X))
    file = io.BytesIO()
    torch.save(two.state_dict(), file)
    file.seek(0)
    one.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(one(X), two(X))
    one(X).sum().backward()  # an ordinary module can also be trained on
    assert all(p.grad is not None for p in one.parameters())


def test_without_a_batch_for_its_norms_it_warns():
    with pytest.warns(UserWarning, match="calibrate"):
        ensemble(bayesian(convolutional()), draws=1)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, *, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(x), "x": x}


def test_keywords_and_networks_that_return_more():
    bnn, x = bayesian(Pair()), torch.randn(5, 3, generator=seeded(1))
    wanted = predict(bnn, {"x": x}, draws=4, likelihood="categorical", generator=seeded(2), output="logits").mean
    got = ensemble(bnn, draws=4, likelihood="categorical", generator=seeded(2), output="logits")(x=x)
    torch.testing.assert_close(got, wanted)
    with pytest.raises(ParameterError, match="output='logits'"):
        ensemble(bnn, draws=1)(x=x)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("an ensemble of Linear: nothing in it is Bayesian", {"bnn": nn.Linear(2, 2)}),
        ("draws=0: it is too small. Use a whole number of at least 1", {"draws": 0}),
        ("draws=2.0", {"draws": 2.0}),
        ("likelihood='poisson': there is no such likelihood. Use 'categorical'", {"likelihood": "poisson"}),
        ("generator=3: it is of type int", {"generator": 3}),
    ],
)
def test_refused(words, changes):
    with pytest.raises(ParameterError, match=words):
        ensemble(**({"bnn": NETWORKS["converted"]()} | changes))


# ---- ONNX


class Tokens(nn.Module):
    """Embedding, attention and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def answer(module: nn.Module, x: Tensor, shapes: Any, path: Path) -> Tensor:
    """What another runtime answers to the exported module, for a batch of another size."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install mcrepar[export]")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
    torch.onnx.export(module, (x[:3],), dynamo=True, dynamic_shapes=shapes, verbose=False).save(path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.as_tensor(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.mark.filterwarnings("ignore")  # of the exporter's own parts
def test_a_draw_and_a_predictive_mean_go_to_onnx(tmp_path):
    torch.manual_seed(0)
    bnn, tokens = bayesian(Tokens(), start_std=0.5).eval(), torch.randint(0, 9, (5, 4), generator=seeded(4))
    draw = bnn.draw(seeded(5))
    with bnn.frozen(draw), torch.no_grad():
        wanted = bnn(tokens)
    got = answer(bnn.to_module(draw), tokens, ({0: torch.export.Dim.AUTO},), tmp_path / "draw.onnx")
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)

    bnn = NETWORKS["converted"]()
    wanted = predict(bnn, X, draws=3, likelihood="categorical", generator=seeded(3)).mean
    plain = ensemble(bnn, draws=3, likelihood="categorical", generator=seeded(3))
    got = answer(plain, X, (({0: torch.export.Dim.AUTO},),), tmp_path / "mean.onnx")
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
