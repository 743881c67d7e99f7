"""The confidence sets of a run against numbers counted by hand, and the images behind them."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mcrepar.workbench.app.views.run import png_url, run_view
from mcrepar.workbench.training import train
from tests.workbench.app.example_run import DATA, KEPT, arrays, write_run
from tests.workbench.training.tiny import config, write_images


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path / "runs" / "one")
    return tmp_path / "runs"


def answer(root, **texts: str):
    view = run_view(root)
    values, errors = view.read(view.texts(texts))
    assert errors == {}
    return view.compute(values)


@pytest.mark.parametrize("tau", [0.0, 0.35, 0.5, 0.9, 1.0])
def test_confidence_sets_are_as_counted_by_hand(root, tau):
    found, a = answer(root, threshold=str(tau)), arrays()
    inside = a["votes"].max(1) >= round(tau * 20, 6)
    right = a["votes"].argmax(1) == a["y"]
    row = next(row for row in found.tables[0].rows if row[0] == tau)
    assert row[1] == inside.sum()
    assert row[2] == pytest.approx(inside.mean())
    assert row[3] == pytest.approx(right[inside].mean())
    assert f"{inside.sum():,} of {DATA:,}" in found.headline


def test_the_mark_stands_at_the_threshold(root):
    figure = answer(root, threshold="0.77").figures[0]
    assert figure.layout["shapes"][0]["x0"] == 0.77


def test_no_answer_is_sure_enough(root):
    a = arrays() | {"confidence": np.full(DATA, 0.5)}
    np.savez(root / "one" / "predictions.npz", **a)
    assert answer(root, threshold="0.9").headline.startswith("No answer")


@pytest.mark.parametrize("show", ["unsure", "wrong", "sure", "all"])
def test_images_are_those_behind_the_set(root, show):
    found, a = answer(root, threshold="0.6", show=show), arrays()
    inside, right = a["confidence"][:KEPT] >= 0.6, (a["label"] == a["y"])[:KEPT]
    expected = {"unsure": ~inside, "wrong": inside & ~right, "sure": inside, "all": np.ones(KEPT, bool)}[show]
    gallery = found.galleries[0]
    assert len(gallery.pictures) == min(24, expected.sum())
    numbers = [int(p.alt.split(":")[0].removeprefix("Image ")) for p in gallery.pictures]
    assert set(numbers) <= set(np.flatnonzero(expected))
    order = a["confidence"][numbers] * (-1 if show in ("wrong", "sure") else 1)
    assert (np.diff(order) >= 0).all()
    for number, picture in zip(numbers, gallery.pictures, strict=True):
        assert ("wrong" in picture.alt) == (not right[number])
        pixels = Image.open(io.BytesIO(base64.b64decode(picture.source.partition(",")[2])))
        np.testing.assert_array_equal(np.asarray(pixels), a["thumbnails"][number])


def test_an_image_that_was_kept_twice_is_shown_once(root):
    a = arrays()
    twice = np.concatenate([a["thumbnail_indices"][:3]] * 2)
    np.savez(root / "one" / "predictions.npz", **a | {"thumbnails": a["thumbnails"][twice], "thumbnail_indices": twice})
    assert len(answer(root, show="all").galleries[0].pictures) == 3


def test_grey_images_are_images():
    image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
    pixels = Image.open(io.BytesIO(base64.b64decode(png_url(image).partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(pixels), image[..., 0])


def test_out_of_distribution_examples_are_beside_the_others(root):
    figure = answer(root, threshold="0.5").figures[1]
    share = (arrays()["ood_noise_confidence"] >= 0.5).mean()
    assert figure.traces[1]["name"] == f"noise (OOD): {100 * share:.1f} % in the set"
    assert np.nansum(figure.traces[0]["y"]) == pytest.approx(1.0)


def test_simulated_data_are_announced(tmp_path):
    write_run(tmp_path / "runs" / "one", simulated=True)
    assert "simulated" in answer(tmp_path / "runs").banner


def test_a_long_training_is_thinned(root):
    rows = "".join(f"{epoch},{1 / epoch}\n" for epoch in range(1, 20_001))
    (root / "one" / "log.csv").write_text(f"epoch,loss\n{rows}")
    found = answer(root)
    (trace,) = found.figures[-1].traces
    assert len(trace["x"]) == len(trace["y"]) == 2000
    assert found.tables[-1].caption == "Training, by epoch, the last 1,000 of 20,000"
    assert found.tables[-1].rows[-1] == (20_000, 1 / 20_000)


def test_the_code_runs_as_a_reader_pastes_it(tmp_path, monkeypatch):
    """In the folder from which the app was started, and of a network that was trained; its answers are made up."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path)
    train(config(tmp_path, "runs/mine", epochs=1))
    np.savez(tmp_path / "runs" / "mine" / "predictions.npz", **arrays())
    scope = {}
    exec(compile(answer(Path("runs"), threshold="0.6").code, "code", "exec"), scope)
    prediction = scope["prediction"]
    assert prediction.draws == 20
    assert scope["inside"].tolist() == (prediction.votes.amax(1) >= 12).tolist()
    assert len(scope["inside"]) == 12


def test_a_run_that_was_evaluated_in_one_pass_prints_that_call(root):
    np.savez_compressed(root / "one" / "predictions.npz", **arrays(), moments=np.array(True))
    found = answer(root)
    assert 'draws="moments"' in found.code
    assert found.figures


def test_a_run_without_predictions_shows_its_training(root):
    (root / "one" / "predictions.npz").unlink()
    found = answer(root)
    assert "not evaluated" in found.headline
    assert [f.name for f in found.figures] == ["training"]
    assert found.code == f"mcrepar evaluate {root / 'one'}"


def test_a_segmentation_shows_its_structures(root):
    (root / "one" / "predictions.npz").unlink()
    skin = {"name": "skin", "images": 2, "voxels": 70, "dice": 0.8125, "dice_at_95_coverage": 0.9, "ece": 0.01}
    bone = skin | {"name": "bone", "images": 0, "voxels": 0, "dice": None, "dice_at_95_coverage": None}
    results = {"task": "segmentation", "in": {"dice": 0.8125}, "structures": [skin, bone]}
    (root / "one" / "metrics.json").write_text(json.dumps(results))
    found = answer(root)
    assert "not evaluated" not in found.headline
    assert "is a segmentation" in found.headline
    assert "structures: 0.812 (skin), unknown (bone)." in found.headline
    assert "report.html" in found.notes[0]
    assert [f.name for f in found.figures] == ["training"]
    assert found.tables[0].rows == [("skin", 2, 70, 0.8125, 0.9, 0.01), ("bone", 0, 0, None, None, 0.01)]
    assert [table.name for table in found.tables] == ["structures", "log"]
    scope = {}
    exec(compile(found.code, "code", "exec"), scope)
    assert scope["dice"] == {"skin": 0.8125, "bone": None}


def test_columns_without_numbers_are_left_out(root):
    assert answer(root).tables[-1].header == ("epoch", "step", "loss", "nll", "kl", "seconds")


def test_axes_use_their_range(root):
    a = arrays()
    sets, agreement, training = answer(root).figures
    least = min((a["confidence"] >= 1 - 1e-9).mean(), (a["label"] == a["y"]).mean())
    assert sets.layout["yaxis"]["range"] == [pytest.approx(least - 0.03), 1.02]
    assert agreement.y_log
    assert not training.y_log  # loss and NLL are within a factor of 20
    rows = "".join(f"{epoch},{100 / epoch**2}\n" for epoch in range(1, 13))
    (root / "one" / "log.csv").write_text(f"epoch,loss\n{rows}")
    assert answer(root).figures[-1].y_log


def test_a_regression_shows_its_intervals(root):
    y = np.linspace(0, 1, 50)
    np.savez(
        root / "one" / "predictions.npz", y=y, mean=y + 0.1, lower=y - 0.1, upper=np.where(y < 0.5, y + 0.2, y - 0.05)
    )
    found = answer(root)
    assert found.headline.startswith("The typical error is 0.1, and 50.0 %")
    assert found.figures[0].name == "regression"


def test_without_runs_it_says_how_to_get_some(tmp_path):
    for root, says in ((None, "No folder"), (tmp_path, "no run in the folder"), (tmp_path / "nothing", "no run")):
        found = answer(root)
        assert says in found.headline
        folder = "runs" if root is None else root
        train, evaluate = found.code.splitlines()
        assert train == f"mcrepar train --recipe digits --out {folder}/digits"
        assert evaluate == f"mcrepar evaluate {folder}/digits"


def test_a_name_from_outside_is_no_choice(root):
    view = run_view(root)
    _, errors = view.read(view.texts({"run": "../one"}))
    assert "not in the list" in errors["run"]
