"""A model with its likelihood and its preparation: both survive a folder, and predictions use both."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import ParameterError, Preparation, TrainedModel
from mcrepar.likelihoods import LIKELIHOODS, Categorical, Likelihood, Normal
from mcrepar.nn import model_folder as folders

PREPARE = Preparation((1.0, -2.0), (0.5, 4.0))


def trained(likelihood, outputs=1):
    torch.manual_seed(0)
    return TrainedModel(mcrepar.bayesian(nn.Linear(2, outputs)), likelihood, PREPARE)


def seeded(model, x):
    return model.predict(x, draws=5, generator=torch.Generator().manual_seed(3))


def test_a_learned_scale_survives_save_and_load(tmp_path):
    likelihood = Normal("learned")
    nn.init.constant_(likelihood.log_scale, 1.25)
    model, x = trained(likelihood), torch.randn(7, 2)
    model.save(tmp_path / "model")
    again = TrainedModel.load(tmp_path / "model", nn.Linear(2, 1))
    assert isinstance(again.likelihood, Normal)
    assert again.likelihood.log_scale.item() == 1.25
    assert again.prepare == PREPARE
    a, b = seeded(model, x), seeded(again, x)
    assert torch.equal(a.mean, b.mean)
    assert torch.allclose(b.aleatoric, torch.tensor(2.5).exp().expand(7, 1))


def test_a_learned_scale_keeps_its_precision(tmp_path):
    likelihood = Normal("learned").double()
    nn.init.constant_(likelihood.log_scale, 1 / 3)
    TrainedModel(mcrepar.bayesian(nn.Linear(2, 1).double()), likelihood).save(tmp_path / "model")
    again = TrainedModel.load(tmp_path / "model", nn.Linear(2, 1).double()).likelihood
    assert again.log_scale.dtype == torch.float64
    assert again.log_scale.item() == 1 / 3
    assert again.log_scale.requires_grad


def test_training_data_are_kept_by_a_clear_yes_alone(tmp_path):
    with pytest.raises(ParameterError, match="keep_calibration_data='no'"):
        trained(Normal(0.5)).save(tmp_path / "model", keep_calibration_data="no")
    assert not (tmp_path / "model").exists()


def test_a_network_of_ones_own_training_is_saved_with_its_likelihood(tmp_path):
    bnn, likelihood = mcrepar.bayesian(nn.Linear(2, 1)), Normal("learned")
    nn.init.constant_(likelihood.log_scale, -0.5)
    mcrepar.save(bnn, tmp_path / "model", likelihood=likelihood)
    again = TrainedModel.load(tmp_path / "model", nn.Linear(2, 1))
    assert again.likelihood.log_scale.item() == -0.5
    assert again.prepare == Preparation()
    assert isinstance(mcrepar.load(tmp_path / "model", nn.Linear(2, 1)), mcrepar.BayesianModule)


def test_a_folder_without_a_likelihood_gives_a_model_without_one(tmp_path):
    mcrepar.save(mcrepar.bayesian(nn.Linear(2, 1)), tmp_path / "model")
    model = TrainedModel.load(tmp_path / "model", nn.Linear(2, 1))
    assert model.likelihood is None
    assert float(seeded(model, torch.zeros(1, 2)).aleatoric) == 0


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_survives(name, tmp_path):
    likelihood = LIKELIHOODS[name]()
    trained(likelihood).save(tmp_path / "model")
    again = TrainedModel.load(tmp_path / "model", nn.Linear(2, 1)).likelihood
    assert repr(again) == repr(likelihood)


@pytest.mark.parametrize("scale", [0.5, "learned", "heteroscedastic"])
def test_the_options_of_a_likelihood_survive(scale, tmp_path):
    trained(Normal(scale), outputs=2).save(tmp_path / "model")
    again = TrainedModel.load(tmp_path / "model", nn.Linear(2, 2)).likelihood
    assert repr(again) == repr(Normal(scale))


def test_a_prediction_prepares_its_input_in_batches():
    model, x = trained(Normal(0.5)), torch.randn(7, 2)
    p = model.predict(x.numpy(), draws=5, batch_size=3, generator=torch.Generator().manual_seed(3))
    plain = mcrepar.predict(
        model.bnn, PREPARE(x), draws=5, likelihood=Normal(0.5), generator=torch.Generator().manual_seed(3)
    )
    assert torch.allclose(p.mean, plain.mean, atol=1e-6)
    assert [len(batch) for batch in model.batches(x, 3)] == [3, 3, 1]
    with pytest.raises(ParameterError, match="batch_size=0"):
        model.predict(x, batch_size=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prepare", [PREPARE, Preparation()])
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_input_comes_in_the_precision_of_the_network(dtype, prepare, given):
    model = TrainedModel(mcrepar.bayesian(nn.Linear(2, 1).to(dtype)), Normal(0.5), prepare)
    x = torch.randn(3, 2, dtype=given)
    for raw in (x, x.numpy()):
        assert [batch.dtype for batch in model.batches(raw)] == [dtype]
        assert model.predict(raw, draws=2).mean.shape == (3, 1)


def test_input_of_whole_numbers_stays_as_it_is():
    model = TrainedModel(mcrepar.bayesian(nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 1))))
    assert model.predict(torch.randint(5, (4, 3)).numpy(), draws=2).mean.shape == (4, 1)


@pytest.mark.parametrize(
    ("shape", "layout"), [((2, 3, 4, 4), torch.channels_last), ((2, 3, 4, 4, 4), torch.channels_last_3d)]
)
def test_images_and_volumes_get_their_memory_layout(shape, layout):
    prepare = Preparation((0.0,) * 3, (1.0,) * 3, channels_last=True)
    assert prepare(torch.randn(shape)).is_contiguous(memory_format=layout)
    assert prepare(torch.randn(2, 3)).shape == (2, 3)


def test_a_likelihood_of_ones_own_is_refused(tmp_path):
    class Mine(Likelihood):
        def log_prob(self, output, y):
            return -(output - y).abs().sum(1)

        def _check(self, output, y):
            return None

    with pytest.raises(ParameterError, match="a Mine likelihood cannot be written"):
        trained(Mine()).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("likelihood", {"name": "nosuch", "options": {}}, "does not hold what save writes"),
        ("likelihood", {"name": "categorical", "options": {}}, "does not hold what save writes"),  # it has no log_scale
        ("prepare", {"mean": [1.0]}, "preparation of the data is of another form|does not hold"),
        ("prepare", {"mean": [1.0], "std": [], "channels_last": True}, "1 means and 0 standard deviations"),
    ],
)
def test_a_description_of_another_form_is_refused(key, value, words, tmp_path):
    trained(Normal("learned")).save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    del config["seal"]
    config[key] = value
    path.write_text(json.dumps({**config, "seal": folders._seal(config)}))
    with pytest.raises(ParameterError, match=words):
        TrainedModel.load(tmp_path / "model", nn.Linear(2, 1))


def test_both_move_to_a_device():
    model = trained(Normal("learned")).to("meta")
    assert {p.device.type for p in [*model.bnn.parameters(), *model.likelihood.parameters()]} == {"meta"}
    assert TrainedModel(mcrepar.bayesian(nn.Linear(1, 1))).to("cpu").likelihood is None
    assert Categorical().options == {}


@pytest.mark.parametrize(
    ("mean", "std", "why"),
    [((0.0,) * 10, (1.0,), "10 means and 1 standard deviations"), ((0.0,), (0.0,), "is not positive")],
)
def test_a_preparation_that_cannot_be_is_refused_when_it_is_made(mean, std, why):
    with pytest.raises(ParameterError, match=why):
        Preparation(mean, std)


def test_tensors_and_names_become_what_they_mean(tmp_path):
    prepare = Preparation(torch.tensor([1.0, 2.0]), np.array([0.5, 0.5], np.float32))
    assert prepare == Preparation((1.0, 2.0), (0.5, 0.5))
    model = TrainedModel(mcrepar.bayesian(nn.Linear(2, 1)), "normal", prepare)
    model.to("cpu").save(tmp_path / "model")
    again = TrainedModel.load(tmp_path / "model", nn.Linear(2, 1))
    assert again.prepare == prepare
    assert isinstance(again.likelihood, mcrepar.likelihoods.Normal)


def test_real_numbers_of_another_unit_are_warned_of():
    model = TrainedModel(
        mcrepar.bayesian(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), None, Preparation((0.3,), (0.4,))
    )
    images = torch.randint(0, 256, (5, 1, 2, 2), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(images, draws=2)
        model.predict(images / 255, draws=2)
    with pytest.warns(UserWarning, match="divided by 255"):
        model.predict(images.float(), draws=2)
