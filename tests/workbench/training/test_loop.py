import errno
import itertools
import json
import math
import os
import shutil

import numpy as np
import pytest
import torch

import mcrepar
from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn import saving
from mcrepar.nn.calibration import pool_statistics
from mcrepar.nn.module import BayesianModule
from mcrepar.workbench.training import checkpoint, learner, train
from mcrepar.workbench.training.checkpoint import newest
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.learner import Learner
from mcrepar.workbench.training.loop import Trainer
from mcrepar.workbench.training.process import Diverged
from mcrepar.workbench.training.run_folder import RunFolder
from mcrepar.workbench.training.schedules import seed_of
from mcrepar.workbench.training.scores import Validated
from mcrepar.workbench.training.setup import build_network, open_run
from mcrepar.workbench.training.task import Task
from tests.workbench.training.tiny import config, log_of, model_of, write_images, write_numbers


@pytest.fixture(autouse=True)
def _images(tmp_path):
    write_images(tmp_path)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The usual run, with a checkpoint after every step: those of steps 8 and 9 are left."""
    folder = tmp_path_factory.mktemp("good")
    write_images(folder)
    return train(config(folder, checkpoint_minutes=0.0))


def numbers(folder, column):
    return [float(row[column]) for row in log_of(folder)]


def test_a_run_learns_and_leaves_what_it_promises(tmp_path, capsys):
    folder = train(config(tmp_path, epochs=8, augment="none"))
    assert {p.name for p in folder.iterdir()} == {"config.yaml", "run.json", "log.csv", "checkpoints", "model", ".lock"}
    rows = log_of(folder)
    assert [(r["epoch"], r["step"]) for r in rows] == [(str(k), str(3 * k)) for k in range(1, 9)]
    nll, kl, beta, loss = (numbers(folder, name) for name in ("nll", "kl", "beta", "loss"))
    assert nll[-1] < 0.5 * nll[0]
    assert numbers(folder, "accuracy")[-1] > 0.9
    assert beta[0] < beta[-1] == 0.1
    assert loss[-1] == pytest.approx(nll[-1] + 0.1 * kl[-1] / 36, rel=1e-3)
    facts = json.loads((folder / "run.json").read_text())
    assert facts["status"] == "finished"
    assert facts["source"]
    assert "scales of the posterior have all moved by the same" in capsys.readouterr().err  # 24 steps are few
    run = open_run(folder)
    assert run.calibrate() == ""
    p = mcrepar.predict(run.bnn, run.prepare(run.dataset.test.x), draws=8, likelihood=run.likelihood)
    assert (p.label == run.dataset.test.y).double().mean() > 0.9


def test_the_same_seed_gives_the_same_run_and_another_seed_another(good, tmp_path):
    same, other = (train(config(tmp_path, str(seed), seed=seed)) for seed in (0, 1))
    assert log_of(good) == log_of(same) != log_of(other)
    assert model_of(good) == model_of(same)
    assert set(model_of(good)) != set(model_of(other))


def test_one_step_is_the_elbo_step_anyone_would_write(tmp_path):
    """The loop against a plain loop: the order, the noise, the two learning rates and the weight of the KL."""
    c = config(tmp_path, epochs=2, augment="none", kl_schedule="constant", lr_schedule="constant")
    folder = train(c)
    task = Task.of(c, World())
    bnn = Learner(c, task, World()).net  # the start
    scales = [p for name, p in bnn.named_parameters() if name.endswith("log_scale")]
    rest = [p for name, p in bnn.named_parameters() if not name.endswith("log_scale")]
    optimizer = torch.optim.Adam([{"params": rest}, {"params": scales, "lr": 0.02}], lr=0.01, fused=True)
    step = 0
    for epoch in range(2):
        for index in task.order(epoch):
            x, y = task.plain(task.train.at(index))
            torch.manual_seed(seed_of(0, "noise", step, 0))
            e = mcrepar.elbo(bnn, mcrepar.likelihoods.Categorical(), x, y, data_size=36, beta=0.1)
            optimizer.zero_grad()
            e.loss.backward()
            optimizer.step()
            step += 1
    saved = newest(folder / "checkpoints").state["model"]
    for name, parameter in bnn.named_parameters():
        torch.testing.assert_close(saved[name], parameter.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("stop_on", ["predictive", "elbo"])
def test_early_stopping_keeps_the_best_model(stop_on, tmp_path):
    c = config(tmp_path, epochs=30, patience=2, lr=0.3, lr_schedule="constant", clip=1.0, stop_on=stop_on)  # jumps
    folder = train(c)
    losses = numbers(folder, "val_loss")
    if stop_on == "predictive":
        losses = [-lpd for lpd in numbers(folder, "val_lpd")]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 3 < 30
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    run = open_run(folder)
    last = newest(folder / "checkpoints").state["model"]
    kept = run.bnn.state_dict()
    assert not all(torch.equal(t, kept[name]) for name, t in last.items())
    kl = run.bnn.kl().item()
    elbo = numbers(folder, "val_loss")[best] - numbers(folder, "val_nll")[best]
    assert 0.1 * kl / 36 == pytest.approx(elbo, rel=1e-3)


def test_a_falling_kl_alone_does_not_keep_a_run_going(tmp_path, monkeypatch):
    """Predictions that never get better stop the run, though the ELBO rises with every epoch."""
    monkeypatch.setattr(
        "mcrepar.workbench.training.loop.validate", lambda *args: Validated(nll=0.5, lpd=-0.4, score=1.0)
    )
    monkeypatch.setattr(BayesianModule, "kl", falling(BayesianModule.kl))
    options = {"epochs": 8, "patience": 2, "kl_schedule": "constant"}
    assert len(log_of(train(config(tmp_path, "a", **options)))) == 3
    rows = log_of(train(config(tmp_path, "b", **options, stop_on="elbo")))
    assert len(rows) == 8
    losses = [float(row["val_loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True)


def falling(kl):
    """A KL that is smaller at every call without a graph, which is that of validation."""
    calls = itertools.count()

    def smaller(self, *args, **kwargs):
        value = kl(self, *args, **kwargs)
        return value if torch.is_grad_enabled() else value * 0.5 ** next(calls)

    return smaller


def test_regression_reaches_the_noise_of_its_data(tmp_path):
    write_numbers(tmp_path)
    c = config(
        tmp_path, model="fcnet", model_options={"hidden": [16]}, augment="none", epochs=40, batch_size=32, beta=0.01,
        lr=0.05,
    )  # fmt: skip
    folder = train(c)
    assert numbers(folder, "val_rmse")[-1] < 100 < numbers(folder, "rmse")[0]
    run = open_run(folder)
    assert run.facts.classes == ()
    assert 30 < run.likelihood.log_scale.exp().item() < 120  # the noise is 50
    p = mcrepar.predict(run.bnn, run.prepare(run.dataset.test.x), draws=20, likelihood=run.likelihood)
    error = (p.mean[:, 0] - run.dataset.test.y).square().mean().sqrt()
    assert error < 100


def test_deterministic_epochs_come_first_and_centre_the_prior(tmp_path):
    folder = train(config(tmp_path, deterministic_epochs=2, pretrained=True, prior_options={}, augment="none"))
    rows = log_of(folder)
    assert [float(r["kl"]) > 0 for r in rows] == [False, False, True]
    assert [r["val_loss"] == "" for r in rows] == [True, True, False]
    latents = [latent for _, latent in open_run(folder).bnn.latents.items()]
    for latent in latents:  # the prior is where the plain network was, and the posterior has not gone far in one epoch
        assert not torch.equal(latent.anchor, latent.loc)
        assert (latent.anchor - latent.loc).abs().max() < 0.1


def test_a_checkpoint_knows_where_the_scales_began(tmp_path):
    """A learner that is restored was made of an untrained network, whose scales begin elsewhere."""
    c = config(tmp_path, deterministic_epochs=1)
    task = Task.of(c, World())
    first, second = Learner(c, task, World()), Learner(c, task, World())
    with torch.no_grad():
        for p in first.net.parameters():
            p.mul_(3.0)  # a training that widens the weights, and with them the scales of the posterior
    first.become_bayesian()
    second.restore(first.state(), tmp_path / "checkpoint")
    found, expected = ([t.initial for r in x.bayesian.latents.values() for t in r.tensors] for x in (second, first))
    assert found == expected


def test_warm_start_begins_at_the_weights_of_a_file(tmp_path):
    c = config(tmp_path)
    task = Task.of(c, World())
    plain = build_network(c, task.facts)
    torch.save(plain.state_dict(), tmp_path / "w.pt")
    started = Learner(config(tmp_path, warm_start=str(tmp_path / "w.pt")), task, World())
    assert torch.equal(started.bayesian.mean()["linear.weight"], plain.linear.weight)
    with pytest.raises(ParameterError, match="--warm-start"):
        train(config(tmp_path, warm_start=str(tmp_path / "nosuch.pt")))
    assert not (tmp_path / "run").exists()


ONE_EPOCH = {"epochs": 1, "lr_schedule": "constant", "validation_draws": 1}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usual")
    write_images(folder)
    return train(config(folder, **ONE_EPOCH))


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16"}, {"clip": 0.1}, {"draws": 2}, {"last_layer_draws": 4}, {"channels_last": False},
        {"posterior": "gamma", "signs": "keep", "prior": "gamma", "prior_options": {}},
        {"forward": "flipout", "posterior": "normal"}, {"kl_method": "stats", "n_mc_iter": 100},
        {"kl_schedule": "blundell", "beta": 1.0}, {"weight_decay": 1e-3},
    ],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items() if not isinstance(value, dict)),
)  # fmt: skip
def test_options_change_the_run(options, usual, tmp_path):
    changed = train(config(tmp_path, **{**ONE_EPOCH, **options}))
    assert set(model_of(usual)) != set(model_of(changed))
    assert all(math.isfinite(value) for value in numbers(changed, "loss"))


# ---- what goes wrong


def test_a_folder_with_another_run_is_left_alone(tmp_path):
    folder = train(config(tmp_path, epochs=1))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ParameterError, match="another run"):
        train(config(tmp_path, epochs=1, seed=3))
    with pytest.raises(ParameterError, match="seed: 0 there, 3 now"):
        train(config(tmp_path, epochs=1, seed=3, resume=True))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_finished_run_has_nothing_to_resume(tmp_path, capsys):
    train(config(tmp_path, epochs=1))
    train(config(tmp_path, epochs=1, resume=True, progress="plain"))
    assert "nothing to do" in capsys.readouterr().out


def test_bad_options_leave_no_folder(tmp_path):
    for options in (
        {"model": "nosuch"}, {"root": str(tmp_path / "nosuch.npz")}, {"posterior": "nosuch"}, {"prior": "exponential"},
        {"prior": "exponential", "deterministic_epochs": 1}, {"kl_method": "nosuch"}, {"device": "nosuch"},
        {"posterior": "gamma"}, {"model": "densenet121", "model_options": {}}, {"patience": 2, "validation": 0.0},
    ):  # fmt: skip
        with pytest.raises(mcrepar.McreparError):
            train(config(tmp_path, **options))
        assert not (tmp_path / "run").exists(), options


def test_a_network_that_answers_another_question_leaves_no_folder(tmp_path):
    """A class for every voxel, where there is one for the volume."""
    x, y = np.zeros((8, 1, 17, 17, 17), np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    options = {"model": "unet3d", "model_options": {"width": 2}, "validation": 0.0, "augment": "none"}
    with pytest.raises(ParameterError, match="Categorical likelihood: y has the shape"):
        train(config(tmp_path, **options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("draws", ["exact", 0])
def test_an_objective_that_cannot_be_leaves_no_folder(draws, tmp_path):
    write_images(tmp_path)
    with pytest.raises((MethodError, ParameterError), match="last_layer_draws") as caught:
        train(config(tmp_path, last_layer_draws=draws))
    assert "step 1" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_other_data_are_no_data_to_go_on_with(tmp_path):
    write_images(tmp_path)
    train(config(tmp_path))
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**facts, "status": "running"}))
    write_images(tmp_path, seed=1)
    with pytest.raises(ParameterError, match=r"the data are not those of that run .*digest"):
        train(config(tmp_path, resume=True))


def test_the_log_is_cut_where_a_run_goes_on(good, tmp_path):
    write_images(tmp_path)
    shutil.copytree(good, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text((good / "run.json").read_text().replace('"finished"', '"running"'))
    for path in (tmp_path / "run" / "checkpoints").glob("step-00000009.*"):
        path.unlink()  # as if it had been killed before
    c = config(tmp_path, checkpoint_minutes=0.0, resume=True)
    (tmp_path / "run" / "config.yaml").write_text(c.to_yaml())
    trainer = Trainer(c, RunFolder(c), World())
    trainer.folder.release()
    assert trainer.step == 8
    assert log_of(tmp_path / "run") == log_of(good)[:2]


class Broken:
    """A learner whose loss, or gradient, is no number from one step on."""

    def __init__(self, monkeypatch, step: int, part: str) -> None:
        objective = Learner.objective

        def spoiled(self, x, y, now):
            if part == "loss" and now >= step:
                x = (x * 3e38).clamp(-3e38, 3e38)  # overflows inside the network, in its norm statistics too
            e = objective(self, x, y, now)
            if part == "gradient" and now >= step:
                self.net.get_parameter("net.norm.weight").register_hook(lambda grad: grad * float("inf"))
            return e

        monkeypatch.setattr(Learner, "objective", spoiled)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("loss", "the first tensor that is not finite: the network's output"),
        ("gradient", "the gradient of net.norm.weight is not finite"),
    ],
    ids=["loss", "gradient"],
)
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_state(part, why, good, tmp_path, monkeypatch):
    Broken(monkeypatch, 8, part)
    with pytest.raises(Diverged, match=rf"epoch 3, step 9: .*{why}.*Use a smaller --lr") as error:
        train(config(tmp_path))
    assert str(tmp_path / "run" / "checkpoints") in str(error.value)
    kept = newest(tmp_path / "run" / "checkpoints").state
    assert kept["step"] == 8
    wanted = torch.load(sorted((good / "checkpoints").glob("*08.*.pt"))[0], weights_only=True)
    assert all(torch.equal(t, wanted["model"][name]) for name, t in kept["model"].items())
    assert all(bool(t.isfinite().all()) for t in kept["model"].values())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    assert len(log_of(tmp_path / "run")) == 2


def test_a_deterministic_loss_that_is_no_number_stops_too(tmp_path, monkeypatch):
    Broken(monkeypatch, 1, "loss")
    with pytest.raises(Diverged, match=r"epoch 1, step 2: .*nll is nan"):
        train(config(tmp_path, deterministic_epochs=1))


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(good, tmp_path, monkeypatch, capsys):
    write, calls = checkpoint.write, []

    def sometimes(folder, step, *rest):
        calls.append(step)
        if 3 <= step <= 8:
            no_space()
        return write(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "write", sometimes)
    folder = train(config(tmp_path, checkpoint_minutes=0.0))
    assert model_of(folder) == model_of(good)
    err = capsys.readouterr().err
    assert err.count("was not written (No space left on device)") == 6
    assert "the checkpoint of step 3 " in err


def test_a_model_that_cannot_be_written_can_be_had_later(good, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("mcrepar.nn.model_folder.write_file", no_space)
        with pytest.raises(ParameterError, match=r"could not be written\. Use mcrepar train --resume"):
            train(config(tmp_path))
    assert "No space" in capsys.readouterr().err
    assert status(tmp_path / "run") == "failed"
    assert model_of(train(config(tmp_path, resume=True))) == model_of(good)


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def status(folder):
    return json.loads((folder / "run.json").read_text())["status"]


JUMPS = {"epochs": 30, "patience": 2, "lr": 0.3, "lr_schedule": "constant", "clip": 1.0}


@pytest.fixture(scope="module")
def stopped_early(tmp_path_factory):
    folder = tmp_path_factory.mktemp("early")
    write_images(folder)
    return train(config(folder, **JUMPS))


def test_norm_statistics_are_measured_once_and_are_those_of_the_best_model(stopped_early, tmp_path, monkeypatch):
    """Not on every better epoch, each of which would take 32 passes over the calibration data."""
    calls = []
    monkeypatch.setattr(saving, "pool_statistics", lambda bnn: (calls.append(1), pool_statistics(bnn)))
    folder = train(config(tmp_path, **JUMPS))
    assert len(calls) == 1
    assert model_of(folder) == model_of(stopped_early)
    run = open_run(folder)
    kept = [t.clone() for t in leaves(run.bnn.calibration.pooled)]
    run.calibrate()
    pool_statistics(run.bnn)
    assert kept
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(kept, leaves(run.bnn.calibration.pooled), strict=True))


def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [leaf for part in parts for leaf in leaves(part)]


class Disk:
    """A disk that is full while the best model is written, from one call to another."""

    def __init__(self, monkeypatch, first: int, last: float) -> None:
        save, self.calls = learner.write_model, 0

        def sometimes(*args, **kwargs):
            self.calls += 1
            if first <= self.calls <= last:
                raise ParameterError("save", "it cannot be written (No space left on device)", "a larger disk")
            save(*args, **kwargs)

        monkeypatch.setattr(learner, "write_model", sometimes)


def test_a_best_model_that_could_not_be_written_is_written_later(stopped_early, tmp_path, monkeypatch, capsys):
    """Early stopping on a disk that is full at every better epoch, and has space at the end."""
    disk = Disk(monkeypatch, 1, len(log_of(stopped_early)) - 1)
    folder = train(config(tmp_path, **JUMPS))
    assert disk.calls == len(log_of(stopped_early)) + 1  # and once for the norm statistics
    assert log_of(folder) == log_of(stopped_early)
    assert model_of(folder) == model_of(stopped_early)
    assert status(folder) == "finished"
    assert "the model was not written (it cannot be written (No space" in capsys.readouterr().err


def test_a_run_whose_best_model_could_not_be_stored_has_not_finished(stopped_early, tmp_path, monkeypatch):
    """The model of the first epoch is there; the best is only in the checkpoint, from which it comes with --resume."""
    with monkeypatch.context() as patch:
        Disk(patch, 2, math.inf)
        with pytest.raises(ParameterError, match="model: it could not be written"):
            train(config(tmp_path, **JUMPS))
    folder = tmp_path / "run"
    assert status(folder) == "failed"
    assert model_of(folder) != model_of(stopped_early)
    train(config(tmp_path, **JUMPS, resume=True))
    assert status(folder) == "finished"
    assert model_of(folder) == model_of(stopped_early)


def test_a_failed_write_leaves_network_and_likelihood_of_one_model(tmp_path, monkeypatch):
    write_numbers(tmp_path)
    options = {"model": "fcnet", "model_options": {"hidden": [4]}, "augment": "none", "batch_size": 32, "patience": 9}
    seen = []
    save = Learner.save

    def noted(self, folder, numbers=None):
        save(self, folder, numbers)
        seen.append(model_of(folder.parent))

    monkeypatch.setattr(Learner, "save", noted)
    Disk(monkeypatch, 2, math.inf)
    with pytest.raises(ParameterError, match="could not be written"):
        train(config(tmp_path, **options))
    assert [model_of(tmp_path / "run")] == seen


def test_a_model_folder_that_became_a_link_is_not_followed(tmp_path, monkeypatch):
    """While the run goes on; at the start it is refused."""
    outside = tmp_path / "precious"
    outside.mkdir()
    fit = Trainer.fit

    def linked(self, signals):
        (self.folder.path / "model").symlink_to(outside)
        fit(self, signals)

    monkeypatch.setattr(Trainer, "fit", linked)
    with pytest.raises(ParameterError, match="could not be written"):
        train(config(tmp_path, epochs=1))
    assert list(outside.iterdir()) == []
    assert status(tmp_path / "run") == "failed"


def test_a_log_that_could_not_be_written_is_no_finished_run(good, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("mcrepar.workbench.training.loop.write_log", no_space)
        with pytest.raises(ParameterError, match=r"log\.csv: it could not be written"):
            train(config(tmp_path))
    assert status(tmp_path / "run") == "failed"
    assert log_of(train(config(tmp_path, resume=True))) == log_of(good)


def test_a_checkpoint_of_another_run_is_refused(good, tmp_path):
    mixed = train(config(tmp_path, "large", model_options={"blocks": 2}, epochs=1))
    (mixed / "run.json").write_text((mixed / "run.json").read_text().replace('"finished"', '"stopped"'))
    shutil.rmtree(mixed / "checkpoints")
    shutil.copytree(good / "checkpoints", mixed / "checkpoints")
    model = model_of(mixed)
    with pytest.raises(ParameterError, match=r"other options \(model_options: {'blocks': 1} there"):
        train(config(tmp_path, "large", model_options={"blocks": 2}, epochs=1, resume=True))
    assert model_of(mixed) == model


def test_threads_are_set(tmp_path):
    before = torch.get_num_threads()
    try:
        train(config(tmp_path, epochs=1, threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_defaults_train_the_digits():
    """The defaults name data and a network that go together."""
    c = TrainConfig()
    task = Task.of(c, World())
    assert Learner(c, task, World()).bayesian is not None


def test_heteroscedastic_noise_is_learned_at_the_default_rate(tmp_path):
    """Its gradients grow with 1 / variance, and are clipped; with a bound that is none the run diverges."""
    write_numbers(tmp_path)
    given = {"model": "fcnet", "model_options": {"hidden": [16]}, "augment": "none", "epochs": 40, "lr": 0.01}
    given |= {"posterior": "normal", "prior": "auto", "prior_options": {}, "kl_schedule": "graves", "beta": 1.0}
    rows = log_of(train(config(tmp_path, noise="heteroscedastic", **given)))
    assert float(rows[-1]["rmse"]) < 200  # of 360
