"""The deterministic twin: the same budget, a plain loop as oracle, and both in the report."""

import json
import shutil

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar.errors import ParameterError
from mcrepar.workbench.evaluation import EvaluateOptions, evaluate
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import TrainConfig, read_config
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.schedules import seed_of
from mcrepar.workbench.training.setup import build_network, lay_out, open_run
from mcrepar.workbench.training.task import Task
from mcrepar.workbench.training.twin import missing_twin, read_twin
from tests.workbench.training.tiny import config, log_of, write_images, write_numbers


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twin")
    write_images(folder)
    options = config(folder, epochs=2, augment="none", lr_schedule="constant", twin=True)
    return options, train(options)


def test_the_twin_is_the_network_that_a_plain_loop_trains(trained):
    c, folder = trained
    task = Task.of(c, World())
    torch.manual_seed(seed_of(0, "start"))
    net = build_network(c, task.facts)
    lay_out(net, c, task.facts)
    optimizer = torch.optim.Adam(net.parameters(), lr=c.lr, fused=True)
    for epoch in range(2):
        for index in task.order(epoch):
            x, y = task.plain(task.train.at(index))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    twin = read_twin(open_run(folder))
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(twin.net.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_report_shows_both(trained):
    _, folder = trained
    path = evaluate(EvaluateOptions(folder=str(folder), draws=3, progress=False, ood=("digits",), resize=True))
    found = json.loads(path.read_text())
    run = open_run(folder)
    twin = read_twin(run)
    x, y = run.prepare(run.dataset.test.x), run.dataset.test.y
    probs = torch.softmax(twin.net(x).detach(), 1)
    assert found["twin"]["accuracy"] == pytest.approx(float((probs.argmax(1) == y).double().mean()))
    assert found["twin"]["nll"] == pytest.approx(float(-probs.log()[range(len(y)), y].mean()), rel=1e-4)
    assert set(found["twin"]) >= {"accuracy", "nll", "ece", "aurc"}
    assert 0 <= found["ood"]["digits"]["by_score"]["entropy_of_the_twin"]["auroc"] <= 1
    assert '<th scope="col">Twin</th>' in (folder / "report.html").read_text()


def test_a_run_gets_its_twin_later_and_only_once(tmp_path, capsys):
    write_numbers(tmp_path, 40)
    options = {"model": "fcnet", "model_options": {}, "augment": "auto", "epochs": 1, "calibration": 2}
    folder = train(config(tmp_path, **options))
    assert read_twin(open_run(folder)) is None
    train(config(tmp_path, **options, twin=True, resume=True))
    twin = read_twin(open_run(folder))
    assert twin.likelihood.log_scale is not None
    before = (folder / "twin" / "log.csv").read_text()
    train(config(tmp_path, **options, twin=True, resume=True, progress="plain"))
    assert capsys.readouterr().out.count("has finished before") == 2
    assert (folder / "twin" / "log.csv").read_text() == before
    assert read_config(folder / "twin" / "config.yaml").deterministic
    with pytest.raises(ParameterError, match="its network is deterministic"):
        open_run(folder / "twin")


def test_the_best_epoch_of_the_twin_is_kept_too(tmp_path):
    write_images(tmp_path)
    c = config(tmp_path, epochs=12, patience=1, lr=0.3, lr_schedule="constant", deterministic_epochs=12)
    losses = [-float(row["val_lpd"]) for row in log_of(train(c))]
    best = losses.index(min(losses))
    assert len(losses) == best + 2 < 12


def test_a_twin_that_could_not_be_written_is_refused_at_once(tmp_path):
    write_images(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "twin").write_text("a file")
    with pytest.raises(ParameterError, match="it is a file"):
        train(config(tmp_path, twin=True))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_damaged_weights_are_named(trained, tmp_path):
    _, folder = trained
    run = open_run(folder)
    path = folder / "twin" / "model" / "weights.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    try:
        with pytest.raises(ParameterError, match=r"the twin of .*damaged"):
            read_twin(run)
    finally:
        path.write_bytes(whole)
    assert isinstance(read_twin(run).likelihood, mcrepar.likelihoods.Categorical)


def test_a_twin_of_a_deterministic_run_is_refused():
    with pytest.raises(ParameterError, match="would be deterministic"):
        TrainConfig(epochs=2, deterministic_epochs=2, twin=True).check()


def test_a_twin_that_was_not_trained_to_the_end_is_missed(trained, tmp_path):
    _, folder = trained
    assert missing_twin(open_run(folder)) == ""
    part = shutil.copytree(folder, tmp_path / "part")
    shutil.rmtree(part / "twin" / "model")
    (part / "twin" / "run.json").write_text('{"status": "failed"}')
    path = evaluate(EvaluateOptions(folder=str(part), draws=2, progress=False))
    (note,) = [note for note in json.loads(path.read_text())["notes"] if "twin" in note]
    assert "has not been trained to the end (it is failed)" in note
    assert f"mcrepar train --resume --twin --out {part}" in note
    assert "--clip 1" in note
    assert "has not been trained to the end" in (part / "report.html").read_text()
    shutil.rmtree(part / "twin")
    assert "(it is not begun)" in missing_twin(open_run(part))


def test_a_network_without_noise_learns_at_the_rates_of_natural_gradients(tmp_path):
    given = {"data": "digits", "model": "small_conv", "optimizer": "natural", "lr": 0.2, "scale_lr": 0.005}
    folder = train(TrainConfig(**given, epochs=4, deterministic_epochs=4, out=str(tmp_path / "run"), progress="none"))
    assert float(log_of(folder)[-1]["accuracy"]) > 0.95
