"""An own draw for every example: outputs are joined where the network has its data, in its dtype."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mcrepar import MethodError, bayesian
from mcrepar.nn.forwards import per_example
from tests.conftest import seeded


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(1), dtype=torch.float64)


class Transposed(nn.Module):
    """Its data are in the dimensions 1 and 2 of its outputs; a word and None are returned too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        out = self.layer(x)
        return {"rows": out.T, "pair": out.T.unsqueeze(0).expand(2, 3, len(x)), "word": "a", "none": None}


NETWORKS = {
    "transposed": (Transposed, (5, 4)),
    "one layer": (lambda: nn.LSTM(4, 3, batch_first=True), (5, 6, 4)),
    "layers": (lambda: nn.GRU(4, 3, 2, bidirectional=True, batch_first=True), (5, 6, 4)),
    "one example": (lambda: nn.LSTM(4, 3, batch_first=True), (1, 6, 4)),
    "layers as data": (lambda: nn.LSTM(4, 3, 2, batch_first=True), (2, 6, 4)),
}


@pytest.mark.parametrize("build", NETWORKS.values(), ids=list(NETWORKS))
def test_outputs_are_joined_where_the_data_are(build):
    torch.manual_seed(0)
    net, x = build[0]().double(), randn(*build[1])
    wanted = pytree.tree_leaves(net(x))
    got = pytree.tree_leaves(bayesian(net, start_std=1e-12, forward="per_example")(x))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b) if isinstance(a, Tensor) else None
        assert type(a) is type(b)


class Counting(nn.Module):
    """A count: what the shapes are found out with must not be counted."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 3, batch_first=True)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.rnn(x)[0]


def test_buffers_count_the_data_only():
    bnn = bayesian(Counting().double(), forward="per_example").train()
    bnn(randn(3, 6, 4)).sum().backward()
    assert bnn.net.calls == 3


@pytest.mark.parametrize("inner", [nn.BatchNorm2d(3), nn.SyncBatchNorm(3)])
def test_batch_norm_in_training_is_refused(inner):
    bnn = bayesian(nn.Sequential(nn.Conv2d(2, 3, 2), inner), forward="per_example")
    with pytest.raises(MethodError, match=r"BatchNorm in training: .* every example runs alone. Use GroupNorm"):
        bnn(torch.ones(3, 2, 4, 4))
    bnn.net[1].eval()
    assert bnn(torch.ones(3, 2, 4, 4)).shape == (3, 3, 3, 3)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), (5, 4)),
        (nn.Conv2d(2, 3, 2), (5, 2, 4, 4)),
        (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), (5, 4)),
    ],
)
def test_the_dtype_under_autocast_is_that_of_the_network(net, shape):
    x, bnn = torch.ones(shape), bayesian(copy.deepcopy(net), forward="per_example")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = bnn(x)
        assert out.dtype == net(x).dtype
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in bnn.parameters())


class Sum(nn.Module):
    def __init__(self, dims: Any) -> None:
        super().__init__()
        self.layer, self.dims = nn.Linear(4, 3), dims

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum(self.dims)


@pytest.mark.parametrize("dims", [(0, 1), 0], ids=["a number", "a sum over the data"])
def test_outputs_without_data_are_refused(dims):
    bnn = bayesian(Sum(dims), forward="per_example")
    with pytest.raises(
        MethodError, match=r"for one example, of shape .*, does not tell where the examples are. Use outputs"
    ):
        bnn(torch.ones(5, 4))


class Dict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, *, scale: float, shift: Tensor) -> dict[str, Tensor]:
        return {"out": self.layer(x) * scale + shift}


def test_per_example_takes_keywords_and_returns_dicts():
    torch.manual_seed(0)
    bnn = bayesian(Dict().double(), forward="per_example")
    out = bnn(randn(5, 4), scale=2.0, shift=torch.tensor(1.0))["out"]
    assert out.shape == (5, 3)
    with pytest.raises(MethodError, match="no argument has a batch"):
        bnn(torch.tensor(1.0), scale=1.0, shift=torch.tensor(1.0))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        options = {"key_padding_mask": padding, "attn_mask": mask, "need_weights": False}
        return self.attention(x, x, x, **options)[0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("length", [5, 6])
def test_data_are_passed_by_position_and_what_they_share_by_keyword(length):
    """Also where the length of a sequence happens to be the number of examples."""
    torch.manual_seed(0)
    bnn = bayesian(Masked().double(), start_std=1e-12, forward="per_example")
    x, mask = randn(5, length, 4), torch.full((length, length), -torch.inf).double().triu(1)
    padding = torch.zeros_like(x[..., 0]).index_fill_(1, torch.tensor([length - 1]), -torch.inf)
    calls = [((x,), {"mask": mask}), ((x, padding), {"mask": mask}), ((), {"x": x, "padding": padding})]
    with bnn.frozen("mean"):
        wanted = [bnn(*args, **kwargs) for args, kwargs in calls]
    for (args, kwargs), out in zip(calls, wanted, strict=True):
        torch.testing.assert_close(bnn(*args, **kwargs), out)


def test_data_of_another_length_are_refused():
    bnn, x, mask = bayesian(Masked().double(), forward="per_example"), randn(5, 6, 4), torch.zeros(6, 6).double()
    with pytest.raises(MethodError, match=r"argument \[2\]: its length is 6, and there are 5 examples. .* by keyword"):
        bnn(x, None, mask)
    with pytest.raises(MethodError, match=r"argument \['mask'\]: its length is 6"):
        bnn(x=x, mask=mask)


def test_vmap_and_loop_agree(monkeypatch):
    """The same draws in the same order: equal outputs, to rounding."""
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)).double()
    bnn, x = bayesian(net, forward="per_example"), randn(5, 2, 4, 4)
    torch.manual_seed(1)
    fast = bnn(x)
    monkeypatch.setattr(per_example, "_vmaps", lambda bnn: False)
    torch.manual_seed(1)
    torch.testing.assert_close(bnn(x), fast)


class Branching(nn.Module):
    """Its control flow depends on data, which vmap does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out if out.sum().item() > 0 else -out


class First(nn.Module):
    def forward(self, out: tuple[Tensor, Tensor]) -> Tensor:
        return out[0]


NETS = {
    "lstm": (lambda: nn.Sequential(nn.LSTM(4, 3, batch_first=True), First()), (3, 5, 4)),
    "norm": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, track_running_stats=True)), (3, 2, 4, 4)),
    "branching": (Branching, (3, 4)),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), (3, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (3, 5, 4)),
}


@pytest.mark.parametrize("build", NETS.values(), ids=list(NETS))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_per_example_falls_back_on_a_loop(build, training):
    torch.manual_seed(0)
    bnn = bayesian(build[0]().double(), forward="per_example").train(training)
    out = bnn(randn(1, *build[1][1:]).expand(build[1]))
    assert len(out) == 3
    assert not torch.equal(out[0], out[1])  # equal data, draws of their own
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bnn.parameters())


UNBATCHED = {
    "dense": (lambda: nn.Linear(3, 2), (3,)),
    "convolutional": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()), (3, 8, 8)),
    "recurrent": (lambda: nn.LSTM(3, 2, batch_first=True), (5, 3)),
}


@pytest.mark.parametrize(("build", "shape"), UNBATCHED.values(), ids=list(UNBATCHED))
def test_an_empty_batch_has_an_empty_output(build, shape):
    net = build().double()
    wanted = pytree.tree_map(lambda t: t.shape, net(randn(0, *shape)))
    assert pytree.tree_map(lambda t: t.shape, bayesian(net, forward="per_example")(randn(0, *shape))) == wanted


@pytest.mark.parametrize("kind", ["dense", "convolutional"])
def test_one_example_without_a_batch_is_refused(kind):
    build, shape = UNBATCHED[kind]
    bnn = bayesian(build().double(), forward="per_example")
    with pytest.raises(MethodError, match=r"as a whole and not on one row.*for one of them x\.unsqueeze\(0\)"):
        bnn(randn(*shape))
    with pytest.raises(RuntimeError) as caught:  # what does not fit at all stays torch's to tell
        bnn(randn(2, 7))
    assert not isinstance(caught.value, MethodError)
