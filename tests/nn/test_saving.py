"""save and load: bit by bit the same network, or a refusal of what cannot be saved or is another network."""

import json
import math

import pytest
import torch
import torch.distributions as td
from safetensors.torch import load_file
from torch import nn

import mcrepar
from mcrepar import POSTERIORS, ParameterError
from mcrepar.nn.saving import load, save
from tests.conftest import seeded
from tests.nn.saved_networks import assert_same, shaken, small


def there_and_back(bnn, net, path):
    save(bnn, path / "model")
    same = load(path / "model", net)
    assert_same(bnn, same)
    return same


# --- the round trip ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POSTERIORS)
def test_every_posterior_comes_back(name, tmp_path):
    positive = POSTERIORS[name].support.lower >= 0
    prior = "lognormal" if positive else "normal"
    q = mcrepar.posterior(name)
    if POSTERIORS[name].support.lower >= 1:
        prior = mcrepar.prior("pareto", improper=True)
    bnn = mcrepar.bayesian(small(), q, prior, signs="keep" if positive else "", start_std=0.1)
    there_and_back(shaken(bnn), small(seed=9), tmp_path)


@pytest.mark.parametrize(
    "prior",
    [
        mcrepar.prior("normal", loc=0.1, scale=1 / 3),
        mcrepar.prior("normal", loc="tied", scale="learned"),
        mcrepar.prior("normal", scale="optimal"),
        mcrepar.prior("mixture", mix="learned", scale1=2.0),
        mcrepar.prior("normal", scale=torch.tensor(0.7, dtype=torch.float64)),
        mcrepar.prior("student_t", df=3.0),
        td.Normal(0.0, 0.5),
        td.Independent(td.Laplace(torch.zeros(()), 0.5), 0),
        td.Gumbel(0.1, 0.7),
        td.MixtureSameFamily(td.Categorical(torch.tensor([0.3, 0.7])), td.Normal(torch.zeros(2), torch.ones(2))),
        td.MixtureSameFamily(
            td.Categorical(torch.tensor([0.3, 0.7])), td.Independent(td.Normal(torch.zeros(2), torch.ones(2)), 0)
        ),
    ],
    ids=lambda p: getattr(p, "name", type(p).__name__),
)  # fmt: skip
def test_priors_come_back(prior, tmp_path):
    bnn = mcrepar.bayesian(small(), "normal", prior)
    same = there_and_back(shaken(bnn), small(seed=9), tmp_path)
    there_and_back(same, small(seed=8), tmp_path)  # and once more


def test_a_prior_of_tensors_is_shared_as_before_and_learned_as_before(tmp_path):
    scale = torch.tensor(0.3, requires_grad=True)
    bnn = mcrepar.bayesian(small(), "normal", mcrepar.prior("normal", scale=scale))
    same = there_and_back(bnn, small(), tmp_path)
    priors = [latent.options.prior for _, latent in same.latents.items()]
    assert len({id(p) for p in priors}) == 1
    assert priors[0].values["scale"].requires_grad
    same.kl().backward()
    bnn.kl().backward()
    assert torch.equal(priors[0].values["scale"].grad, scale.grad)


def test_options_come_back(tmp_path):
    bnn = mcrepar.bayesian(
        small(),
        mcrepar.posterior("radial"),
        "normal",
        "stats",
        50,
        start_std=0.2,
        pretrained=True,
        overrides={
            "3.*": {"posterior": mcrepar.posterior("horseshoe", slab=2.5), "kl_method": "stream", "n_mc_iter": 3}
        },
    )
    same = there_and_back(shaken(bnn), small(seed=5), tmp_path)
    last = same.latents["3/weight"].options
    assert (last.posterior.name, dict(last.posterior.fixed)) == ("horseshoe", {"slab": 2.5})
    assert (last.estimator.method, last.estimator.n_mc_iter) == ("stream", 3)
    assert same.latents["0/weight"].anchor is not None


@pytest.mark.parametrize("forward", ["local", "flipout", "per_example"])
def test_the_forward_comes_back(forward, tmp_path):
    net = nn.Sequential(nn.Linear(4, 3), nn.Conv1d(1, 1, 1))[:1]
    bnn = mcrepar.bayesian(net, "normal", forward=forward)
    assert there_and_back(bnn, nn.Sequential(nn.Linear(4, 3)), tmp_path).mode == forward


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype, tmp_path):
    there_and_back(shaken(mcrepar.bayesian(small(dtype=dtype), "normal")), small(9, dtype), tmp_path)


def test_tied_weights_random_and_plain(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.embedding.weight
            self.norm, self.other = nn.LayerNorm(4), nn.LayerNorm(4)
            self.other.weight = self.norm.weight

        def forward(self, x):
            return self.head(self.other(self.norm(self.embedding(x))))

    bnn = shaken(mcrepar.bayesian(Tied()))
    same = there_and_back(bnn, Tied(), tmp_path)
    assert same.names["embedding/weight"] == ("embedding.weight", "head.weight")
    assert same.net.other.weight is same.net.norm.weight
    untied = Tied()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    with pytest.raises(ParameterError, match=r"embedding.weight = head.weight are not one tensor"):
        load(tmp_path / "model", untied)


def test_the_calibration_batch_comes_back_if_asked(tmp_path):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, x, extra, gain=1.0):
            return gain * self.inner(x["a"] + extra[0])

    torch.manual_seed(0)
    x, extra = {"a": torch.randn(8, 4)}, (torch.randn(8, 4), None)
    bnn = mcrepar.bayesian(Keywords()).calibrate(x, extra, gain=0.5).eval()
    save(bnn, tmp_path / "model", keep_calibration_data=True)
    same = load(tmp_path / "model", Keywords()).eval()
    with bnn.frozen(bnn.draw(seeded(0))), same.frozen(same.draw(seeded(0))):
        assert torch.equal(bnn(x, extra), same(x, extra))


def test_selected_frozen_and_channels_last(tmp_path):
    net = small()
    net[0].bias.requires_grad_(False)
    bnn = shaken(mcrepar.bayesian(net, select="*weight"))
    bnn.latents["3/weight"].loc.requires_grad_(False)
    same = there_and_back(bnn, small(seed=9), tmp_path)
    assert [p.requires_grad for p in same.parameters()] == [p.requires_grad for p in bnn.parameters()]
    conv = mcrepar.bayesian(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))
    there_and_back(conv, nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), tmp_path / "conv")


def test_a_layer_by_hand_is_saved_as_its_torch_layer(tmp_path):
    layer = mcrepar.nn.Linear(3, 2)
    save(layer, tmp_path / "layer")
    assert torch.equal(load(tmp_path / "layer", nn.Linear(3, 2)).kl(), layer.kl())


def test_what_is_on_the_disk(tmp_path):
    save(mcrepar.bayesian(small()), tmp_path / "new" / "deep" / "model")
    files = sorted(p.name for p in (tmp_path / "new" / "deep" / "model").iterdir())
    assert len(files) == 2
    assert files[0] == "config.json"
    assert [p.name for p in (tmp_path / "new" / "deep").iterdir()] == ["model"]
    config = json.loads((tmp_path / "new" / "deep" / "model" / "config.json").read_text())
    assert (config["format"], config["version"]) == ("mcrepar", 1)
    tensors = load_file(tmp_path / "new" / "deep" / "model" / files[1])
    assert len(tensors) == len({t.data_ptr() for t in tensors.values()})


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_layers_with_the_older_norms_come_back(wrap, tmp_path):
    def net(seed):
        torch.manual_seed(seed)
        return nn.Sequential(wrap(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))

    bnn = mcrepar.bayesian(net(0))
    bnn(torch.randn(5, 4)).sum().backward()
    same = there_and_back(shaken(bnn), net(1), tmp_path).eval()
    x, draw = torch.randn(5, 4), bnn.eval().draw()
    with bnn.frozen(draw), same.frozen(draw):
        assert torch.equal(bnn(x), same(x))


class Buffered(nn.Module):
    def __init__(self, buffer):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("kept", buffer)


@pytest.mark.parametrize(
    "buffer",
    [torch.tensor([2.0]).expand(3), torch.tensor([[1.0], [2.0]]).expand(2, 3), torch.tensor([1 + 2j]).conj()],
    ids=["one", "rows", "conjugate"],
)
def test_buffers_in_any_memory_come_back(buffer, tmp_path):
    save(mcrepar.bayesian(Buffered(buffer)), tmp_path / "model")
    assert torch.equal(
        load(tmp_path / "model", Buffered(torch.zeros_like(buffer[:1]).expand_as(buffer))).net.kept, buffer
    )


# --- what cannot be saved ---------------------------------------------------------------------------------------------


class Own(td.Normal):
    pass


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (Own(torch.zeros(()), 1.0), "a Own"),
        (td.TransformedDistribution(td.Normal(0.0, 1.0), td.AffineTransform(0.0, 2.0)), "TransformedDistribution"),
        (td.Gumbel(0.0, torch.tensor(1.0, requires_grad=True)), "learned"),
        (mcrepar.prior("normal", scale=torch.tensor(0.0, requires_grad=True).exp()), "computed from"),
    ],
)
def test_priors_that_cannot_be_written_are_refused(prior, words, tmp_path):
    bnn = mcrepar.bayesian(small(), "normal", prior)
    with pytest.raises(ParameterError, match=words):
        save(bnn, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (torch.eye(3).to_sparse(), "net.kept is torch.float32, torch.sparse_coo, which cannot be written"),
        (torch.zeros(3, dtype=torch.complex128), "net.kept is torch.complex128"),
        (torch.zeros(3, device="meta"), "net.kept is a tensor without data"),
    ],
)
def test_buffers_that_cannot_be_written_are_refused(buffer, words, tmp_path):
    with pytest.raises(ParameterError, match=words):
        save(mcrepar.bayesian(Buffered(buffer)), tmp_path / "model")
    assert not list(tmp_path.iterdir())


class Ignores(nn.Module):
    """Takes an argument that is no data."""

    def __init__(self):
        super().__init__()
        self.inner = small()

    def forward(self, x, other):
        return self.inner(x)


def test_other_refusals_of_save(tmp_path):
    with pytest.raises(ParameterError, match="no BayesianModule"):
        save(nn.Linear(2, 2), tmp_path / "model")
    bnn = mcrepar.bayesian(small())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ParameterError, match="it is a file"):
        save(bnn, tmp_path / "file")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ParameterError, match=r"another config.json"):
        save(bnn, tmp_path / "hub")
    assert (tmp_path / "hub" / "config.json").read_text() == '{"model_type": "bert"}'
    odd = mcrepar.bayesian(Ignores()).calibrate(torch.randn(4, 4), object())
    with pytest.raises(ParameterError, match="a object"):
        save(odd, tmp_path / "model", keep_calibration_data=True)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda: small(dtype=torch.float64), r"was saved as float32 of \(5,\).*float64 of \(5,\)"),
        (lambda: nn.Sequential(nn.Linear(3, 5), *small()[1:]), r"'0.weight'.*\(5, 3\)"),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Identity(), nn.ReLU(), nn.Linear(5, 2)), r"has no '1.weight'"),
        (lambda: nn.Sequential(*small(), nn.Linear(2, 2)), r"what was saved has no '4.weight'"),
        (lambda: mcrepar.bayesian(small()), "Bayesian already"),
        (lambda: "a network", "is no network"),
    ],
)  # fmt: skip
def test_a_network_of_another_architecture_is_refused_by_name(net, words, tmp_path):
    save(mcrepar.bayesian(small()), tmp_path / "model")
    with pytest.raises(ParameterError, match=words):
        load(tmp_path / "model", net())


@pytest.mark.parametrize("folder", [None, 3, b"folder"])
def test_a_folder_is_a_path(folder):
    bnn = mcrepar.bayesian(nn.Linear(2, 1))
    for call in (lambda: save(bnn, folder), lambda: load(folder, nn.Linear(2, 1))):
        with pytest.raises(ParameterError, match=r"it is not the name of a folder\. Use a path"):
            call()


def test_numbers_survive_exactly(tmp_path):
    values = [0.1, 1 / 3, math.pi, 5e-324, 1e308]
    for k, value in enumerate(values):
        bnn = mcrepar.bayesian(nn.Linear(2, 1), "normal", mcrepar.prior("normal", loc=value))
        save(bnn, tmp_path / str(k))
        assert load(tmp_path / str(k), nn.Linear(2, 1)).latents["weight"].options.prior.values["loc"] == value
