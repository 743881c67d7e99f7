import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import training_runs as module
from experiments.experiment import Bench
from experiments.studies import ADRENAL, BRAIN, IMAGES
from experiments.training_runs import DETERMINISTIC, TAUS, confidence_set, need_data, outside, training_run
from mcrepar.errors import ParameterError
from mcrepar.workbench.training import loop
from mcrepar.workbench.training.process import Caught, Diverged
from mcrepar.workbench.training.run_folder import RunFolder

QUICK = replace(BRAIN["tiny"], asked=3)


def bench(folder: Path, seed: int = 3) -> Bench:
    return Bench(None, seed, None, folder / "runs")


def without_clock(row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "seconds"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, training_run(QUICK, bench(folder))


def test_what_a_training_gives(whole):
    _, row = whole
    assert row["failed"] is None
    assert row["count"] == 5
    assert row["simulated"]
    assert [s["tau"] for s in row["sets"]] == list(TAUS)
    assert row["sets"][0]["share"] == 1.0  # of two classes one has half of the votes
    assert row["scores"]["accuracy"] == row["right"] / 5 == confidence_set(row, 0.5)["accuracy"]
    assert row["curves"]["epoch"] == [1, 2]


def test_a_training_that_was_interrupted_goes_on(whole, tmp_path, monkeypatch):
    @contextmanager
    def stopped():
        note = Caught()
        note.number = signal.SIGINT
        yield note

    with monkeypatch.context() as patch:
        patch.setattr(loop, "caught", stopped)
        with pytest.raises(KeyboardInterrupt):
            training_run(QUICK, bench(tmp_path))
    (run,) = (tmp_path / "runs").iterdir()
    assert list((run / "checkpoints").iterdir())
    assert without_clock(training_run(QUICK, bench(tmp_path))) == without_clock(whole[1])


def test_a_training_is_found_again_and_asked_once(whole, monkeypatch):
    folder, row = whole
    monkeypatch.setattr("experiments.training_runs.answers", lambda *_: pytest.fail("it was asked again"))
    (run,) = (folder / "runs").iterdir()
    before = (run / "log.csv").stat().st_mtime_ns
    assert training_run(QUICK, bench(folder)) == row
    assert (run / "log.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize("damaged", ["", "[]", '{"scores"'])
def test_answers_that_cannot_be_read_are_asked_for_again(whole, damaged):
    folder, row = whole
    (file,) = folder.glob("runs/*/answers-*.json")
    kept = file.read_text()
    file.write_text(damaged)
    assert training_run(QUICK, bench(folder)) == row
    assert file.read_text() == kept


def test_folders_tell_what_a_run_depends_on(tmp_path):
    def out(training=IMAGES["cpu"], seed=1, root="data", **changed):
        return training.config(replace(bench(tmp_path, seed), root=Path(root)), **changed).out

    assert out() == out(root="elsewhere") == out(threads=1)
    assert len({out(), out(seed=2), out(n_mc_iter=1), out(beta=0.5), out(IMAGES["paper"])}) == 5
    assert Path(out()).parent == tmp_path / "runs"


def test_divergence_is_a_result(tmp_path, monkeypatch):
    def diverge(config):
        raise Diverged("epoch 1, step 2", "the loss is nan", "a smaller --lr")

    monkeypatch.setattr(module, "train", diverge)
    assert training_run(QUICK, bench(tmp_path)) == {"failed": "epoch 1, step 2: the loss is nan"}


def test_a_run_that_another_experiment_computes_is_named(tmp_path):
    config = QUICK.config(bench(tmp_path))
    other = RunFolder(config)
    Path(config.out).mkdir(parents=True)
    other._take()
    with pytest.raises(ParameterError, match=r"the run .*unet3d_encoder-.*another experiment.*the same command"):
        training_run(QUICK, bench(tmp_path))
    other.release()


def test_other_refusals_stay_as_they_are(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(ParameterError, match="--out") as refusal:
        training_run(QUICK, bench(tmp_path))
    assert "another experiment" not in str(refusal.value)


def test_the_deterministic_version_is(tmp_path):
    options = {**QUICK.options, **DETERMINISTIC, "prior_options": {}}
    row = training_run(replace(QUICK, options=options), bench(tmp_path))
    assert row["scores"]["mutual_information"] < 1e-6
    assert confidence_set(row, 1.0)["share"] == 1.0


def test_outside_a_set():
    row = {"count": 10, "right": 7, "sets": [{"tau": 0.9, "count": 4, "accuracy": 1.0},
                                             {"tau": 0.5, "count": 10, "accuracy": 0.7}]}  # fmt: skip
    assert outside(row, 0.9) == 0.5
    assert outside(row, 0.5) is None


def test_missing_data(tmp_path):
    with pytest.raises(ParameterError, match=r"needs the data set cifar10.*--root FOLDER.*cs.toronto.edu"):
        need_data([IMAGES["cpu"]], None)
    with pytest.raises(ParameterError, match=r"adrenalmnist3d\.npz from https://medmnist\.com"):
        need_data([BRAIN["cpu"], ADRENAL["cpu"]], tmp_path)
    need_data([IMAGES["tiny"], BRAIN["cpu"]], None)
