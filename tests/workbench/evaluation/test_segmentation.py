"""From images in files to maps in their space, scores and a report: what is written is what was predicted."""

import json

import nibabel
import numpy as np
import pytest
import torch

from mcrepar import metrics
from mcrepar.errors import ParameterError
from mcrepar.sliding_window import predict_image
from mcrepar.workbench import cli
from mcrepar.workbench.evaluation import EvaluateOptions, evaluate
from mcrepar.workbench.evaluation.report import read_results, write_report
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.setup import open_run
from tests.data.test_segmentation import study

DRAWS = 3


def options(folder, **given):
    return EvaluateOptions(**{"folder": str(folder), "draws": DRAWS, "progress": False, "images": 2, **given})


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A 2D network on slices of volumes that lie askew, and a twin."""
    root = tmp_path_factory.mktemp("study")
    study(root, size=(12, 13, 14), count=6, parts=("train", "train", "val", "test", "train", "test"))
    config = TrainConfig(
        data="segmentation", root=str(root), data_options={"patch": (9, 9), "classes": ("air", "skin", "bone")},
        model="unet2d", model_options={"width": 4, "halvings": 1, "norm": "group"}, epochs=6, batch_size=3, lr=0.02,
        validation_draws=1, out=str(root / "run"), progress="none", twin=True, beta=0.01, kl_schedule="constant",
        posterior="radial", prior="normal", forward="weights", lr_schedule="constant", scale_lr=1.0,
    )  # fmt: skip
    train(config)
    evaluate(options(root / "run"))
    return root


def results(root):
    return json.loads((root / "run" / "metrics.json").read_text())


def test_maps_are_in_the_space_of_their_images(evaluated):
    maps = evaluated / "run" / "maps"
    names = [f"scans_{k}_image_{kind}.nii.gz" for k in (3, 5) for kind in ("entropy", "label", "mutual_information")]
    assert sorted(path.name for path in maps.iterdir()) == sorted(names)
    for k in (3, 5):
        image = nibabel.load(evaluated / f"scans/{k}/image.nii.gz")
        for kind, dtype in (("label", np.uint8), ("entropy", np.float32), ("mutual_information", np.float32)):
            found = nibabel.load(maps / f"scans_{k}_image_{kind}.nii.gz")
            assert found.shape == image.shape
            assert np.array_equal(found.affine, image.affine)
            assert found.get_data_dtype() == dtype


def test_maps_and_scores_are_those_of_the_draws(evaluated):
    """Predicted again here, and counted from the files in the files' own space."""
    run = open_run(evaluated / "run")
    dices, wrong, entropies = [], [], []
    for place, k in enumerate((3, 5)):
        image, y = run.dataset.test.image(place)
        found = predict_image(run.bnn, image, (9, 9), DRAWS, prepare=run.prepare,
                              generator=torch.Generator().manual_seed(0))  # fmt: skip
        label, entropy, mutual = (
            np.asarray(nibabel.load(evaluated / "run" / "maps" / f"scans_{k}_image_{kind}.nii.gz").dataobj)
            for kind in ("label", "entropy", "mutual_information")
        )
        truth = np.asarray(nibabel.load(evaluated / f"scans/{k}/label.nii.gz").dataobj)
        assert sorted(entropy.ravel()) == pytest.approx(sorted(found.entropy.flatten().tolist()), abs=1e-5)
        assert float((mutual - entropy).max()) <= 0
        assert (label == truth).mean() == pytest.approx(float((found.label == y).double().mean()))
        dices.append([metrics.dice(label, truth, c) for c in (1, 2)])
        wrong.append((label != truth).ravel())
        entropies.append(entropy.ravel())
    scores, wrong, entropies = results(evaluated), np.concatenate(wrong), np.concatenate(entropies)
    assert scores["in"]["dice"] == pytest.approx(np.mean(dices), rel=1e-6)
    assert scores["in"]["voxel_accuracy"] == pytest.approx(1 - wrong.mean())
    auroc = metrics.auroc(entropies[~wrong], entropies[wrong])
    assert scores["in"]["error_auroc"] == pytest.approx(auroc, abs=2e-3)
    assert [row["dice"] for row in scores["images"]] == [pytest.approx(row) for row in dices]


def test_what_metrics_json_says(evaluated):
    found = results(evaluated)
    assert (found["task"], found["draws"], found["data"]["count"]) == ("segmentation", DRAWS, 2)
    assert [s["name"] for s in found["structures"]] == ["skin", "bone"]
    assert {"in", "mean_weights", "twin", "abstention", "images", "posterior", "command"} <= set(found)
    assert found["mean_weights"]["mutual_information"] == pytest.approx(0, abs=1e-6)
    assert found["in"]["mutual_information"] > 0
    curve = found["abstention"]
    assert curve["coverage"][-1] == 1
    assert curve["error"][-1] == pytest.approx(1 - found["in"]["voxel_accuracy"])
    assert len(curve["coverage"]) <= 201


def test_the_report_shows_slices_and_structures(evaluated):
    page = (evaluated / "run" / "report.html").read_text()
    for words in ("Dice", "scans_3_image", "mutual information", "skin", "bone", "Are the structures calibrated?"):
        assert words in page
    assert page.count('id="figure-slice_') == 2
    assert "http://" not in page.replace("http://www.w3.org", "")
    figures = {path.stem for path in (evaluated / "run" / "figures").iterdir()}
    assert {"slice_0", "slice_1", "structure_calibration", "abstention_error", "abstention_dice"} <= figures
    _, arrays = read_results(evaluated / "run")
    assert arrays["image_0"].shape == arrays["entropy_0"].shape
    assert list(arrays["dice"]) == sorted(arrays["dice"])
    write_report(evaluated / "run")  # from the files alone


def test_the_tables_on_a_terminal(evaluated, capsys):
    assert cli.main(["evaluate", str(evaluated / "run"), "--draws", "2", "--split", "validation"]) == 0
    said = capsys.readouterr().out
    assert "structures" in said
    assert "bone" in said
    assert str(evaluated / "run" / "maps") in said.replace("\n", "")
    evaluate(options(evaluated / "run"))


def test_it_compares_with_other_runs(evaluated, capsys):
    assert cli.main(["compare", str(evaluated / "run")]) == 0
    assert "Dice" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [({"draws": "moments"}, "moments have no draw"), ({"ood": ("digits",)}, "here voxels are predicted")],
)
def test_what_cannot_be_is_refused(evaluated, given, words):
    with pytest.raises(ParameterError, match=words):
        evaluate(options(evaluated / "run", **given))


def test_a_link_in_the_place_of_the_maps_is_not_followed(evaluated, tmp_path):
    maps, away = evaluated / "run" / "maps", tmp_path / "away"
    maps.rename(away)
    maps.symlink_to(away)
    try:
        with pytest.raises(ParameterError, match="symbolic link"):
            evaluate(options(evaluated / "run"))
    finally:
        maps.unlink()
        away.rename(maps)
