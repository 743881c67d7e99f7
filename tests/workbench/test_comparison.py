"""Runs side by side: which runs are one method, its interval against scipy's, paired differences, refusals."""

import json

import numpy as np
import pytest
from scipy import stats

from mcrepar.errors import ParameterError
from mcrepar.workbench.cli import main
from mcrepar.workbench.comparison import TWIN, compare
from mcrepar.workbench.training.config import TrainConfig


def write(folder, nll, *, twin=None, confident=0.99, **options):
    """An evaluated run with these numbers."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(TrainConfig(**options).to_yaml())
    scores = {"accuracy": 0.9, "nll": nll, "ece": 0.01, "aurc": 0.02}
    by_score = {} if twin is None else {"entropy_of_the_twin": {"auroc": 0.7}}
    results = {
        "in": scores,
        "ood": {"photographs": {"score": "entropy", "auroc": 0.8, "by_score": by_score}},
        "confidence_sets": [{"tau": 0.9, "share": 0.5, "accuracy": confident}],
    }
    if twin is not None:
        results["twin"] = {**scores, "nll": twin}
    (folder / "metrics.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def runs(tmp_path):
    values = {1: (0.50, 0.54, 0.49), 100: (0.45, 0.50, 0.46)}
    return values, [
        write(tmp_path / f"{m}-{seed}", nll, kl_method="stats", n_mc_iter=m, seed=seed)
        for m, row in values.items()
        for seed, nll in enumerate(row)
    ]


def test_runs_that_differ_in_their_seed_are_one_method_with_an_interval(runs):
    values, folders = runs
    found = compare(folders)
    assert list(found.rows) == ["n_mc_iter 1", "n_mc_iter 100"]
    for m, row in values.items():
        interval = found.rows[f"n_mc_iter {m}"]["nll"]
        low, high = stats.t.interval(0.95, 2, np.mean(row), stats.sem(row))
        assert (interval.mean - interval.half, interval.mean + interval.half) == pytest.approx((low, high))
    difference = np.subtract(values[100], values[1])
    assert found.against["n_mc_iter 100"]["nll"].half == pytest.approx(stats.t.ppf(0.975, 2) * stats.sem(difference))
    assert found.columns == (
        "accuracy", "nll", "ece", "aurc", "confident_share", "confident_accuracy", "auroc_photographs"
    )  # fmt: skip


def test_runs_with_other_seeds_are_not_paired(tmp_path):
    a = write(tmp_path / "a", 0.5, seed=0)
    b = write(tmp_path / "b", 0.4, seed=1, beta=0.5, kl_schedule="constant")
    found = compare([a, b])
    assert found.against == {}
    assert found.rows["beta 1.0, kl_schedule graves"]["nll"].half is None


def test_the_twin_stands_beside_them(tmp_path):
    folders = [write(tmp_path / f"seed-{seed}", 0.5, twin=0.6 + 0.1 * seed, seed=seed) for seed in range(2)]
    found = compare([tmp_path])
    assert found == compare(folders)
    assert found.rows[TWIN]["nll"].mean == pytest.approx(0.65)
    assert found.against[TWIN]["nll"].mean == pytest.approx(0.15)
    assert found.against[TWIN]["auroc_photographs"].mean == pytest.approx(-0.1)
    assert "confident_share" not in found.rows[TWIN]


def test_the_command_writes_three_formats(runs, capsys):
    _, folders = runs
    words = [str(folder) for folder in folders]
    assert main(["compare", *words]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["method", "seeds"]
    assert first.startswith("n_mc_iter 1")
    assert "0.510 ± 0.066" in first
    assert main(["compare", *words, "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("| method | seeds | Accuracy |")
    assert main(["compare", *words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["methods"]["n_mc_iter 100"]["nll"]["mean"] == pytest.approx(0.47)


def test_refusals(tmp_path):
    a = write(tmp_path / "a", 0.5)
    with pytest.raises(ParameterError, match="the same seed"):
        compare([a, write(tmp_path / "b", 0.4)])
    with pytest.raises(ParameterError, match="different data"):
        compare([a, write(tmp_path / "c", 0.4, data="brain")])
    (a / "metrics.json").unlink()
    with pytest.raises(ParameterError, match=r"no results.*mcrepar evaluate"):
        compare([a])
    with pytest.raises(ParameterError, match="it holds no run"):
        compare([tmp_path / "nothing"])


@pytest.mark.parametrize(("file", "key", "value"), [("metrics.json", "split", "train"), ("run.json", "digest", "b")])
def test_runs_on_other_examples_are_refused(tmp_path, file, key, value):
    folders = [write(tmp_path / name, 0.5, seed=seed) for seed, name in enumerate("ab")]
    for folder, changed in zip(folders, ({}, {key: value}), strict=True):
        results = json.loads((folder / "metrics.json").read_text())
        data = {"split": "test", "digest": "a", **changed}
        (folder / "metrics.json").write_text(json.dumps({**results, "data": {"split": data["split"], "count": 3}}))
        (folder / "run.json").write_text(json.dumps({"data": {"digest": data["digest"]}}))
    with pytest.raises(ParameterError, match="different data"):
        compare(folders)
    assert compare(folders[:1]).rows
