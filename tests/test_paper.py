"""The paper's printed code, as printed, and two names of bayesian-torch."""

import copy
import inspect
import math
import pickle
import sys

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import ParameterError, paper
from mcrepar.models import alexnet, model
from mcrepar.nn.module import BayesianModule
from mcrepar.paper import AlexNet, dnn_to_bnn, get_kl_loss
from mcrepar.paper import bayes_layers as bl
from mcrepar.prediction import predict

ARGUMENTS = {"approx_post": "Radial", "kl_method": "repar", "n_mc_iter": 3}


def test_figure_1():
    model = AlexNet(n_classes=10, n_channels=3,
                    approx_post="Radial",
                    kl_method="repar",
                    n_mc_iter=1000)  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == 4_349_824  # two per weight, no biases
    estimators = {(o.estimator.method, o.estimator.n_mc_iter) for o in (m.options for m in model.latents.values())}
    assert estimators == {("repar", 1000)}
    for latent in model.latents.values():  # a thousand draws of two million numbers are for another day
        object.__setattr__(latent.options, "estimator", mcrepar.divergence.methods.Estimator("repar", 2))
    logits, kl = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    assert kl.dim() == 0
    assert kl > 0


def test_the_appendix_imports_it_under_its_own_name(monkeypatch):
    """As docs/migrating.md says: one line, and then the appendix's import as it is printed."""
    monkeypatch.setitem(sys.modules, "bayes_layers", paper.bayes_layers)
    import bayes_layers as printed
    from bayes_layers import Conv2d

    assert printed.Linear is bl.Linear
    assert Conv2d is bl.Conv2d
    logits, kl = printed.Linear(3, 2, **ARGUMENTS)(torch.zeros(4, 3))
    assert logits.shape == (4, 2)
    assert kl > 0


class OwnAlexNet(nn.Module):
    """The appendix's example; the dots are filled in, and the missing return is added."""

    def __init__(self, num_classes, in_channels, **bayes_args):
        super(OwnAlexNet, self).__init__()  # noqa: UP008
        self.conv1 = bl.Conv2d(in_channels, 64, kernel_size=11, stride=4, padding=5, **bayes_args)
        self.classifier = bl.Linear(1 * 1 * 128, num_classes, **bayes_args)
        self.conv2 = bl.Conv2d(64, 128, kernel_size=5, padding=2, **bayes_args)
        self.layers = [self.conv1, nn.ReLU(), nn.MaxPool2d(4), self.conv2, nn.ReLU(), nn.MaxPool2d(2)]

    def forward(self, x):
        kl = 0
        for layer in self.layers:
            tmp = layer(x)
            if isinstance(tmp, tuple):
                x, kl_ = tmp
                kl += kl_
            else:
                x = tmp

        x = x.view(x.size(0), -1)
        logits, _kl = self.classifier.forward(x)
        kl += _kl
        return logits, kl


def test_the_appendix():
    torch.manual_seed(0)
    model = OwnAlexNet(5, 3, approx_post="Radial", kl_method="closed")
    logits, kl = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 5)
    torch.testing.assert_close(kl, get_kl_loss(model))
    (logits.sum() + kl).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    answer = predict(model, torch.randn(3, 3, 32, 32), draws=2, likelihood="categorical", output=0)
    assert answer.probs.shape == (3, 5)


@pytest.mark.parametrize("name", paper.PRINTED)
def test_every_printed_layer_returns_its_output_and_its_kl(name):
    torch.manual_seed(0)
    dimensions = int(name[-2]) if name.endswith("d") else 0
    args = (2, 3, 3) if dimensions else (2, 3)
    x = torch.randn(4, 2, *(5,) * dimensions)
    layer = getattr(bl, name)(*args, **ARGUMENTS)
    out, kl = layer(x)
    assert out.shape == getattr(nn, name)(*args)(x).shape
    assert kl.dim() == 0
    assert [latent.name for latent in layer.latents.values()] == ["weight"]
    with_bias = getattr(bl, name)(*args, bias=True, **ARGUMENTS)
    assert len(with_bias.latents) == 2
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301
        assert type(same) is getattr(bl, name)


def test_the_prior_is_the_papers_unless_chosen():
    assert bl.Linear(2, 2).latents["weight"].options.prior.name == "normal"
    assert bl.Linear(2, 2, prior="Laplace", kl_method="stream").latents["weight"].options.prior.name == "laplace"
    with pytest.raises(TypeError, match="posteriors"):
        bl.Linear(2, 2, posteriors="radial")


def test_prediction_takes_the_network_without_its_kl():
    torch.manual_seed(0)
    model = AlexNet(n_classes=4, n_channels=1, kl_method="repar", n_mc_iter=10**9)  # a KL would never end
    assert predict(model, torch.randn(2, 1, 32, 32), draws=2).mean.shape == (2, 4)


def test_alexnet_is_plain():
    net = alexnet.AlexNet()
    assert sum(p.numel() for p in net.parameters()) == 2_174_912
    assert not any("bias" in name for name, _ in net.named_parameters())
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    widths = [(c.in_channels, c.out_channels, c.kernel_size[0], c.stride[0], c.padding[0]) for c in convolutions]
    assert widths == [
        (3, 64, 11, 4, 5),
        (64, 192, 5, 1, 2),
        (192, 384, 3, 1, 1),
        (384, 256, 3, 1, 1),
        (256, 128, 3, 1, 1),
    ]


NETWORKS = [name for name, made in vars(paper).items() if isinstance(made, type) and made.__module__ == paper.__name__]
WORDS = {"FCNet": {"size": (9, 9), "hidden": (8,)}, "VGG": {"width": 2, "dense": 4, "pooled": 1},
         "PreActResNet": {"depths": (1, 1), "width": 2}, "DenseNet": {"depths": (1, 1), "growth": 2},
         "UNet3DEncoder": {"width": 2}}  # fmt: skip


def test_the_names_of_the_networks():
    depths = {"VGG": (11, 13, 16, 19), "PreActResNet": (18, 34, 50, 101, 152), "DenseNet": (121, 161, 169, 201)}
    expected = {f"{family}{depth}" for family, all_of_it in depths.items() for depth in all_of_it}
    expected |= {f"VGG{depth}BN" for depth in depths["VGG"]}
    assert set(NETWORKS) == expected | {"AlexNet", "FCNet", "DenseNet100_12", "UNet3DEncoder"}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_printed_network_returns_its_output_and_its_kl(name):
    torch.manual_seed(0)
    cls = getattr(paper, name)
    small = next((words for family, words in WORDS.items() if name.startswith(family)), {})
    model = cls(n_classes=4, n_channels=1, **small, **ARGUMENTS)
    size = (9, 9) if name == "FCNet" else (13,) * 3 if name == "UNet3DEncoder" else (17, 17)
    logits, kl = model(torch.randn(2, 1, *size))
    assert logits.shape == (2, 4)
    assert kl.dim() == 0
    assert not any(latent.name.endswith("bias") for latent in model.latents.values())
    methods = {(m.options.estimator.method, m.options.estimator.n_mc_iter) for m in model.latents.values()}
    assert methods == {("repar", 3)}
    assert type(pickle.loads(pickle.dumps(model))) is cls  # noqa: S301


def test_a_printed_network_shows_its_own_arguments():
    parameters = inspect.signature(paper.VGG16).parameters
    assert [parameters[key].default for key in ("n_classes", "n_channels", "dense", "bias")] == [10, 3, 2048, False]
    assert parameters["approx_post"].default == "Radial"
    with pytest.raises(ParameterError, match=r"no such option\. Use depths"):
        paper.VGG16(depth=3)
    assert len(paper.FCNet(size=(2, 2), hidden=(3,), bias=True).latents) == 4


def known(**changes):
    words = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
             "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5}  # fmt: skip
    return {**words, **changes}


def normal_kl(mean, std, centre, scale):
    """The textbook's sum, written out."""
    return float(sum(
        math.log(scale / s) + (s * s + (m - c) ** 2) / (2 * scale * scale) - 0.5
        for m, s, c in zip(mean.double().flatten().tolist(), std.double().flatten().tolist(),
                           centre.double().flatten().tolist(), strict=True)
    ))  # fmt: skip


def test_dnn_to_bnn_in_place():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    weights = [p.detach().clone() for p in model.parameters()]
    returned = dnn_to_bnn(model, known(prior_mu=0.1, prior_sigma=0.7))
    assert returned is model
    assert isinstance(model, BayesianModule)
    assert model(torch.zeros(5, 3)).shape == (5, 2)
    assert not torch.equal(model(torch.ones(1, 3)), model(torch.ones(1, 3)))
    sigma = math.log1p(math.exp(-3.0))
    expected = sum(normal_kl(w, torch.full_like(w, sigma), torch.full_like(w, 0.1), 0.7) for w in weights)
    assert get_kl_loss(model).item() == pytest.approx(expected, rel=1e-5)  # a sum, not a mean of each tensor
    (model(torch.ones(1, 3)).sum() + get_kl_loss(model)).backward()


def test_dnn_to_bnn_moped():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4))
    nn.init.zeros_(model[0].bias)
    weight = model[0].weight.detach().clone()
    dnn_to_bnn(model, known(moped_enable=True, moped_delta=0.2))
    latent = model.latents["0/weight"]
    torch.testing.assert_close(latent.log_scale.exp(), 0.2 * weight.abs())
    expected = normal_kl(weight, 0.2 * weight.abs(), weight, 1.0)
    assert latent.divergence().item() == pytest.approx(expected, rel=1e-5)
    assert bool((model.latents["0/bias"].log_scale.exp() > 1e-3).all())  # zeros get a spread too


def test_dnn_to_bnn_flipout():
    model = nn.Sequential(nn.Linear(3, 4))
    assert dnn_to_bnn(model, known(type="Flipout")).mode == "flipout"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prior_variance": 1.0}, "prior_variance"),
        ({"type": "Radial"}, "Flipout"),
        ({"posterior_mu_init": 0.3}, "mu_init"),
        ({"posterior_rho_init": -1e3}, "rho_init=-1000.0: .*. Use a number such as"),
        ({"posterior_rho_init": "-3"}, "rho_init='-3'"),
        ({"prior_sigma": None}, "prior_sigma=None: it is not a number. Use a number such as 1.0"),
        ({"prior_mu": "middle"}, "prior_mu='middle': it is not a number"),
        ({"moped_enable": True, "moped_delta": 0}, "initial_std=0"),
    ],
)
def test_dnn_to_bnn_refuses(changes, words):
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(ParameterError, match=words):
        dnn_to_bnn(model, known(**changes))
    assert type(model) is nn.Sequential
    assert model(torch.zeros(1, 3)).shape == (1, 4)


@pytest.mark.parametrize("options", [None, 3, ["prior_mu"]])
def test_the_options_of_dnn_to_bnn_are_a_dict(options):
    with pytest.raises(
        ParameterError, match=r"dnn_to_bnn\(model, .*\): it is not a dict of options. Use {'prior_sigma'"
    ):
        dnn_to_bnn(nn.Linear(3, 4), options)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), 5, None])
def test_get_kl_loss_of_what_is_not_bayesian(model):
    with pytest.raises(ParameterError, match="nothing in it is Bayesian"):
        get_kl_loss(model)


def test_a_saved_network_comes_back_without_its_kl_in_the_forward(tmp_path):
    printed = paper.FCNet(n_classes=2, n_channels=1, size=(2, 2), hidden=(3,), kl_method="exact")
    mcrepar.save(printed, tmp_path)
    plain = model("fcnet", 2, 1, size=(2, 2), hidden=(3,), bias=False)
    bnn = mcrepar.load(tmp_path, plain)
    assert type(bnn) is BayesianModule
    assert bnn(torch.zeros(5, 1, 2, 2)).shape == (5, 2)
    assert torch.equal(bnn.kl(), printed(torch.zeros(5, 1, 2, 2))[1])


def test_get_kl_loss_counts_a_shared_layer_once():
    layer = bl.Linear(3, 3, kl_method="exact")
    assert torch.equal(get_kl_loss(nn.Sequential(layer, layer)), layer.kl())
