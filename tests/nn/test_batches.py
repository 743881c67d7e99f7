"""Any x and any output: all of x goes through the network, the same batches for every draw."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mcrepar
from mcrepar import ParameterError, predict
from tests.conftest import seeded


def network(outputs=3, inputs=4, seed=0, **options):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    return mcrepar.bayesian(net, start_std=0.8, **options)


def data(n=7, inputs=4):
    return torch.randn(n, inputs, generator=seeded(1))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, a, b, gain=1.0):
        return self.inner(a + gain * b)


def test_every_form_of_x():
    bnn, x = network(), data(10)
    expected = predict(bnn, x, draws=4, generator=seeded(0)).mean
    y = torch.arange(10)
    forms = [
        (x,),
        {"input": x},
        [x[:5], x[5:]],
        [{"input": x}],
        [(x[:3], y[:3]), (x[3:], y[3:])],
        DataLoader(TensorDataset(x), batch_size=3),
        DataLoader(TensorDataset(x, y), batch_size=4),
    ]
    for form in forms:
        torch.testing.assert_close(predict(bnn, form, draws=4, generator=seeded(0)).mean, expected)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(4, 2)

    def forward(self, x):
        return self.inner(x)[1][0]


def test_packed_sequences_are_batches():
    torch.manual_seed(0)
    bnn = mcrepar.bayesian(Packed())
    x = nn.utils.rnn.pack_sequence([data(3), data(2)])
    for form in ([x], [(x, "a target")]):
        assert predict(bnn, form, draws=3).mean.shape == (2, 2)
    with pytest.raises(ParameterError, match=r"PackedSequence: its examples are not in dimension 0.*. Use \[x\]"):
        predict(bnn, x, draws=2)


def test_a_named_tuple_is_one_argument():
    pair = namedtuple("Pair", "a b")
    bnn = mcrepar.bayesian(Unpacks())
    assert predict(bnn, pair(data(5), data(5)), draws=2, batch_size=2).mean.shape == (5, 2)


class Unpacks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, pair):
        return self.inner(pair.a + pair.b)


def test_several_arguments():
    bnn, a, b = mcrepar.bayesian(Two()), data(10), torch.ones(10, 4)
    forms = [(a, b, 2.0), {"a": a, "b": b, "gain": 2.0}, [((a, b, 2.0), "a target")]]
    first, *others = (predict(bnn, form, draws=3, batch_size=4, generator=seeded(0)).mean for form in forms)
    for other in others:
        torch.testing.assert_close(first, other)


def test_a_shuffled_loader_is_noticed():
    loader = DataLoader(TensorDataset(data(50)), batch_size=10, shuffle=True)
    with pytest.raises(ParameterError, match="another order"):
        predict(network(), loader, draws=5)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ((row for row in data()), "anew"),
        (TensorDataset(data()), "DataLoader"),
        (3, "anew"),
        (np.array(["a", "b"]), "torch has no <U1. Use numbers"),
        ([3], "a batch of x is a int"),
        ((data(3), data(4)), r"lengths \[3, 4\]"),
        ({}, "no tensor"),
        ([], "no batch"),
        (data(0), "no batch"),
        (torch.tensor(1.0), "no tensor with examples"),
    ],
)
def test_an_x_that_cannot_be_is_refused(x, words):
    with pytest.raises(ParameterError, match=words):
        predict(network(), x, draws=2)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: [x[:4], x[4:]]], ids=["x", "tuple", "batches"])
def test_numpy_arrays_are_tensors_of_the_networks_precision(form):
    bnn, x = network(), data()
    wanted = predict(bnn, x, draws=2, generator=seeded(1)).mean
    array = x.double().numpy()
    array.flags.writeable = False
    for given in (array, np.ascontiguousarray(array[::-1])[::-1]):  # read-only, and with a negative stride
        assert torch.equal(predict(bnn, form(given), draws=2, generator=seeded(1)).mean, wanted)


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.inner, self.wrap = nn.Linear(4, 2), wrap

    def forward(self, x):
        return self.wrap(self.inner(x))


def test_networks_that_return_more():
    x = data()
    named = mcrepar.bayesian(Returns(lambda u: {"logits": u, "loss": u.sum()}))
    pair = mcrepar.bayesian(Returns(lambda u: (u, u.sum())))
    with pytest.raises(ParameterError, match="output='logits'"):
        predict(named, x, draws=2)
    with pytest.raises(ParameterError, match="output=0"):
        predict(pair, x, draws=2)
    with pytest.raises(ParameterError, match="dict has none"):
        predict(named, x, draws=2, output="logit")
    with pytest.raises(ParameterError, match="not one output per example"):
        predict(named, x, draws=2, output="loss")
    assert predict(named, x, draws=2, output="logits").mean.shape == (7, 2)
    assert predict(pair, x, draws=2, output=0).mean.shape == (7, 2)
    assert predict(pair, x, draws=2, output=lambda out: out[0][:, :1]).mean.shape == (7, 1)


class Bag(nn.Module):
    """One output for all rows."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(x.mean(0, keepdim=True))


@pytest.mark.parametrize("draws", [1, 3, "moments"])
def test_an_output_has_a_row_for_every_example_that_x_was_cut_into(draws):
    bnn, x = mcrepar.bayesian(Bag()), torch.ones(600, 4)
    with pytest.raises(ParameterError, match=r"gives 1 row for 256 examples.*\[x\]"):
        predict(bnn, x, draws)
    assert predict(bnn, [x], draws).mean.shape == (1, 3)


@pytest.mark.parametrize("ask", ["elbo", "predict", "moments", "calibrate_moments"])
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(3, 5), r"x of shape \(3, 5\).*the shape that its layers were built for"),
        (torch.ones(3, 4).double(), r"torch\.float64.*x\.to\(torch\.float32\)"),
        ((torch.ones(3, 4), torch.ones(3)), "other arguments than the 2 in x"),
    ],
)
def test_an_x_that_does_not_fit_is_refused_by_its_shape(ask, x, words):
    bnn = mcrepar.bayesian(nn.Linear(4, 2))
    calls = {
        "elbo": lambda: mcrepar.elbo(bnn, "categorical", x, torch.zeros(3).long(), 10),
        "predict": lambda: predict(bnn, x, 3),
        "moments": lambda: predict(bnn, x, "moments"),
        "calibrate_moments": lambda: mcrepar.calibrate_moments(bnn, x),
    }
    with pytest.raises(ParameterError, match=words):
        calls[ask]()


class Writer(nn.Module):
    """A network that standardises its input in place."""

    def __init__(self, norm: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3) if norm else nn.Identity()

    def forward(self, x):
        x -= 0.5
        x /= 0.5
        return self.norm(self.inner(x))


class Reader(Writer):
    def forward(self, x):
        return super().forward(x.clone())


@pytest.mark.parametrize("posterior", ["normal", "radial"])
@pytest.mark.parametrize("options", [{"forward": "weights"}, {}, {"structure": "rank1"}], ids=str)
@pytest.mark.parametrize("norm", [False, True])
def test_a_network_may_write_to_its_input(posterior, options, norm):
    x, found = data(), {}
    for kind in (Writer, Reader):
        bnn = mcrepar.bayesian(kind(norm), posterior, **options)
        if norm:
            torch.manual_seed(2)
            bnn = bnn.calibrate(data(9))
        means = [predict(bnn, form, draws=5, generator=seeded(0)).mean for form in (x, [x], {"x": x})]
        e = mcrepar.elbo(bnn, "categorical", x.clone(), torch.arange(7) % 3, 50, draws=4, generator=seeded(3))
        found[kind] = [*means, *means, e.nll.detach()]
    for written, read in zip(found[Writer], found[Reader], strict=True):
        torch.testing.assert_close(written, read)
    assert torch.equal(x, data()), "predictions leave x as it was"
