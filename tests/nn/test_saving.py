"""save and load: bit by bit the same network, or a refusal that says what is wrong."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributions as td
from safetensors.torch import load_file, save_file
from tests.conftest import seeded
from torch import nn

import mcrepar
from mcrepar import POSTERIORS, McreparError, ParameterError
from mcrepar.nn import folder as folders
from mcrepar.nn.saving import load, save


def small(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)


def shaken(bnn):
    """The network after some training: nothing is at its start value."""
    torch.manual_seed(3)
    with torch.no_grad():
        for p in bnn.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for b in bnn.net.buffers():
            if b.is_floating_point():
                b.add_(torch.rand_like(b))
    return bnn


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


def assert_same(a, b):
    one, two = a.state_dict(), b.state_dict()
    assert list(one) == list(two)
    for name in one:
        assert one[name].dtype == two[name].dtype
        assert torch.equal(bits(one[name]), bits(two[name])), name
    assert (a.mode, a.names) == (b.mode, b.names)
    for (_, x), (_, y) in zip(a._latents(), b._latents(), strict=True):
        assert x.options.estimator == y.options.estimator
        assert x.options.posterior.fixed.keys() == y.options.posterior.fixed.keys()
        assert [getattr(x.options, k) for k in ("start_std", "pretrained", "signs")] == [
            getattr(y.options, k) for k in ("start_std", "pretrained", "signs")
        ]
    assert torch.equal(a.kl(generator=seeded(1)), b.kl(generator=seeded(1)))
    first, second = a.draw(seeded(2)), b.draw(seeded(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


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
    priors = [latent.options.prior for _, latent in same._latents()]
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


def test_the_calibration_batch_comes_back(tmp_path):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, x, extra, gain=1.0):
            return gain * self.inner(x["a"] + extra[0])

    torch.manual_seed(0)
    x, extra = {"a": torch.randn(8, 4)}, (torch.randn(8, 4), None)
    bnn = mcrepar.bayesian(Keywords()).calibrate(x, extra, gain=0.5).eval()
    same = there_and_back(bnn, Keywords(), tmp_path).eval()
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
    bnn.calibrate(torch.zeros(2, 4), object())
    with pytest.raises(ParameterError, match="a object"):
        save(bnn, tmp_path / "model")


# --- replacing --------------------------------------------------------------------------------------------------------


def test_a_second_save_replaces_the_first_and_nothing_else(tmp_path):
    first, second = mcrepar.bayesian(small(0)), shaken(mcrepar.bayesian(small(1)))
    save(first, tmp_path / "model")
    (tmp_path / "model" / "log.csv").write_text("mine")
    save(second, tmp_path / "model")
    assert_same(load(tmp_path / "model", small()), second)
    assert len(list((tmp_path / "model").iterdir())) == 3
    save(second, tmp_path / "model")
    assert_same(load(tmp_path / "model", small()), second)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("step", range(5))
def test_a_save_that_is_interrupted_leaves_the_network_of_before(step, tmp_path, monkeypatch):
    first, second = mcrepar.bayesian(small(0)), shaken(mcrepar.bayesian(small(1)))
    save(first, tmp_path / "old")
    left = step

    def interrupted(original):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            return original(*args, **kwargs)

        return call

    for where, name in ((folders, "_digest"), (os, "fsync"), (Path, "replace"), (Path, "rename")):
        monkeypatch.setattr(where, name, interrupted(getattr(where, name)))
    with pytest.raises(Crash):
        save(second, tmp_path / "old")
    left = step
    with pytest.raises(Crash):
        save(second, tmp_path / "new")
    monkeypatch.undo()
    assert_same(load(tmp_path / "old", small()), first)
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert not [p for p in (tmp_path / "old").iterdir() if p.suffix == ".tmp"]
    save(second, tmp_path / "old")
    assert len(list((tmp_path / "old").iterdir())) == 2


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    bnn = mcrepar.bayesian(small(), "normal", mcrepar.prior("normal", scale=torch.tensor(0.3))).calibrate(
        torch.ones(2, 4)
    )
    save(bnn, path)
    return path, bnn


@pytest.fixture
def broken(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "model")


def refused(path, words="use "):
    net = small()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(McreparError, match=words) as error:
        load(path, net)
    assert str(path) in error.value.asked
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    assert net(torch.zeros(2, 4)).shape == (2, 2)


def tensors_of(path):
    return next(p for p in path.iterdir() if p.name.startswith("tensors-"))


@pytest.mark.parametrize("name", ["config.json", "tensors"])
def test_flipped_bytes_are_noticed(name, broken):
    file = broken / name if name == "config.json" else tensors_of(broken)
    content = file.read_bytes()
    places = torch.randint(len(content), (25,), generator=seeded(0)).tolist()
    for place in [0, len(content) - 1, *places]:
        for bit in (0, 6):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            if chr(content[place]).isspace() and name == "config.json":
                continue
            file.write_bytes(changed)
            refused(broken)
    file.write_bytes(content)
    load(broken, small())


@pytest.mark.parametrize("name", ["config.json", "tensors"])
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.999])
def test_truncated_files_are_noticed(name, keep, broken):
    file = broken / name if name == "config.json" else tensors_of(broken)
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    refused(broken)


def test_missing_and_foreign_files(broken, tmp_path):
    refused(tmp_path / "nowhere", r"no config.json")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", r"no config.json")
    tensors_of(broken).unlink()
    refused(broken, "missing")
    for text in ("[]", "3", "null", '{"model_type": "bert"}', "{" * 10_000, '{"a":' * 100_000, "\x80", "NaN"):
        (broken / "config.json").write_bytes(text.encode("latin1"))
        refused(broken, r"config.json")


def resealed(path, change, tensors=None):
    """A config that somebody changed with care: its seals are right again."""
    config = json.loads((path / "config.json").read_text())
    if tensors is not None:
        tensors_of(path).unlink()
        save_file(tensors, path / "tensors-0123456789abcdef.safetensors")
        config["file"] = "tensors-0123456789abcdef.safetensors"
        config["sha256"] = folders._digest(path / config["file"])
    change(config)
    config.pop("seal", None)
    (path / "config.json").write_text(json.dumps({**config, "seal": folders._seal(config)}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(version=2), "version 2"),
        (lambda c: c.update(version=None), "version None"),
        (lambda c: c.update(extra=1), "extra"),
        (lambda c: c.pop("random"), "random"),
        (lambda c: c.update(file="../secret.safetensors"), "secret"),
        (lambda c: c.update(file=3), "names 3"),
        (lambda c: c.update(forward="sideways"), "sideways"),
        (lambda c: c.update(random=5), "TypeError"),
        (lambda c: c.update(random=[]), "what was saved has no"),
        (lambda c: c["random"][0].update(names=["nothing"]), "nothing"),
        (lambda c: c["random"][0].update(shape=[1]), "saved as"),
        (lambda c: c["random"][0].update(posterior=9), "IndexError"),
        (lambda c: c["random"][0]["estimator"].update(method="pickle"), "pickle"),
        (lambda c: c["random"][0]["estimator"].update(code="import os"), "code"),
        (lambda c: c["posteriors"][0].update(family="os.system"), "os.system"),
        (lambda c: c.update(priors=[{"values": {}, "distribution": {"class": "os", "arguments": {}}}]), "os"),
        (lambda c: c.update(priors=[{"values": {}, "distribution": {"class": "Gumbel", "arguments": {"x": 1}}}]), "x"),
        (lambda c: c["priors"][0]["values"].update(scale={"tensor": "7", "learned": False}), "7"),
        (lambda c: c["priors"][0]["values"].update(scale=-1.0), "positive"),
        (lambda c: c.update(calibration={"tuple": [1, 2, 3]}), "Error"),
        (lambda c: c.update(tied={"0.weight": "nothing"}), "nothing"),
    ],
)  # fmt: skip
def test_changed_configs_are_refused(change, words, broken):
    resealed(broken, change)
    refused(broken, words)


def test_changed_tensors_are_refused(broken):
    tensors = load_file(tensors_of(broken))
    name = "latents.0/weight.loc"
    for changed in (
        {key: t for key, t in tensors.items() if key != name},
        {**tensors, "latents.extra": torch.zeros(1)},
        {**tensors, name: tensors[name][:2].clone()},
        {**tensors, name: tensors[name].double()},
    ):
        resealed(broken, lambda config: None, changed)
        refused(broken, "loc|extra")


def test_no_pickle_is_read(broken):
    torch.save({"net": torch.zeros(1)}, tensors_of(broken))
    refused(broken, "damaged")
    resealed(broken, lambda c: c.update(sha256=folders._digest(tensors_of(broken))))
    refused(broken)


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
def test_a_network_of_another_architecture_is_refused_by_name(net, words, saved):
    with pytest.raises(ParameterError, match=words):
        load(saved[0], net())


@pytest.mark.parametrize("folder", [None, 3, b"folder"])
def test_a_folder_is_a_path(folder):
    bnn = mcrepar.bayesian(nn.Linear(2, 1))
    for call in (lambda: save(bnn, folder), lambda: load(folder, nn.Linear(2, 1))):
        with pytest.raises(ParameterError, match="it is not the name of a folder; use a path"):
            call()


def test_numbers_survive_exactly(tmp_path):
    values = [0.1, 1 / 3, math.pi, 5e-324, 1e308]
    for k, value in enumerate(values):
        bnn = mcrepar.bayesian(nn.Linear(2, 1), "normal", mcrepar.prior("normal", loc=value))
        save(bnn, tmp_path / str(k))
        assert load(tmp_path / str(k), nn.Linear(2, 1)).latents["weight"].options.prior.values["loc"] == value
