"""An evaluation against the same draws by hand, and what it says of data that do not fit."""

import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mcrepar
from mcrepar import ParameterError, metrics
from mcrepar.data.dataset import Dataset, Split
from mcrepar.likelihoods import Normal
from mcrepar.nn.calibration import complete
from mcrepar.nn.swap import run as run_on
from mcrepar.workbench.cli import main
from mcrepar.workbench.evaluation import evaluate, words
from mcrepar.workbench.evaluation import results as evaluation
from mcrepar.workbench.evaluation.results import evaluate_run, replaced_results
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import read_config
from mcrepar.workbench.training.setup import open_run
from mcrepar.workbench.training.twin import Twin
from tests.conftest import seeded
from tests.workbench.training.example_runs import CLASSES, a_dataset, a_run, npz, options, results
from tests.workbench.training.tiny import config, write_images

ARRAYS = {"probs", "votes", "label", "confidence", "entropy", "expected_entropy", "mutual_information"}


@pytest.fixture
def no_report(monkeypatch):
    """Most tests look at the numbers only; pictures take seconds."""
    monkeypatch.setattr(evaluation, "write_report", lambda folder: Path(folder) / "report.html")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run with one foreign set, evaluated once: the run, metrics.json and predictions.npz."""
    folder = tmp_path_factory.mktemp("run")
    noise = np.random.default_rng(0).integers(0, 256, (15, 6, 6, 3)).astype(np.uint8)
    run = a_run(folder / "a")
    path = evaluate_run(run, options(run.folder, ood=(npz(folder, x=noise) + ",as=pure noise",)))
    assert path == run.folder / "metrics.json"
    return run, *results(run.folder)


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_answers_are_those_of_the_same_draws(evaluated):
    run, _, arrays = evaluated
    x = run.prepare(run.dataset.test.x)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        probs = (
            torch.stack([run_on(run.bnn, run.bnn.draw(generator), x).softmax(1) for _ in range(12)]).double().numpy()
        )
    np.testing.assert_allclose(arrays["probs"], probs.mean(0), rtol=1e-5, atol=1e-7)
    votes = np.stack([(probs.argmax(2) == c).sum(0) for c in range(3)], 1)
    np.testing.assert_array_equal(arrays["votes"], votes)
    np.testing.assert_allclose(arrays["confidence"], votes.max(1) / 12, rtol=1e-15)
    entropy = -(probs.mean(0) * np.log(probs.mean(0))).sum(1)
    expected = -(probs * np.log(probs)).sum(2).mean(0)
    np.testing.assert_allclose(arrays["entropy"], entropy, rtol=1e-4)
    np.testing.assert_allclose(arrays["mutual_information"], entropy - expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(arrays["y"], run.dataset.test.y)
    assert tuple(arrays["classes"]) == CLASSES
    assert arrays["draws"] == 12


def test_the_scores_are_those_of_the_answers(evaluated):
    _, found, arrays = evaluated
    y, label = arrays["y"], arrays["label"]
    assert found["in"]["accuracy"] == pytest.approx((label == y).mean())
    assert found["in"]["nll"] == pytest.approx(metrics.nll(arrays["probs"], y))
    assert found["in"]["mutual_information"] == pytest.approx(arrays["mutual_information"].mean(), rel=1e-6)
    for row in found["confidence_sets"]:
        inside = arrays["votes"].max(1) >= np.ceil(12 * row["tau"] - 1e-9)
        assert row["count"] == inside.sum()
        assert row["share"] == pytest.approx(inside.mean())
        if row["count"]:
            assert row["accuracy"] == pytest.approx((label == y)[inside].mean())
        else:
            assert row["accuracy"] is None
    assert [row["tau"] for row in found["confidence_sets"]] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0]
    assert {row["tau"] for row in found["confidence_curve"]} == set(arrays["confidence"])
    assert found["commonest_class"] == pytest.approx(1 / 3)
    assert (found["task"], found["draws"], found["data"]["count"]) == ("classification", 12, 24)


def test_the_mean_weights_stand_beside_the_draws(evaluated):
    run, found, arrays = evaluated
    with torch.no_grad(), run.bnn.frozen("mean"):
        probs = run.bnn(run.prepare(run.dataset.test.x)).softmax(1).numpy()
    for name, value in metrics.classification(probs, arrays["y"]).items():
        assert found["mean_weights"][name] == pytest.approx(value, rel=1e-5, abs=1e-9)
    assert found["mean_weights"]["nll"] != found["in"]["nll"]


def test_foreign_data_are_told_apart_by_three_doubts(evaluated):
    _, found, arrays = evaluated
    about = found["ood"]["pure_noise"]
    assert (about["count"], about["score"], about["source"]) == (15, "entropy", "other.npz")
    foreign = {key.removeprefix("ood_pure_noise_"): value for key, value in arrays.items() if key.startswith("ood_")}
    assert set(foreign) >= ARRAYS
    assert about["auroc"] == metrics.auroc(arrays["entropy"], foreign["entropy"])
    by = about["by_score"]
    assert by["mutual_information"]["fpr95"] == metrics.fpr_at_recall(
        arrays["mutual_information"], foreign["mutual_information"]
    )
    assert by["disagreement"]["aupr"] == metrics.aupr(1 - arrays["confidence"], 1 - foreign["confidence"])
    assert "in" not in about


def test_shifted_data_of_the_same_classes_are_scored_too(tmp_path, no_report):
    run = a_run(tmp_path / "a")
    shifted = 255 - run.dataset.test.x.permute(0, 2, 3, 1).numpy()
    words = npz(tmp_path, x=shifted, y=run.dataset.test.y.numpy())
    given = (f"{words},classes=[{','.join(CLASSES)}],as=shifted", f"{words},as=unnamed")
    evaluate_run(run, options(run.folder, ood=given))
    found, arrays = results(run.folder)
    scores = found["ood"]["shifted"]["in"]
    assert scores["accuracy"] == pytest.approx((arrays["ood_shifted_label"] == arrays["y"]).mean())
    assert scores["nll"] == pytest.approx(metrics.nll(arrays["ood_shifted_probs"], arrays["y"]))
    assert "in" not in found["ood"]["unnamed"]


def test_two_foreign_sets_need_two_names(tmp_path):
    run = a_run(tmp_path / "a")
    words = npz(tmp_path, x=run.dataset.test.x.permute(0, 2, 3, 1).numpy())
    with pytest.raises(ParameterError, match="two out-of-distribution sets are called 'arrays'"):
        evaluate_run(run, options(run.folder, ood=(words, words)))


def test_thumbnails_are_the_raw_images(evaluated):
    run, _, arrays = evaluated
    pictures, places, groups = (arrays[f"thumbnail{key}"] for key in ("s", "_indices", "_groups"))
    raw = run.dataset.test.x.permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(pictures, raw[places])
    order = np.argsort(arrays["entropy"], kind="stable")
    np.testing.assert_array_equal(places[groups == "certain"], order[:4])
    np.testing.assert_array_equal(places[groups == "uncertain"], order[::-1][:4])
    assert (arrays["label"] != arrays["y"])[places[groups == "mistakes"]].all()


def test_the_report_and_its_figures_are_there(evaluated):
    run, found, _ = evaluated
    assert (run.folder / "report.html").stat().st_size > 10_000
    figures = {path.stem for path in (run.folder / "figures").glob("*.png")}
    assert {"confidence_accuracy", "reliability", "risk_coverage", "entropy", "images_certain"} <= figures
    assert not list(run.folder.rglob("*.tmp"))
    assert found["command"][:3] == ["mcrepar", "evaluate", str(run.folder)]


def test_a_seed_gives_the_same_numbers_and_another_seed_others(tmp_path, no_report):
    run = a_run(tmp_path / "a")
    found = []
    for seed in (0, 0, 1):
        evaluate_run(run, options(run.folder, seed=seed))
        found.append(results(run.folder)[1]["probs"])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_the_batch_size_changes_nothing(tmp_path, no_report):
    run = a_run(tmp_path / "a")
    probs = []
    for size in (7, 1000):
        evaluate_run(run, options(run.folder, batch_size=size))
        probs.append(results(run.folder)[1]["probs"])
    np.testing.assert_allclose(*probs, rtol=1e-5, atol=1e-7)


def test_moments_instead_of_draws(tmp_path, no_report):
    """The scores are near those of many draws, nothing but outputs is sampled, and the factors are fitted first."""
    run = a_run(tmp_path / "a")
    evaluate_run(run, options(run.folder, draws=200))
    wanted, _ = results(run.folder)
    evaluate_run(run, options(run.folder, draws="moments"))
    found, arrays = results(run.folder)
    assert (found["method"], wanted["method"]) == ("moments", "draws")
    assert words.drawn(found) == "moments"
    assert found["draws"] == int(arrays["draws"]) == arrays["votes"].sum(1)[0]
    assert abs(found["in"]["nll"] - wanted["in"]["nll"]) < 0.05
    assert len(run.bnn.calibration.moment_factors) > 0
    assert "--draws moments" in " ".join(found["command"])


def test_other_parts_of_the_data(tmp_path, no_report):
    run = a_run(tmp_path / "a")
    evaluate_run(run, options(run.folder, split="train"))
    assert results(run.folder)[0]["data"]["count"] == 30
    with pytest.raises(ParameterError, match=r"mine has no such part\. Use train or test"):
        evaluate_run(run, options(run.folder, split="validation"))


# --- other kinds of data ----------------------------------------------------------------------------------------------


def test_regression(tmp_path):
    run = a_run(tmp_path / "a", a_dataset(classes=()))
    evaluate_run(run, options(run.folder, ood=(npz(tmp_path, x=np.zeros((5, 6, 6, 3), np.uint8)),)))
    found, arrays = results(run.folder)
    p = mcrepar.predict(run.bnn, run.prepare(run.dataset.test.x), 12, likelihood=run.likelihood, generator=seeded(0))
    y = arrays["y"]
    np.testing.assert_allclose(arrays["mean"], p.mean[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(arrays["std"], p.std[:, 0], rtol=1e-4)
    lower, upper = (bound[:, 0].numpy() for bound in p.interval(0.9))
    assert found["in"]["coverage_90"] == pytest.approx(((lower <= y) & (y <= upper)).mean(), abs=1.5 / 24)
    assert found["in"]["rmse"] == pytest.approx(np.sqrt(((arrays["mean"] - y) ** 2).mean()), rel=1e-5)
    density = torch.distributions.Normal(p.samples[:, :, 0], 0.5).log_prob(torch.tensor(y))
    oracle = (density.logsumexp(0) - np.log(12)).mean()
    assert found["in"]["log_likelihood"] == pytest.approx(float(oracle), rel=1e-4)
    assert len(found["interval_coverage"]) == 19
    assert found["mean_weights"]["width_90"] == pytest.approx(2 * 1.6449 * 0.5, rel=1e-3)  # noise alone
    assert (found["task"], found["ood"]["arrays"]["score"]) == ("regression", "std")
    assert (run.folder / "figures" / "predicted_against_true.png").exists()


def test_volumes_are_shown_by_their_middle_slice(tmp_path, no_report):
    run = a_run(tmp_path / "a", a_dataset((1, 5, 6, 7), simulated=True))
    evaluate_run(run, options(run.folder))
    found, arrays = results(run.folder)
    assert found["data"]["simulated"]
    assert arrays["thumbnails"].shape[1:] == (6, 5, 1)
    middle = run.dataset.test.x[int(arrays["thumbnail_indices"][0]), 0, :, :, 3].numpy()
    np.testing.assert_array_equal(arrays["thumbnails"][0, :, :, 0], middle.T[::-1])


def test_two_classes_have_an_auc(tmp_path, no_report):
    run = a_run(tmp_path / "a", a_dataset(classes=("no", "yes")))
    evaluate_run(run, options(run.folder))
    found, arrays = results(run.folder)
    assert found["in"]["auc"] == metrics.auc(arrays["probs"], arrays["y"])


# --- BatchNorm and unfinished runs ------------------------------------------------------------------------------------


def normed():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def test_what_became_of_the_posterior_is_in_the_report(tmp_path, no_report):
    run = a_run(tmp_path / "a")
    evaluate_run(run, options(run.folder))
    found = results(run.folder)[0]
    assert found["notes"] == []
    assert found["posterior"]["kl"] == pytest.approx(float(run.bnn.kl().detach()), rel=1e-5)
    (advice,) = found["posterior"]["advice"]
    assert advice in words.notes(found)
    assert "are where they began" in advice


def test_batch_norm_takes_training_data_which_a_model_does_not_hold(tmp_path, no_report):
    run = a_run(tmp_path / "a", net=normed())
    evaluate_run(run, options(run.folder))
    assert results(run.folder)[0]["notes"] == []
    assert len(run.bnn.calibration.kept[0][0]) == 30


def test_batch_norm_with_a_kept_batch_uses_it_for_every_draw(tmp_path, no_report):
    run = a_run(tmp_path / "a", net=normed())
    kept = run.prepare(run.dataset.train.x[:10])
    run.bnn.calibrate(kept)
    evaluate_run(run, options(run.folder, draws=3))
    found, arrays = results(run.folder)
    assert found["notes"] == [
        "the folder of the model holds 10 training examples, on which BatchNorm finds its statistics"
    ]
    x, generator, total = run.prepare(run.dataset.test.x), seeded(0), 0
    with torch.no_grad():
        for _ in range(3):
            total = total + run_on(run.bnn, complete(run.bnn, run.bnn.draw(generator)), x).softmax(1)
    np.testing.assert_allclose(arrays["probs"], total / 3, rtol=1e-4, atol=1e-6)
    assert torch.equal(run.bnn.calibration.kept[0][0], kept)


def test_an_unfinished_run_is_evaluated_with_its_note(tmp_path, no_report):
    run = a_run(tmp_path / "a", note="the run is stopped, this is its checkpoint of step 7")
    evaluate_run(run, options(run.folder))
    assert results(run.folder)[0]["notes"] == [run.note]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"draws": 0}, "--draws 0"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"images": -1}, "--images -1"),
        ({"device": "abacus"}, "no such kind of device"),
    ],
)
def test_options_out_of_range(tmp_path, given, why):
    with pytest.raises(ParameterError, match=why):
        evaluate(options(tmp_path, **given))


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ParameterError, match="it holds no run"):
        evaluate(options(tmp_path))


def test_many_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ParameterError, match=r"it runs in a single process\. Start it without torchrun"):
        evaluate(options(tmp_path))


def test_a_missing_extra_is_noticed_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None if name == "jinja2" else name)
    with pytest.raises(ParameterError, match=r"jinja2 is not installed. Use pip install 'mcrepar\[train,plot\]'"):
        evaluate(options(tmp_path))


def test_data_that_changed_since_the_training(tmp_path):
    run = a_run(tmp_path / "a")
    run.__dict__["dataset"] = a_dataset((3, 8, 8))
    with pytest.raises(ParameterError, match=r"3 x 8 x 8 with 3 classes now\. Use the data of the training: 3 x 6 x 6"):
        evaluate_run(run, options(run.folder))
    run.__dict__["dataset"] = a_dataset(classes=("cat", "dog"))
    with pytest.raises(ParameterError, match="2 classes now"):
        evaluate_run(run, options(run.folder))


def test_other_training_data_are_noticed(tmp_path):
    """They may hold what is called test data now."""
    write_images(tmp_path)
    folder = train(config(tmp_path, epochs=1))
    write_images(tmp_path, seed=1)
    assert "not those of the training" in open_run(folder).changed
    write_images(tmp_path, count=70)
    with pytest.raises(ParameterError, match="it was trained on 36 examples, and there are 42 now"):
        evaluate(options(folder))


def test_a_run_is_evaluated_from_another_folder_and_says_where_its_data_were(tmp_path, monkeypatch, no_report):
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = train(config(tmp_path, epochs=1, root="data.npz"))
    config_file = folder / "config.yaml"
    config_file.write_text(replace(read_config(config_file), posterior="normal").to_yaml())
    monkeypatch.chdir(folder)
    evaluate(options(folder))
    assert results(folder)[0]["model"]["posterior"] == "radial"  # what the network has
    (tmp_path / "data.npz").unlink()
    with pytest.raises(ParameterError, match=r"config\.yaml: .*data\.npz.*no such file"):
        evaluate(options(folder))


@pytest.mark.parametrize(
    ("given", "why"),
    [({"draws": "5"}, "--draws '5'"), ({"ood": "digits"}, "a list of texts"), ({"seed": 2**63}, "63 bits")],
)
def test_options_are_checked(given, why, tmp_path):
    with pytest.raises(ParameterError, match=why):
        evaluate(options(tmp_path, **given))


def test_data_without_labels_cannot_be_scored(tmp_path):
    run = a_run(tmp_path / "a")
    test = Split(run.dataset.test.x, torch.full((24,), -1))
    run.__dict__["dataset"] = Dataset("mine", run.dataset.train, None, test, CLASSES)
    with pytest.raises(ParameterError, match="it has no labels"):
        evaluate_run(run, options(run.folder))


def test_a_full_disk_leaves_the_last_results(tmp_path, no_report, monkeypatch):
    run = a_run(tmp_path / "a")
    evaluate_run(run, options(run.folder))
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mcrepar.user_files.os.fsync", full)
    with pytest.raises(ParameterError, match="No space left on device"):
        evaluate_run(run, options(run.folder, seed=5))
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


def test_what_killed_evaluations_left_is_removed_once_it_is_old(tmp_path, no_report):
    run = a_run(tmp_path / "a")
    names = [".predictions.npz.3.tmp", ".metrics.json.4.tmp", ".mine.tmp"]
    for name in names:
        (run.folder / name).write_text("x")
    os.utime(run.folder / names[0], (time.time() - 4000,) * 2)
    evaluate_run(run, options(run.folder))
    assert [(run.folder / name).exists() for name in names] == [False, True, True]


def test_numbers_that_do_not_exist_are_null(tmp_path):
    assert evaluation._finite({"a": [float("nan"), 1.0], "b": float("inf"), "c": "nan"}) == {
        "a": [None, 1.0], "b": None, "c": "nan",
    }  # fmt: skip


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_from_the_command_line(tmp_path, capsys):
    out = str(tmp_path / "run")
    train = ["train", "--data", "digits", "--model", "fcnet", "--epochs", "1", "--batch-size", "256", "--out", out]
    assert main([*train, "--progress", "none"]) == 0
    foreign = npz(tmp_path, x=np.zeros((6, 9, 9), np.float32))
    assert main(["evaluate", out, "--draws", "5", "--images", "2", "--ood", foreign]) == 2
    assert "--resize to bring them to that size" in capsys.readouterr().err
    assert main(["evaluate", out, "--draws", "5", "--images", "2", "--ood", foreign, "--resize"]) == 0
    text = capsys.readouterr().out
    assert "Right in" in text
    assert "mean weights" in text
    assert "confidence sets" in text
    assert "resized from 9 x 9 to 8 x 8" in text
    found, arrays = results(tmp_path / "run")
    assert found["model"]["name"] == "fcnet"
    assert found["notes"] == []
    assert arrays["thumbnails"].shape[1:] == (8, 8, 1)
    assert "--resize" in found["command"]
    assert "report.html" in text


def test_results_of_another_part_are_replaced_with_a_word(tmp_path):
    def made(split, draws=3):
        return {"data": {"split": split}, "draws": draws, "method": "draws"}

    path = tmp_path / "metrics.json"
    assert replaced_results(path, made("test")) == ""
    path.write_text(json.dumps(made("test")))
    assert replaced_results(path, made("test")) == ""
    assert "test part, 3 draws" in replaced_results(path, made("validation"))
    assert "test part, 3 draws" in replaced_results(path, made("test", 4))


class Overflowing(nn.Module):
    """A mean and a log scale, the latter too large for float32 as a variance."""

    def __init__(self, log_scale):
        super().__init__()
        self.linear, self.log_scale = nn.Linear(3 * 6 * 6, 1), log_scale

    def forward(self, x):
        mean = self.linear(x.flatten(1))
        return torch.cat([mean, torch.full_like(mean, self.log_scale)], 1)


def test_variances_that_overflow_are_a_training_that_diverged(tmp_path, no_report, monkeypatch):
    likelihood = Normal("heteroscedastic")
    run = a_run(tmp_path / "a", a_dataset(classes=()), Overflowing(100.0), likelihood)
    with pytest.raises(ParameterError, match=r"24 of its 24 predictions is not finite.*--clip 1 or a smaller --lr"):
        evaluate_run(run, options(run.folder))
    run = a_run(tmp_path / "b", a_dataset(classes=()), Overflowing(0.0), likelihood)
    monkeypatch.setattr(evaluation, "read_twin", lambda run: Twin(Overflowing(100.0), likelihood))
    evaluate_run(run, options(run.folder))
    found, _ = results(run.folder)
    assert "twin" not in found
    assert any("the twin is left out: the mean or variance of 24 of its 24" in note for note in found["notes"])
