"""Layers by hand: the torch layer's own behaviour, with weights that are drawn."""

import copy
import inspect
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import nn as bnn_layers
from mcrepar.nn import LAYERS
from mcrepar.nn.module import BayesianModule
from tests.conftest import seeded

CASES = {
    "Linear": ((4, 3), {"bias": False}, (5, 4)),
    "Conv1d": ((2, 3, 3), {"padding": 1, "padding_mode": "circular"}, (5, 2, 8)),
    "Conv2d": ((2, 4, 3), {"stride": 2, "groups": 2, "dilation": 2}, (5, 2, 9, 9)),
    "Conv3d": ((1, 2, 2), {}, (2, 1, 4, 4, 4)),
    "ConvTranspose1d": ((2, 3, 3), {"stride": 2, "output_padding": 1}, (5, 2, 8)),
    "ConvTranspose2d": ((2, 3, 3), {"stride": 2, "output_padding": 1}, (5, 2, 4, 4)),
    "ConvTranspose3d": ((1, 2, 2), {}, (2, 1, 3, 3, 3)),
    "LSTM": ((4, 3), {"num_layers": 2, "bidirectional": True, "batch_first": True}, (5, 6, 4)),
    "GRU": ((4, 3), {"batch_first": True}, (5, 6, 4)),
}


def call(layer, name):
    if name == "Embedding":
        return layer(torch.tensor([[0, 1], [2, 5]]))
    if name == "MultiheadAttention":
        x = torch.randn(2, 5, 8, generator=seeded(1))
        return layer(x, x, x)[0]
    out = layer(torch.randn(CASES[name][2], generator=seeded(1)))
    return out[0] if isinstance(out, tuple) else out


def arguments(name):
    if name == "Embedding":
        return (7, 4), {}
    if name == "MultiheadAttention":
        return (8, 2), {"batch_first": True}
    return CASES[name][:2]


@pytest.mark.parametrize("name", LAYERS)
def test_its_mean_is_the_torch_layer_and_a_draw_is_not(name):
    args, kwargs = arguments(name)
    torch.manual_seed(0)
    plain = getattr(nn, name)(*args, **kwargs).eval()
    torch.manual_seed(0)
    layer = getattr(bnn_layers, name)(*args, **kwargs, posterior="radial", start_std=0.1).eval()
    assert isinstance(layer, BayesianModule)
    assert isinstance(layer, getattr(bnn_layers, name))
    with layer.frozen("mean"):
        torch.testing.assert_close(call(layer, name), call(plain, name))
    first, second = call(layer, name), call(layer, name)
    assert first.shape == call(plain, name).shape
    assert not torch.equal(first, second)
    assert layer.kl() > 0


@pytest.mark.parametrize("name", LAYERS)
def test_its_signature_and_doc_name_the_arguments_of_both(name):
    layer = getattr(bnn_layers, name)
    own = inspect.signature(getattr(nn, name) if name not in ("LSTM", "GRU") else nn.RNNBase).parameters
    names = [n for n in own if n != "mode"]
    options = list(inspect.signature(mcrepar.bayesian).parameters)[1:]
    assert list(inspect.signature(layer).parameters) == [*names, *options]
    assert all(n in layer.__doc__ for n in [*names, *options])


def test_options_reach_the_layer():
    layer = bnn_layers.Linear(
        3, 2, posterior="gamma", prior=mcrepar.prior("gamma", rate=3.0), kl_method="stats", n_mc_iter=7, signs="keep"
    )
    options = layer.latents["weight"].options
    assert (options.posterior.name, options.prior.values["rate"]) == ("gamma", 3.0)
    assert (options.estimator.method, options.estimator.n_mc_iter) == ("stats", 7)
    assert bnn_layers.Linear(3, 2, posterior="normal", forward="local").mode == "local"
    assert bnn_layers.Linear(3, 2, dtype=torch.float64).kl().dtype == torch.float64


def test_wrong_options_are_refused_as_elsewhere():
    with pytest.raises(mcrepar.UnknownFamilyError):
        bnn_layers.Linear(3, 2, posterior="normale")
    with pytest.raises(TypeError, match="colour"):
        bnn_layers.Linear(3, 2, colour="red")


def test_an_ordinary_network_of_them_trains():
    torch.manual_seed(0)
    net = nn.Sequential(bnn_layers.Linear(3, 8), nn.Tanh(), bnn_layers.Linear(8, 1))
    assert torch.equal(mcrepar.kl(net), net[0].kl() + net[2].kl())
    (net(torch.randn(4, 3)).sum() + mcrepar.kl(net)).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())
    assert {name.rpartition(".")[2] for name, _ in net.named_parameters()} == {"loc", "log_scale"}


def test_copies_and_pickles():
    layer = bnn_layers.Conv2d(1, 2, 3, posterior="normal")
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301
        assert type(same) is bnn_layers.Conv2d
        assert torch.equal(same.kl(), layer.kl())
    layer.load_state_dict(copy.deepcopy(layer).state_dict())


def test_a_subclass_is_an_ordinary_module():
    class Doubled(bnn_layers.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.gain = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.gain * super().forward(x)

    layer = Doubled()
    assert layer(torch.ones(1, 3)).shape == (1, 2)
    assert "gain" in dict(layer.named_parameters())


def test_they_are_imported_on_first_use():
    code = (
        "import sys, mcrepar.nn.module; print('mcrepar.nn.layers' in sys.modules);"
        "mcrepar.nn.Linear; print('mcrepar.nn.layers' in sys.modules, set(mcrepar.nn.LAYERS) <= set(dir(mcrepar.nn)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["False", "True", "True"]
    with pytest.raises(AttributeError, match="no attribute 'Linea'"):
        _ = bnn_layers.Linea


def test_type_checkers_see_the_same_names():
    import ast
    from pathlib import Path

    tree = ast.parse(Path(bnn_layers.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    names = [node.target.id for node in block.body if isinstance(node, ast.AnnAssign)]
    assert tuple(names) == LAYERS
