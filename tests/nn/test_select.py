"""Which parameters become random, and with which options."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import ParameterError, bayesian, posterior, prior
from mcrepar.nn.select import is_norm, options_of, places, selected, spread, unit


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4))
        self.head = nn.Linear(4, 2)
        self.token = nn.Parameter(torch.randn(5))
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)


def names(net: nn.Module, select=None) -> list[str]:
    return [place.name for place in selected(net, select)]


WEIGHTS = ["stem.weight", "stem.bias", "block.0.weight", "block.0.bias", "head.weight", "head.bias"]


def test_all_but_norm_layers_and_what_is_not_trained():
    assert names(Net()) == ["token", *WEIGHTS]


@pytest.mark.parametrize(
    ("select", "wanted"),
    [
        ("head", ["head.weight", "head.bias"]),
        ("head.*", ["head.weight", "head.bias"]),
        ("*.weight", ["stem.weight", "norm.weight", "block.0.weight", "block.1.weight", "head.weight"]),
        (["stem", "token"], ["token", "stem.weight", "stem.bias"]),
        (("block.0.bias",), ["block.0.bias"]),
        (lambda name, p: p.dim() == 4, ["stem.weight", "block.0.weight"]),
        (lambda name, p: name.startswith("block.1"), ["block.1.weight", "block.1.bias"]),
    ],
)
def test_select(select, wanted):
    assert names(Net(), select) == wanted


def test_what_is_not_selected_stays_deterministic():
    bnn = bayesian(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), select="1.weight")
    assert list(bnn.draw()) == ["1.weight"]
    assert {n for n, _ in bnn.net.named_parameters()} == {"0.weight", "0.bias", "1.bias"}
    bnn(torch.ones(1, 3)).sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())


@pytest.mark.parametrize("select", ["nothing", "*.heads", ["head", "tail"]])
def test_a_pattern_without_a_match_is_refused(select):
    with pytest.raises(ParameterError, match=r"no parameter matches it.*names such as 'token'"):
        names(Net(), select)


@pytest.mark.parametrize("select", [lambda name, p: False, []])
def test_nothing_selected_is_refused(select):
    with pytest.raises(ParameterError, match="selects no trainable parameter"):
        names(Net(), select)


def test_a_pattern_of_what_cannot_be_random_is_refused():
    net = Net()
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ParameterError, match=r"'fro\*'.*all that it matches is frozen.*such as frozen"):
        names(net, ["head", "fro*"])
    with pytest.raises(ParameterError, match=r"'phase'.*is complex"):
        names(net, ["head", "phase"])
    assert names(net, "[fhp]*") == ["head.weight", "head.bias"]  # what is frozen beside the others stays as it is


def test_what_torch_jit_made_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(ParameterError, match=r"compiled by torch\.jit.*Use the network before"):
        bayesian(nn.Sequential(nn.Linear(2, 2), scripted))


def test_a_network_without_values_is_refused():
    with pytest.raises(ParameterError, match="weight is on the meta device"):
        bayesian(nn.Linear(2, 2, device="meta"))


class Holds(nn.Module):
    def __init__(self, hold) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(2, 2), nn.LSTM(2, 2)
        self.kept = hold(self.layer.weight)


@pytest.mark.parametrize("hold", [lambda w: [w], lambda w: {"a": (1, w)}, lambda w: [[w], "word"]])
def test_a_weight_that_another_attribute_holds_is_refused(hold):
    with pytest.raises(ParameterError, match=r"the attribute 0\.kept holds 0\.layer\.weight too"):
        bayesian(nn.Sequential(Holds(hold)))
    assert list(bayesian(nn.Sequential(Holds(hold)), select="0.other").draw())
    assert list(bayesian(nn.Sequential(Holds(torch.clone))).draw())


def test_a_network_without_parameters_is_refused():
    with pytest.raises(ParameterError, match="no parameters"):
        names(nn.Sequential(nn.ReLU()))


@pytest.mark.parametrize("module", [nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.LayerNorm(2), nn.GroupNorm(1, 2),
                                    nn.InstanceNorm2d(2), nn.RMSNorm(2)])  # fmt: skip
def test_norm_layers(module):
    assert is_norm(module)


@pytest.mark.parametrize("name", ["LlamaRMSNorm", "T5LayerNorm", "FrozenBatchNorm2d", "BatchNormAct2d", "GroupNorm32",
                                  "MambaRMSNormGated", "EvoNorm2dB0", "L2Norm", "LayerNormalization", "BatchRenorm2d",
                                  "layernorm", "InstanceNorm3dNVFuser"])  # fmt: skip
def test_norm_layers_of_others_by_name(name):
    assert is_norm(type(name, (nn.Module,), {})())


@pytest.mark.parametrize("name", ["NormalHead", "AbnormalityScorer", "NormalizingFlow", "NormHead", "NormedLinear",
                                  "Normalizer", "WeightNormLinear", "Enormous"])  # fmt: skip
def test_other_layers_with_such_letters_are_random(name):
    layer = type(name, (nn.Linear,), {})(2, 2)
    assert not is_norm(layer)
    assert names(layer) == ["weight", "bias"]


def test_a_norm_layer_under_another_name():
    assert is_norm(type("Scaling", (nn.LayerNorm,), {})(2))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [(torch.full((768,), 1e-6), 1e-6), (torch.full((3, 7), -0.1), 0.1), (torch.tensor([2.0]), 2.0),
     (torch.zeros(5), 1.0), (torch.zeros(0), 1.0), (torch.tensor([1.0, 3.0]), 2**0.5)],
)  # fmt: skip
def test_the_spread_of_equal_values_is_their_size(values, wanted):
    net = nn.Module()
    net.gamma = nn.Parameter(values)
    assert spread(places(net)[0]) == pytest.approx(wanted, rel=1e-6)


def test_zeros_have_the_spread_of_the_tensor_beside_them():
    layer = nn.Linear(3, 4)
    nn.init.zeros_(layer.bias)
    weight, bias = places(layer)
    assert spread(bias) == spread(weight) == pytest.approx(layer.weight.double().std().item())


def test_places_hold_every_name_of_a_tensor_once():
    inner = nn.Linear(3, 3)
    net = nn.Sequential(inner, inner, nn.Linear(3, 3))
    net[2].weight = inner.weight
    found = {place.names: place for place in places(net)}
    assert set(found) == {("0.weight", "1.weight", "2.weight"), ("0.bias", "1.bias"), ("2.bias",)}
    assert found["0.weight", "1.weight", "2.weight"].owners == (inner, inner, net[2])


@pytest.mark.parametrize(
    ("layer", "held"),
    [(nn.Embedding(5, 2, padding_idx=3), 3), (nn.Embedding(5, 2, padding_idx=-1), 4), (nn.Embedding(5, 2), None),
     (nn.EmbeddingBag(5, 2, padding_idx=0), 0), (nn.Linear(5, 2), None)],
)  # fmt: skip
def test_a_padding_row_is_held(layer, held):
    assert places(layer)[0].held == held


# ---- overrides


def test_a_pattern_beats_a_module_beats_a_type_and_later_beats_earlier():
    net = Net()
    overrides = {
        "head.bias": {"start_std": 0.4},
        net.head: {"start_std": 0.3, "kl_method": "stats"},
        nn.Linear: {"start_std": 0.2, "n_mc_iter": 7},
        nn.Module: {"signs": "keep"},
        net.block: {"n_mc_iter": 9},
        "*.bias": {"pretrained": True},
        "stem*": {"start_std": 0.1},
        "stem.w*": {"start_std": 0.15},
    }
    got = {place.name: options_of(place, overrides) for place in selected(net, None)}
    linear = {"n_mc_iter": 7, "signs": "keep", "kl_method": "stats"}
    assert got["head.weight"] == {"start_std": 0.3, **linear}
    assert got["head.bias"] == {"start_std": 0.4, "pretrained": True, **linear}
    assert got["block.0.weight"] == {"n_mc_iter": 9, "signs": "keep"}
    assert got["stem.weight"] == {"start_std": 0.15, "signs": "keep"}
    assert got["stem.bias"] == {"start_std": 0.1, "signs": "keep", "pretrained": True}


def test_overrides_reach_the_latents():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    bnn = bayesian(net, "radial", "normal", overrides={
        "2": {"posterior": "normal", "prior": prior("laplace", scale=0.2), "kl_method": "stream", "n_mc_iter": 50},
        "0.bias": {"posterior": posterior("horseshoe", slab=2.0)},
    })  # fmt: skip
    chosen = {key: latent.options for key, latent in bnn.latents.items()}
    assert [chosen[k].posterior.name for k in chosen] == ["radial", "horseshoe", "normal", "normal"]
    assert [chosen[k].prior.name for k in chosen] == ["normal", "normal", "laplace", "laplace"]
    assert (chosen["2/bias"].estimator.method, chosen["2/bias"].estimator.n_mc_iter) == ("stream", 50)
    assert bnn(torch.ones(2, 3)).shape == (2, 2)
    assert mcrepar.kl(bnn).isfinite()


@pytest.mark.parametrize("key", ["tail", nn.Conv3d, nn.Linear(2, 2), 3, "norm"])
def test_an_override_of_nothing_is_refused(key):
    with pytest.raises(ParameterError, match="no parameter matches it"):
        bayesian(Net(), overrides={key: {"start_std": 0.1}})


def test_an_unknown_option_is_refused():
    with pytest.raises(ParameterError, match=r"'sigma'.*no such option.*start_std"):
        bayesian(Net(), overrides={"head": {"sigma": 0.1}})
    with pytest.raises(ParameterError, match="no such option"):
        bayesian(Net(), overrides={"head": {"forward": "local"}})


def test_a_frozen_network_is_called_frozen():
    with pytest.raises(ParameterError, match=r"all parameters of the network are frozen.*requires_grad_\(True\)"):
        bayesian(nn.Linear(2, 1).requires_grad_(False))


def holding(layer: nn.Module | None = None, **shapes: tuple[int, ...]) -> nn.Module:
    """A module with parameters of its own."""
    layer = nn.Module() if layer is None else layer
    for name, shape in shapes.items():
        layer.register_parameter(name, nn.Parameter(torch.ones(shape)))
    return layer


FANS = {
    "transposed": (nn.ConvTranspose2d(8, 8, 3), {"weight": 72, "bias": 72}),
    "transposed, depthwise": (nn.ConvTranspose2d(8, 8, 3, groups=8), {"weight": 9, "bias": 9}),
    "transposed, two groups": (nn.ConvTranspose1d(6, 4, 5, groups=2), {"weight": 15, "bias": 15}),
    "two groups": (nn.Conv1d(6, 4, 5, groups=2), {"weight": 15, "bias": 15}),
    "lstm": (nn.LSTM(5, 7), {"weight_ih_l0": 5, "weight_hh_l0": 7, "bias_ih_l0": 5, "bias_hh_l0": 7}),
    "cell": (nn.GRUCell(5, 7), {"weight_ih": 5, "weight_hh": 7, "bias_ih": 5, "bias_hh": 7}),
    "attention": (nn.MultiheadAttention(6, 2), {"in_proj_weight": 6, "in_proj_bias": 6}),
    "bias of attention": (nn.MultiheadAttention(6, 2, kdim=4, add_bias_kv=True), {"k_proj_weight": 4, "bias_k": 6}),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 1, 3)),
                    {"parametrizations.weight.original0": 1, "parametrizations.weight.original1": 36}),
    "layer scale in a layer": (holding(nn.Linear(6, 6), gamma=(6,)), {"weight": 6, "gamma": 1}),
    "tables": (holding(cls=(1, 1, 8), pos=(1, 65, 8), positional_embedding=(77, 8), gamma=(8,), query=(1, 4, 8)),
               {"cls": 1, "pos": 1, "positional_embedding": 1, "gamma": 1, "query": 1}),
    "relative positions": (holding(weight=(4, 8), relative_position_bias_table=(9, 2)),
                           {"relative_position_bias_table": 1}),
    "columns by the bias": (holding(weight=(8, 32), bias=(32,)), {"weight": 8, "bias": 8}),
    "rows by the bias": (holding(weight=(32, 8), bias=(32,)), {"weight": 8, "bias": 8}),
    "one output by the bias": (holding(weight=(1, 4, 3, 3), bias=(1,)), {"weight": 36, "bias": 36}),
    "rows": (holding(w=(32, 8), b=(32,), kernel=(5, 4, 3)), {"w": 8, "b": 8, "kernel": 12}),
}  # fmt: skip


@pytest.mark.parametrize(("layer", "inputs"), FANS.values(), ids=list(FANS))
def test_the_fan_in_counts_what_a_unit_reads(layer, inputs):
    found = {place.name: unit(place, "fan_in") for place in places(layer) if place.name in inputs}
    assert found == {name: pytest.approx(count**-0.5) for name, count in inputs.items()}


def test_the_fan_in_of_a_layer_of_gpt2():
    """Its weight is (inputs, outputs)."""
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D(32, 8)
    assert {place.name: unit(place, "fan_in") ** -2 for place in places(conv1d)} == pytest.approx(
        {"weight": 8, "bias": 8}
    )


def test_the_fan_in_of_tied_weights_is_that_of_the_layer_that_multiplies():
    net, table = nn.Linear(8, 32), nn.Parameter(torch.ones(32, 8))
    net.weight = table
    tied = nn.ModuleDict({"tokens": holding(), "head": net})
    tied["tokens"].register_parameter("embedding", table)
    assert unit(places(tied)[0], "fan_in") == pytest.approx(8**-0.5)
