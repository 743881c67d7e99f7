import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import likelihoods
from mcrepar.errors import McreparError, MethodError, ParameterError
from mcrepar.likelihoods import Categorical, Likelihood, Normal
from mcrepar.nn.rank1 import factor_prior
from mcrepar.workbench.training import checkpoint, train
from mcrepar.workbench.training.config import TrainConfig, read_config
from mcrepar.workbench.training.setup import (
    Units,
    build_likelihood,
    build_network,
    make_bayesian,
    open_run,
)
from tests.workbench.training.tiny import config, facts_of, log_of, write_images, write_numbers


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    write_images(folder)
    return train(config(folder))


def test_a_network_for_other_data_is_refused(tmp_path):
    write_images(tmp_path)
    for options in ({"model": "unet3d_encoder", "model_options": {}}, {"model": "nosuch"}, {"model_options": {"a": 1}}):
        with pytest.raises(ParameterError):
            build_network(config(tmp_path, **options), facts_of(config(tmp_path)))


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression")
    write_numbers(folder)
    return train(config(folder, model="fcnet", model_options={"hidden": [8]}, augment="none", epochs=1))


def test_a_learned_scale_is_in_the_model(regression):
    """The scale that the run ended with, not the initial one, is in the folder of the model, and is predicted with."""
    run = open_run(regression)
    found = checkpoint.newest(regression / "checkpoints").state["likelihood"]["log_scale"]
    assert torch.equal(run.likelihood.log_scale.detach(), found)
    assert float(found) != pytest.approx(np.log(run.facts.target[1]), abs=1e-6)
    model = mcrepar.TrainedModel.load(regression / "model", build_network(run.config, run.facts))
    assert torch.equal(model.likelihood.log_scale, run.likelihood.log_scale)
    assert model.prepare == run.prepare
    x = run.dataset.test.x
    a, b = (m.predict(x, draws=4, generator=torch.Generator().manual_seed(0)) for m in (model, run.model))
    assert torch.equal(a.mean, b.mean)
    assert torch.allclose(a.aleatoric, (2 * found).exp().expand_as(a.aleatoric))


def of_before(folder, text, place):
    """The same run as it was when the likelihood had a file of its own."""
    shutil.copytree(folder, place)
    run = open_run(place)
    mcrepar.save(run.bnn, place / "model")
    (place / "model" / "likelihood.json").write_text(text)
    return place


def test_a_run_of_before_has_its_likelihood_in_another_file(regression, tmp_path):
    run = open_run(of_before(regression, '{"log_scale": 1.5}', tmp_path / "run"))
    assert run.likelihood.log_scale.item() == 1.5
    assert run.prepare == run.facts.preparation(run.config)


@pytest.mark.parametrize("text", ["{}", '{"log_scale": [1, 2]}', "[]", "no"])
def test_a_damaged_likelihood_is_named(text, regression, tmp_path):
    with pytest.raises(ParameterError, match=r"likelihood\.json: it is missing or damaged"):
        open_run(of_before(regression, text, tmp_path / "run"))


def test_regression_is_in_the_units_of_y(tmp_path):
    write_numbers(tmp_path)
    c = config(tmp_path, model="fcnet", model_options={"hidden": [8]}, noise="heteroscedastic", augment="none")
    facts = facts_of(c)
    mean, std = facts.target
    assert mean == pytest.approx(5000, abs=100)
    net = build_network(c, facts)
    assert isinstance(net, Units)
    nn.init.zeros_(net.net.layers[-1].weight)
    nn.init.zeros_(net.net.layers[-1].bias)
    out = net(torch.zeros(1, 3))
    assert out.tolist()[0] == pytest.approx([mean, np.log(std)], rel=1e-5)
    learned = build_likelihood(config(tmp_path), facts)
    assert isinstance(learned, Normal)
    assert learned.log_scale.item() == pytest.approx(np.log(std))
    assert isinstance(build_likelihood(c, facts), Normal)


def test_classes_have_a_categorical_likelihood(tmp_path):
    write_images(tmp_path)
    assert isinstance(build_likelihood(config(tmp_path), facts_of(config(tmp_path))), Categorical)


def test_open_run_gives_the_model_that_was_saved(finished):
    run = open_run(finished)
    assert run.note == ""
    assert not run.bnn.training
    assert run.facts.classes == ("0", "1")
    assert run.bnn.calibration.kept is None  # no data are stored, but statistics
    assert run.bnn.calibration.pooled is not None
    again = mcrepar.load(finished / "model", build_network(run.config, run.facts))
    assert all(torch.equal(t, run.bnn.state_dict()[name]) for name, t in again.state_dict().items())
    assert len(run.dataset.train) == 36
    assert len(run.dataset.validation) == 12
    x = run.prepare(run.dataset.test.x)
    assert run.calibrate() == ""
    p = mcrepar.predict(run.bnn, x, draws=3, likelihood=run.likelihood)
    assert p.probs.shape == (12, 2)
    torch.manual_seed(0)
    p = mcrepar.predict(run.bnn, x, draws=3, likelihood=run.likelihood)
    torch.manual_seed(0)
    assert torch.equal(run.model.predict(run.dataset.test.x, draws=3).probs, p.probs)


def test_open_run_needs_no_data_for_the_model(finished, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.yaml", "run.json"):
        (moved / name).write_text((finished / name).read_text().replace("data.npz", "gone.npz"))
    (moved / "model").symlink_to(finished / "model")
    run = open_run(moved)
    assert run.bnn.kl() > 0
    with pytest.raises(ParameterError, match="gone"):
        _ = run.dataset


@pytest.mark.parametrize("kept", [False, True])
def test_an_unfinished_run_opens_with_a_note(kept, finished, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "config.yaml").write_text((finished / "config.yaml").read_text())
    (moved / "run.json").write_text((finished / "run.json").read_text().replace('"finished"', '"stopped"'))
    if kept:
        (moved / "checkpoints").symlink_to(finished / "checkpoints")
        run = open_run(moved)
        assert "stopped" in run.note
        assert "step 9" in run.note
        done = open_run(finished).bnn.state_dict()
        tensors = checkpoint.tensors_of(run.bnn)  # pooled norm statistics are of the saved model only
        assert all(torch.equal(t, done[name]) for name, t in tensors.items())
    else:
        with pytest.raises(ParameterError, match="no model yet"):
            open_run(moved)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="holds no run"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ParameterError, match="holds no run"):
        open_run(tmp_path)


def test_a_model_of_another_network_is_refused(finished, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    other = replace(read_config(finished / "config.yaml"), model_options={"blocks": 2})
    (moved / "config.yaml").write_text(other.to_yaml())
    (moved / "run.json").write_text((finished / "run.json").read_text())
    (moved / "model").symlink_to(finished / "model")
    with pytest.raises(McreparError, match="what was saved has no"):
        open_run(moved)


class Poisson(Likelihood):
    """Counts, whose log rate is the output: what a new likelihood costs."""

    def log_prob(self, output, y):
        return -nn.functional.poisson_nll_loss(output, y, full=True, reduction="none").reshape(len(y), -1).sum(1)

    def mean(self, output):
        return output.exp()

    def aleatoric(self, output):
        return output.exp()

    def _check(self, output, y):
        self._check_shape(tuple(output.shape), y, output)
        if bool((y < 0).any()):
            self._refuse(f"y is {float(y.min()):g} somewhere", "counts from 0 on")


@pytest.mark.filterwarnings("ignore:.*all are whole numbers")
def test_a_new_row_of_likelihoods_is_trained_saved_and_predicted_with(tmp_path, monkeypatch):
    monkeypatch.setattr(likelihoods, "LIKELIHOODS", {**likelihoods.LIKELIHOODS, "poisson": Poisson})
    monkeypatch.setattr("mcrepar.nn.saving.LIKELIHOODS", likelihoods.LIKELIHOODS)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    rate = np.exp(1 + 0.5 * x[:, 0])
    y = rng.poisson(rate).astype(np.float32)
    np.savez(tmp_path / "data.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    given = {"model": "fcnet", "model_options": {"hidden": [32]}, "augment": "none", "likelihood": "poisson"}
    run = open_run(train(config(tmp_path, **given, epochs=30, batch_size=30, lr=0.01, scale_lr=1.0)))
    assert isinstance(run.likelihood, Poisson)
    p = run.model.predict(x[300:], draws=10, generator=torch.Generator().manual_seed(0))
    assert np.corrcoef(p.mean[:, 0], rate[300:])[0, 1] > 0.9
    with pytest.raises(ParameterError, match=r"--likelihood possion: there is no such likelihood\. Use auto, categ"):
        train(config(tmp_path, "b", **{**given, "likelihood": "possion"}))


@pytest.mark.parametrize("noise", ["learned", 40.0])
def test_draws_of_the_last_layer_are_in_the_units_of_y(noise, tmp_path):
    """Their exact limit is the mean over draws of all that is random, here the last layer alone: |z| < 5."""
    write_numbers(tmp_path)
    c = config(tmp_path, model="fcnet", model_options={"hidden": [8]}, noise=noise, augment="none")
    facts = facts_of(c)
    torch.manual_seed(0)
    net, likelihood = build_network(c, facts), build_likelihood(c, facts)
    bnn = mcrepar.bayesian(net, "normal", forward="weights", select="net.layers.2.*", initial_std=0.5)
    x, y = torch.randn(4, 3), torch.full((4, 1), 5000.0)
    with torch.no_grad():
        exact = mcrepar.elbo(bnn, likelihood, x, y, data_size=4, last_layer_draws="exact").nll
        draws = torch.stack([mcrepar.elbo(bnn, likelihood, x, y, data_size=4).nll for _ in range(4000)])
    assert abs(exact - draws.mean()) < 5 * draws.std() / len(draws) ** 0.5


@pytest.mark.parametrize("draws", [100, "exact"])
def test_a_regression_is_trained_with_draws_of_its_last_layer(draws, tmp_path):
    write_numbers(tmp_path)
    given = {"posterior": "normal", "prior": "auto", "prior_options": {}, "kl_schedule": "graves", "beta": 1.0}
    given |= {"model": "fcnet", "model_options": {"hidden": [16]}, "augment": "none", "epochs": 40}
    rows = log_of(train(config(tmp_path, last_layer_draws=draws, **given)))
    assert float(rows[-1]["rmse"]) < 200  # of 360


def test_heteroscedastic_noise_has_no_draws_of_the_last_layer(tmp_path):
    write_numbers(tmp_path)
    given = {"model": "fcnet", "model_options": {"hidden": [8]}, "posterior": "normal", "augment": "none"}
    with pytest.raises(McreparError, match=r"log p is neither linear .*Use draws=M"):
        train(config(tmp_path, noise="heteroscedastic", last_layer_draws=10, **given))


@pytest.mark.parametrize("options", [{}, {"scale": 0.1}])
def test_a_prior_that_factors_cannot_have_is_refused_in_the_words_of_the_command_line(options):
    c = TrainConfig(structure="rank1", prior="hierarchical", prior_options=options)
    with pytest.raises(
        MethodError, match=r"^--prior hierarchical with --structure rank1: .*Use --prior auto, or"
    ) as caught:
        make_bayesian(nn.Linear(3, 2), c)
    assert "mcrepar.prior" not in str(caught.value)
    for name in str(caught.value).rpartition(": ")[2].rstrip(".").split(", "):
        assert factor_prior(name).name == name


def test_the_options_of_a_prior_over_factors_are_taken():
    bnn = make_bayesian(nn.Linear(3, 2), TrainConfig(structure="rank1", prior="laplace", prior_options={"scale": 0.2}))
    values = bnn.latents["weight"].options.prior.values
    assert (float(values["loc"]), float(values["scale"])) == (1.0, pytest.approx(0.2))
