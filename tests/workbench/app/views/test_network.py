"""What a posterior learned, against `diagnose` itself, and moments beside draws, against `predict`."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

import mcrepar
from mcrepar.workbench.app.views.network import network_view
from mcrepar.workbench.training import train
from mcrepar.workbench.training.setup import open_run
from tests.workbench.training.tiny import config, write_images, write_numbers


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    write_images(folder / "images")
    train(config(folder / "images", epochs=1, out=str(folder / "runs" / "classes")))
    write_numbers(folder / "numbers")
    numbers = {"model": "fcnet", "model_options": {}, "augment": "none", "epochs": 1}
    train(config(folder / "numbers", out=str(folder / "runs" / "numbers"), **numbers))
    mcrepar.save(mcrepar.bayesian(nn.Linear(4, 3)), folder / "runs" / "saved")
    return folder / "runs"


def answer(root, **texts: str):
    view = network_view(root)
    values, errors = view.read(view.texts(texts))
    assert errors == {}
    return view.compute(values)


def test_the_table_and_the_figures_say_what_diagnose_says(root):
    found, diagnosis = answer(root, network="classes", draws="4"), open_run(root / "classes").bnn.diagnose()
    rows = found.tables[0].rows
    assert [row[0] for row in rows] == [t.name for t in diagnosis.tensors]
    for row, t in zip(rows, diagnosis.tensors, strict=True):
        assert row[2:] == pytest.approx((t.weights, t.kl_per_weight, t.moved, t.spread, t.signal_to_noise, t.noisy,
                                         t.at_prior, t.effective))  # fmt: skip
    by_name = {figure.name: figure for figure in found.figures}
    assert list(by_name)[:4] == ["kl", "moved", "signal", "shares"]
    drawn = {text: y for trace in by_name["kl"].traces for text, y in zip(trace["text"], trace["y"], strict=True)}
    assert drawn == pytest.approx({t.name: t.kl_per_weight for t in diagnosis.tensors})
    assert by_name["shares"].traces[0]["y"] == pytest.approx([t.effective / t.weights for t in diagnosis.tensors])
    for sentence in str(diagnosis).splitlines()[:-1]:
        assert sentence in " ".join([found.headline, *found.notes])


def test_moments_stand_beside_draws(root):
    found = answer(root, network="zoo:small_conv", draws="4")
    names = [f.name for f in found.figures]
    assert names == ["kl", "signal", "shares", "probabilities", "confidence-sets", "entropy", "mutual-information"]
    x, y = (np.array(found.figures[3].traces[1][key]) for key in "xy")
    assert len(x) == 32 * 10
    for probs in (x, y):
        np.testing.assert_allclose(probs.reshape(32, 10).sum(1), 1, rtol=1e-5)
    assert 0 < np.abs(x - y).mean() < 0.05
    again = answer(root, network="zoo:small_conv", draws="5").figures[3]
    np.testing.assert_array_equal(again.traces[1]["y"], y)  # moments draw nothing of the weights
    drawn = {row[0]: row[1:3] for row in found.tables[1].rows}
    by_both = [dict(zip(trace["x"], trace["y"], strict=True)) for trace in found.figures[4].traces]
    for tau in (0.5, 0.6, 0.7, 0.8, 0.9, 1):
        assert drawn[tau] == pytest.approx([shares[tau] for shares in by_both])


def test_moments_can_be_fitted(root):
    plain, fitted = (answer(root, network="zoo:small_conv", draws="4", fit=fit) for fit in ("false", "true"))
    assert "not fitted" in plain.notes[-1]
    assert "fitted to draws on every other input" in fitted.notes[-1]
    assert "calibrate_moments" in fitted.code
    before, after = (found.figures[-1].traces[1] for found in (plain, fitted))
    assert before["y"] != after["y"]
    assert before["x"] == after["x"]  # the draws have nothing to do with it


def test_a_regression_compares_means_and_standard_deviations(root):
    found = answer(root, network="numbers", draws="4")
    assert [f.name for f in found.figures][-2:] == ["means", "spreads"]
    assert len(found.tables) == 1
    of_y, epistemic = found.figures[-1].traces[1:]
    assert (np.array(epistemic["x"]) < np.array(of_y["x"])).all()


def test_a_saved_network_is_diagnosed_and_no_more(root):
    found = answer(root, network="saved")
    assert [f.name for f in found.figures] == ["kl", "signal", "shares"]  # nothing has moved yet
    assert any("no code" in note for note in found.notes)
    assert "they have not been trained" in found.headline


def test_an_operation_without_a_rule_is_said(monkeypatch, root):
    from mcrepar.workbench.app.views import network as network_module

    def refused(*_args, **_options):
        raise mcrepar.errors.MethodError("draws='moments'", "there is no rule", "draws=100")

    monkeypatch.setattr(network_module, "predict", refused)
    found = answer(root, network="zoo:small_conv", draws="3", prior="laplace")
    assert found.notes[-1].startswith("Moments and draws are not compared: draws='moments'")
    assert found.figures[-1].name == "shares"


def test_a_collapsed_posterior_is_said_without_a_warning(tmp_path):
    bnn = mcrepar.bayesian(nn.Linear(20, 20), "normal", mcrepar.prior("normal", scale=1.0))
    with torch.no_grad():
        for parameter in bnn.latents.parameters():
            parameter.zero_()
    mcrepar.save(bnn, tmp_path / "lost")
    assert "has collapsed to the prior" in answer(tmp_path, network="lost").headline


def test_a_network_that_was_written_again_is_read_again(root, tmp_path):
    shutil.copytree(root / "saved", tmp_path / "saved")
    before = answer(tmp_path, network="saved").headline
    mcrepar.save(mcrepar.bayesian(nn.Linear(4, 1)), tmp_path / "saved")
    assert answer(tmp_path, network="saved").headline != before


def test_the_code_runs_as_a_reader_pastes_it(root):
    scope = {}
    exec(compile(answer(root, network="classes", draws="4", fit="true").code, "code", "exec"), scope)
    assert scope["moments"].probs.shape == scope["drawn"].probs.shape
    scope = {}
    exec(compile(answer(root, network="zoo:small_conv", draws="4").code, "code", "exec"), scope)
    assert scope["drawn"].draws == 4


def test_a_folder_without_networks_offers_the_zoo(tmp_path):
    for root in (None, tmp_path, tmp_path / "nothing"):
        view = network_view(root)
        assert view.defaults["network"] == "zoo:small_conv"
        assert view.stored()["network"][0] == "zoo:small_conv"
