"""Rows are examples where their number follows the batch: learned rows, positions and what goes past layers are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from mcrepar import MethodError, bayesian
from tests.conftest import seeded

OWN = ("auto", "local", "flipout", "antithetic", "rank1")  # ways in which examples have noise of their own


def way(forward: str) -> dict[str, str]:
    return {"structure": "rank1"} if forward == "rank1" else {"forward": forward}


def assert_equal_along(out: Tensor, dimension: int) -> None:
    torch.testing.assert_close(out, out.narrow(dimension, 0, 1).expand_as(out))


class Queries(nn.Module):
    """Learned rows, as of DETR or of prototypes, enter a dense layer beside the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.ones(5, 4))
        self.image, self.query = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.image(x) @ self.query(self.queries).T


@pytest.mark.parametrize("forward", OWN)
@pytest.mark.parametrize("batch", [4, 5, 10])  # one example less than there are queries, as many, and twice as many
def test_learned_rows_share_one_sample_however_many_examples_there_are(forward, batch):
    torch.manual_seed(0)
    bnn = bayesian(Queries(), "normal", initial_std=0.5, select=["image.weight", "query.weight"], **way(forward))
    for size in (batch, 3, 5):
        out = bnn(torch.ones(size, 4))
        assert_equal_along(out, 1)  # equal queries
        assert not torch.allclose(out, out[:1].expand_as(out))  # equal examples
    assert bnn.examplewise == {"image.weight"}


class Positions(nn.Module):
    """Embeddings of words and of positions, whose index has no examples."""

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(3, 4), nn.Embedding(8, 4)
        nn.init.ones_(self.words.weight)
        nn.init.ones_(self.positions.weight)
        self.register_buffer("index", index)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        return self.words(words), self.words(words) * 0 + self.positions(self.index)


@pytest.mark.parametrize("index", [torch.arange(8), torch.arange(8)[None]], ids=["one dimension", "two"])
@pytest.mark.parametrize("batch", [8, 4, 5, 1])
def test_positions_have_one_pair_of_factors_for_the_batch(index, batch):
    torch.manual_seed(0)
    bnn = bayesian(Positions(index), structure="rank1", initial_std=0.5)
    for size in (batch, 3):
        words, positions = bnn(torch.zeros(size, 8, dtype=torch.long))
        assert_equal_along(positions.flatten(0, 1), 0)
        assert_equal_along(words, 1)
        assert size == 1 or not torch.allclose(words[0], words[-1])


class Transposed(nn.Module):
    """A dense layer that sees (positions, examples, features) in a network that has the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


def test_factors_follow_the_examples_into_another_dimension():
    """8 positions of 4 examples: the number of rows alone would give pairs of positions factors of their own."""
    torch.manual_seed(0)
    bnn = bayesian(Transposed(), structure="rank1", initial_std=0.5)
    for size in (4, 3):
        out = bnn(torch.ones(size, 8, 3))
        assert_equal_along(out, 1)
        assert not torch.allclose(out[0], out[1])


def test_tokens_of_packed_sequences_are_no_examples():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: nn.utils.rnn.PackedSequence) -> Tensor:
            return self.layer(x.data)

    out = bayesian(Tokens(), "normal", initial_std=0.5)(pack_sequence([torch.ones(4, 3), torch.ones(2, 3)]))
    assert_equal_along(out, 0)


def test_a_network_of_one_size_of_batch_keeps_the_noise_of_its_rows():
    net = nn.Sequential(nn.Linear(3, 2), nn.Flatten(0), nn.Unflatten(0, (4, 2)))
    bnn = bayesian(net, "normal", forward="auto")
    assert not torch.equal(*bnn(torch.ones(4, 3))[:2])


# ---- what goes past the layers


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x + bias)


class Scripted(nn.Module):
    """A bias that a function of torch.jit takes, and a weight that none but its layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.jit.script(bias_gelu)(F.linear(x, self.layer.weight), self.layer.bias)


class Traced(Scripted):
    def forward(self, x: Tensor) -> Tensor:
        function = torch.jit.trace(lambda x, w: x @ w.T, (torch.ones(2, 4), torch.ones(3, 4)))
        return function(x, self.layer.weight) + self.layer.bias


JIT = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@JIT
@pytest.mark.parametrize(("build", "name"), [(Scripted, "bias"), (Traced, "weight")])
def test_auto_draws_a_weight_that_meets_no_rule(build, name):
    bnn = bayesian(build(), "normal", forward="auto")
    bnn(torch.ones(5, 4)).sum().backward()
    assert bool(bnn.latents[f"layer/{name}"].log_scale.grad.any())
    assert not {f"layer.{name}", "unused.weight"} & bnn.examplewise


@JIT
@pytest.mark.parametrize("forward", OWN[1:])
def test_a_weight_that_goes_past_its_rule_has_no_gradient(forward):
    bnn = bayesian(Traced(), "normal", select=["layer.weight", "unused.weight"], **way(forward))
    out = bnn(torch.ones(5, 4)).sum()
    with pytest.raises(MethodError, match=r"layer\.weight .*: it went into a function that asks no rule"):
        out.backward()


def test_a_layer_inside_of_vmap_has_one_sample():
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.vmap(self.layer)(x))

    bnn = bayesian(Mapped(), "normal", forward="auto")
    assert bnn(torch.ones(5, 4)).shape == (5, 2)
    assert bnn.examplewise == {"last.weight", "last.bias"}


@pytest.mark.parametrize("forward", ["local", "flipout", "antithetic"])
def test_what_is_exported_draws_one_sample_a_call(forward):
    bnn, x = bayesian(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), "normal", forward=forward), torch.ones(5, 4)
    program = torch.export.export(bnn.eval(), (x,)).module()
    first, again = program(x), program(x)
    assert_equal_along(first, 0)
    assert not torch.equal(first, again)


# ---- a look leaves no trace


class Writes(nn.Module):
    """Changes its input in place and puts another tensor into a buffer, with a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("later", None)
        self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        self.mean, self.later = 0.9 * self.mean + 0.1 * x.mean(), x.mean()
        return self.last(self.twice(self.twice(x)))


@pytest.mark.parametrize("forward", ["auto", "antithetic", "rank1"])
def test_a_look_changes_neither_its_input_nor_a_buffer_that_is_put_anew(forward):
    bnn, x = bayesian(Writes(), "normal", **way(forward)), torch.zeros(5, 4)
    bnn(x)
    assert torch.equal(x, torch.ones(5, 4))
    torch.testing.assert_close(bnn.net.mean, torch.tensor(0.1))


def test_a_batch_that_no_network_takes_is_forgotten():
    bnn = bayesian(Queries(), "normal", forward="auto")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bnn(torch.randn(5, 3, generator=seeded(0)))
    bnn(torch.ones(5, 4))
    assert bnn.examplewise == {"image.weight", "image.bias"}
