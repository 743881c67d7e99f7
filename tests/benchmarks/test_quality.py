"""Settings are chosen without a look at the test part, and the run that is tested is the one that was chosen."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import quality
from quality_learners import Deterministic
from quality_tasks import Parts, Task

from mcrepar.data.dataset import Split

METHOD = "tiny"


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return Split(
        torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8), torch.arange(count) % 3
    )


class Untouched:
    """A part that nobody may look at."""

    def __getattr__(self, name):
        raise AssertionError(f"the test part was asked for its {name}")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Runs the tiny method, by `choose` or by `run`, and returns its record."""

    def ask(tested, test):
        parts = Parts(images(24, 0), lambda x: x.float() / 255, images(9, 1), test, {"noise": images(9, 3).x},
                      {"blur": images(9, 4)}, "none")  # fmt: skip
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        task = Task(lambda root: parts, lambda: net, epochs=2, batch_size=8, learning_rate=0.01)
        monkeypatch.setitem(quality.TASKS, "small", task)
        monkeypatch.setitem(quality.METHODS, METHOD, Deterministic)
        quality.record("small", METHOD, 0, tmp_path, tmp_path / "work", tmp_path / "results", tested)
        return json.loads((tmp_path / "results" / "small-tiny-0.json").read_text())

    return ask


def test_choosing_scores_held_out_images_alone(asked):
    found = asked(False, Untouched())
    assert found["validation"]["nll"] > 0
    assert {"validation, blur", "validation, contrast"} <= set(found)
    assert not [key for key in found if key.startswith(("test", "ood", "corrupted"))]


def test_a_chosen_setting_is_tested_without_another_training(asked):
    chosen = asked(False, Untouched())
    tested = asked(True, images(9, 2))
    assert tested["validation"] == chosen["validation"]
    assert tested["seconds"] == chosen["seconds"], "it was trained again"
    assert {"test", "ood noise", "corrupted blur"} <= set(tested)


def test_a_run_that_was_tested_is_left_alone(asked):
    tested = asked(True, images(9, 2))
    assert asked(False, Untouched()) == tested
