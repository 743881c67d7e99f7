from itertools import pairwise

import pytest
from tests.experiments.tiny import tiny

from mcrepar.experiments.experiment import Results
from mcrepar.experiments.fig2_right import EXPERIMENT, PAPER, judge
from mcrepar.experiments.fitting import bytes_per_draw, largest, predictions, volume_table
from mcrepar.models import MODELS


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny("fig2-right", tmp_path_factory.mktemp("results"))


@pytest.fixture
def results(result):
    return Results(EXPERIMENT.settings["tiny"], result["measured"])


def test_the_prediction_is_what_happens(result):
    (run,) = (row for row in result["measured"] if row.get("kind") == "run")
    small = EXPERIMENT.settings["tiny"].small
    assert run["predicted"] > 4
    assert run["at"] <= small < run["above"]
    assert run["ours_many"] < run["at"]


def test_a_draw_keeps_the_noise_and_the_weight():
    assert bytes_per_draw("exact") == 8.0
    assert 12.0 <= bytes_per_draw("mc") <= 24.0


def test_largest_is_the_largest():
    for memory in (399, 400, 450, 10_000):
        most = largest(memory, 400, 70)
        needed = [400 + 70 * (m - 1) for m in (most, most + 1)]
        assert most == 0 or needed[0] <= memory
        assert needed[1] > memory


def test_predictions_are_linear_in_the_budget(results):
    (found,) = predictions(results)
    assert found.draws["mc"] < found.draws["exact"]
    assert found.batch_ours >= found.batch_direct > EXPERIMENT.settings["tiny"].batch
    weights, per_draw = found.weights, bytes_per_draw("exact")
    assert found.draws["exact"] == largest(results.settings.memory, found.needed, weights * per_draw)


def test_volumes_lose_draws_as_the_batch_grows(results):
    table = volume_table(results)
    assert [batch for batch, _ in table] == sorted(batch for batch, _ in table)
    assert all(a >= b for (_, a), (_, b) in pairwise(table))


def test_a_memory_that_grows_with_m_is_noticed(results):
    rows = [dict(row) for row in results.rows]
    next(row for row in rows if row["kind"] == "network")["ours_many"] *= 2
    assert not judge(Results(results.settings, rows))[0].held


def test_the_networks_of_all_scales_exist():
    for settings in EXPERIMENT.settings.values():
        assert {*settings.networks, *settings.runs, "unet3d_encoder"} <= set(MODELS)
    assert set(PAPER) <= set(EXPERIMENT.settings["cpu"].networks)
