import csv
import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from mcrepar.data import load
from mcrepar.data.brain import BAYES_ACCURACY, SEPARATION, latents, volume, write_brain
from mcrepar.errors import ParameterError

SIZE = (12, 14, 12)


def test_it_says_that_it_is_simulated():
    data = load("brain", size=SIZE, subjects=8)
    assert data.simulated
    assert data.source == "simulated brain volumes, 8 subjects, seed 0"
    assert all(name.startswith("simulated") for name in data.classes)


def test_the_papers_numbers_of_subjects_by_default(monkeypatch):
    monkeypatch.setattr("mcrepar.data.brain.volume", lambda i, size, seed: np.full(size, i % 200, dtype=np.uint8))
    data = load("brain")
    assert (len(data.train), len(data.test), data.size) == (300, 88, (35, 42, 35))
    assert data.train.y.bincount().tolist() == [150, 150]
    assert data.test.y.bincount().tolist() == [44, 44]


def test_a_subject_depends_on_its_number_and_the_seed_only():
    few, many = load("brain", size=SIZE, subjects=8), load("brain", size=SIZE, subjects=12)
    assert many.train.x[:6].equal(few.train.x[:6])
    assert not load("brain", size=SIZE, subjects=8, seed=1).test.x.equal(few.test.x)


def test_a_subject_is_the_same_in_every_size():
    """The mean over blocks of a fine volume is about the coarse one; another subject's is not."""
    fine = [volume(i, (36, 42, 36), seed=0).reshape(12, 3, 14, 3, 12, 3).mean((1, 3, 5)) for i in (0, 1)]
    coarse = volume(0, SIZE, seed=0)
    own, other = (np.corrcoef(f.ravel(), coarse.ravel())[0, 1] for f in fine)
    assert own > 0.99
    assert own > other


def test_the_bayes_accuracy_is_that_of_the_latents():
    """5,000 subjects: a false alarm beyond 4.5 standard errors, in 1 of 10^5 runs."""
    z = np.array([list(latents(i, seed=7).values()) for i in range(5000)])
    y = np.arange(5000) % 2
    distance = math.sqrt(sum(s**2 for s in SEPARATION.values()))
    assert stats.norm.cdf(distance / 2) == pytest.approx(BAYES_ACCURACY, abs=1e-12)
    assert pytest.approx(0.9, abs=0.005) == BAYES_ACCURACY
    accuracy = LinearDiscriminantAnalysis().fit(z, y).score(z, y)
    assert abs(accuracy - BAYES_ACCURACY) < 4.5 * math.sqrt(0.9 * 0.1 / 5000)


def test_the_volumes_show_the_class_but_not_all_of_it():
    """The ventricles, dark against the rest: chance gives a p-value below 10^-5 in one of 10^5 runs."""
    data = load("brain", size=(24, 28, 24), subjects=200)
    x, y = torch.cat([data.train.x, data.test.x])[:, 0].double(), torch.cat([data.train.y, data.test.y])
    box = x[:, 9:15, 9:18, 11:15].flatten(1)
    dark = -box.mean(1) / box.quantile(0.8, 1)  # against the white beside them
    test = stats.mannwhitneyu(dark[y == 1], dark[y == 0], alternative="greater")
    assert test.pvalue < 1e-5
    assert test.statistic / 100**2 < 0.99, "the classes overlap"


def test_the_latents_move_what_they_are_named_after(monkeypatch):
    def shown(**values):
        monkeypatch.setattr("mcrepar.data.brain.latents", lambda i, seed: dict.fromkeys(SEPARATION, 0.0) | values)
        return volume(0, (35, 42, 35), seed=0).astype(float)

    plain = shown()
    inner = np.zeros(plain.shape, bool)
    inner[10:25, 10:32, 16:24] = True  # around the ventricles
    temporal = np.zeros(plain.shape, bool)
    temporal[8:14, 12:23, 11:16] = temporal[21:27, 12:23, 11:16] = True  # around the hippocampi
    for name, place in (("ventricles", inner), ("hippocampus", temporal)):
        drop = plain - shown(**{name: 2.0})
        assert drop[place].sum() > 0, "darker"
        assert np.abs(drop[place]).mean() > 5 * np.abs(drop[~place]).mean()
    thin = shown(cortex=2.0) - plain
    assert thin.sum() > 0, "less grey beneath the surface, more white"
    assert np.abs(thin[22:25, 16:26, 21:24]).max() == 0, "deep in the white nothing moves"


def test_as_nifti_files_with_a_table(tmp_path):
    folder = write_brain(tmp_path / "study", size=SIZE, subjects=8, seed=3)
    order = ("simulated control", "simulated atrophy")
    data, own = load("nifti", root=folder, size=SIZE, classes=order), load("brain", size=SIZE, subjects=8, seed=3)
    assert data.simulated
    assert data.classes == own.classes
    for a, b in ((data.train, own.train), (data.test, own.test)):
        assert a.y.equal(b.y)
        for x, z in zip(a.x.double(), b.x.double(), strict=True):
            assert torch.corrcoef(torch.stack([x.flatten(), z.flatten()]))[0, 1] > 0.99
    with (folder / "participants.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(rows[5][name]) for name in SEPARATION] == pytest.approx(list(latents(5, 3).values()), abs=1e-4)
    with pytest.raises(ParameterError, match="something is there already"):
        write_brain(folder, size=SIZE, subjects=8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": (10, 10)}, "3 whole numbers"),
        ({"size": (10, 10, 3)}, "at least 4"),
        ({"subjects": 7}, "subjects=8 or more"),
        ({"root": "."}, "Use no root"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ParameterError, match=words):
        load("brain", **options)
