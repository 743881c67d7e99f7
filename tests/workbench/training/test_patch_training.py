"""Training on random patches: the objective of all voxels, the same steps for a seed, refusals before any work."""

import json

import pytest
import torch

import mcrepar
from mcrepar.data import load
from mcrepar.errors import ParameterError
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.learner import Learner
from mcrepar.workbench.training.scores import validate
from mcrepar.workbench.training.setup import open_run
from mcrepar.workbench.training.task import Facts, Task, read_data
from tests.data.test_segmentation import save, study

OPTIONS = {
    "data": "structures", "data_options": {"size": (24, 26), "patch": (16, 16), "patches": 3, "subjects": 5},
    "model": "unet2d", "model_options": {"width": 2, "halvings": 2, "norm": "group"}, "epochs": 2, "batch_size": 4,
    "validation_draws": 2, "progress": "none",
}  # fmt: skip


def config(**changed):
    return TrainConfig(**{**OPTIONS, **changed})


def task(**changed):
    return Task.of(config(**changed), World(0, 1))


def test_an_epoch_takes_so_many_patches_of_every_image():
    t = task()
    assert (len(t.train), t.batches, tuple(t.order(0).shape)) == (6, 4, (4, 4))
    assert sorted(torch.bincount(task(batch_size=18).order(0).flatten()).tolist()) == [3] * 6


def test_a_step_is_the_same_for_a_seed():
    index = torch.tensor([0, 5, 5, 5])
    (x, y), again = task().batch(index, 7), task().batch(index, 7)
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])
    assert (x.shape, y.shape) == ((4, 1, 16, 16), (4, 3, 16, 16))
    assert not torch.equal(x, task().batch(index, 8)[0])
    assert len({tuple(patch.flatten().tolist()) for patch in x[1:]}) > 1  # several patches of one image


@pytest.mark.parametrize("patch", [(16, 16), (5, 6, 7)])
def test_images_and_labels_are_mirrored_alike(patch, tmp_path):
    """Intensities tell the labels apart; half of all patches are mirrored along the first axis, as patches tell."""
    size = (18, 20) if len(patch) == 2 else (8, 9, 10)
    study(tmp_path, size=size)
    t = task(data="segmentation", root=str(tmp_path), data_options={"patch": patch}, augment="flip")
    plain = task(data="segmentation", root=str(tmp_path), data_options={"patch": patch}, augment="none")
    index = torch.tensor([0, 1] * 8)
    (x, y), (x0, y0) = t.batch(index, 0), plain.batch(index, 0)
    mirrored = [not torch.equal(a, b) for a, b in zip(x, x0, strict=True)]
    assert 2 < sum(mirrored) < 14
    for k, turned in enumerate(mirrored):
        assert torch.equal(x[k], x0[k].flip(1) if turned else x0[k])
        assert torch.equal(y[k], y0[k].flip(1) if turned else y0[k])


def test_the_objective_is_the_elbo_of_all_voxels():
    """With patches as large as the images: minus the mean log probability of a voxel, and the KL over all voxels."""
    options = {"data_options": {"size": (24, 24), "patch": (24, 24), "patches": 1, "subjects": 5}, "batch_size": 6}
    t = task(**options)
    assert t.facts.data_size == t.facts.voxels == 6 * 24 * 24
    learner = Learner(t.config, t, t.world)
    x, y = t.batch(t.order(0)[0], 0)
    assert torch.allclose(y.sum(1), torch.ones(()))
    torch.manual_seed(3)
    found = learner.objective(x, y, learner.steps)
    torch.manual_seed(3)
    output = learner.net(x)
    log_prob = output.log_softmax(1).gather(1, y.argmax(1, keepdim=True)).mean()
    kl = learner.bayesian.kl()
    assert found.nll.item() == pytest.approx(-log_prob.item(), rel=1e-5)
    beta = learner.beta(learner.steps)
    assert found.loss.item() == pytest.approx((-log_prob + beta * kl / (6 * 24 * 24)).item(), rel=1e-5)


def test_validation_counts_every_voxel_once():
    """Of a network that says the same of all voxels, whatever the tiles: accuracy and nll by hand."""
    t, data = task(), load("structures", **OPTIONS["data_options"])
    assert len(t.validation) == 2 * 2 * 2  # 24 x 26 in tiles of 16 x 16
    constant = torch.nn.Conv2d(1, 3, 1)
    torch.nn.init.zeros_(constant.weight)
    constant.bias.data = torch.tensor([2.0, 1.0, 0.0])
    found = validate(constant, mcrepar.likelihoods.PerVoxel(), t.validation, t.plain, 1, t.world)
    shares = torch.bincount(data.validation.labels) / len(data.validation.labels)
    logs = torch.tensor([2.0, 1.0, 0.0]).log_softmax(0)
    assert found.score == pytest.approx(float(shares[0]), rel=1e-6)
    assert found.nll == pytest.approx(-float(shares @ logs), rel=1e-6)
    assert found.lpd == pytest.approx(-found.nll, rel=1e-6)


@pytest.mark.parametrize("changed", [{}, {"precision": "bf16"}, {"augment": "flip", "model_options": {"width": 2}}])
def test_a_run_from_start_to_end(changed, tmp_path):
    options = {"data_options": {**OPTIONS["data_options"], "patch": (17, 17)}, "calibration": 4}
    folder = train(config(out=str(tmp_path / "run"), **{**options, **changed}))
    run = open_run(folder)
    assert isinstance(run.likelihood, mcrepar.likelihoods.PerVoxel)
    assert (run.facts.size, run.facts.count, run.facts.voxels) == ((17, 17), 6, 6 * 24 * 26)
    assert Facts.read(json.loads((folder / "run.json").read_text())["data"]) == run.facts
    assert run.changed == ""
    log = (folder / "log.csv").read_text().splitlines()
    nll, accuracy = (float(log[-1].split(",")[log[0].split(",").index(name)]) for name in ("nll", "accuracy"))
    assert nll < 2  # nats of a voxel, not of a patch
    assert 0.2 < accuracy < 1


def test_a_volume_trains_in_slices_and_in_blocks(tmp_path):
    study(tmp_path, size=(18, 18, 6))
    for patch, model, halvings in (((8, 9), "unet2d", 2), ((5, 5, 6), "unet3d", 1)):
        options = {"data_options": {"patch": patch}, "model": model,
                   "model_options": {"width": 2, "halvings": halvings, "norm": "group"}}  # fmt: skip
        affine = torch.eye(4).numpy()
        study(tmp_path, size=(18, 18, 6), affine=affine)
        folder = train(config(data="segmentation", root=str(tmp_path), out=str(tmp_path / model), **options))
        assert open_run(folder).facts.size == patch


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"likelihood": "categorical"}, "--likelihood categorical: y is a class for every voxel"),
        ({"augment": "crop"}, "--augment crop: random patches are crops already"),
        ({"model": "small_conv", "model_options": {}}, "a class for a whole image. Use a network"),
        ({"model": "unet3d"}, "it takes volumes"),
        ({"data_options": {"size": (24, 26), "patch": (8, 30), "subjects": 5}}, "the patch is larger than the images"),
        ({"model_options": {"width": 2, "halvings": 4}}, "it takes 17 x 17 and more"),
        ({"validation": 0.5}, "has a validation part of its own"),
        ({"data": "digits", "data_options": {}, "likelihood": "per_voxel"}, "y is no class for every voxel"),
    ],
)
def test_refused_before_anything_is_written(changed, words, tmp_path):
    with pytest.raises(ParameterError, match=words):
        train(config(out=str(tmp_path / "run"), **changed))
    assert not (tmp_path / "run").exists()


def test_a_wrong_file_is_refused_before_training(tmp_path):
    study(tmp_path)
    save(tmp_path / "scans/0/label.nii.gz", torch.zeros(8, 9, 11, dtype=torch.uint8).numpy())
    with pytest.raises(ParameterError, match=r"scans/0/label.nii.gz.*\(8, 9, 11\)"):
        train(config(data="segmentation", root=str(tmp_path), data_options={"patch": (5, 5, 5)}, model="unet3d",
                     out=str(tmp_path / "run")))  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_held_out_part_has_whole_subjects(tmp_path):
    rows = study(tmp_path, 8, parts=("train",) * 7 + ("test",))
    assert len(rows) == 8
    options = {"data": "segmentation", "root": str(tmp_path), "data_options": {"patch": (5, 5, 5)}, "validation": 0.3}
    _, training, held = read_data(config(**options))
    assert (len(training), len(held)) == (5, 2)
    assert not {s.subject for s in training.about} & {s.subject for s in held.about}


def test_calibration_takes_patches_of_bounded_number(monkeypatch):
    assert task(calibration=5).calibration().shape == (5, 1, 16, 16)
    monkeypatch.setattr("mcrepar.workbench.training.task.CALIBRATION_VOXELS", 3 * 16 * 16)
    assert len(task().calibration()) == 3
