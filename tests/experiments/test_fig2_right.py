from dataclasses import replace

import pytest

from experiments.experiment import Results
from experiments.fig2_right import EXPERIMENT, PAPER, SMALLER, judge, network_line, predictions, volume_table
from experiments.training_step import GIB, bytes_per_draw, size_text
from mcrepar.models import MODELS
from mcrepar.workbench.app.memory_budget import largest
from tests.experiments.tiny import tiny


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


def test_a_draw_saves_the_noise_and_the_weight():
    assert bytes_per_draw("exact") == 8.0
    assert 12.0 <= bytes_per_draw("mc") <= 24.0


def test_largest_is_the_largest():
    for memory in (399, 400, 450, 10_000):
        most = largest(memory, 400, 70)
        needed = [400 + 70 * (m - 1) for m in (most, most + 1)]
        assert most == 0 or needed[0] <= memory
        assert needed[1] > memory


def test_predictions_are_linear_in_the_budget(results):
    (found,) = predictions(results).values()
    assert found["mc"] < found["exact"]
    assert found["batch"] > EXPERIMENT.settings["tiny"].batch
    weights, per_draw = found["weights"], bytes_per_draw("exact")
    assert found["exact"] == largest(results.settings.memory, found["needed"], weights * per_draw)


def test_a_draw_of_the_fuller_loop_counts_from_the_first(results):
    (row,) = results.of("network")
    line = network_line(results, row)
    more = line.one_draw(4, "mc") - line.one_draw(4, "exact")
    assert more == pytest.approx((bytes_per_draw("mc") - bytes_per_draw("exact")) * row["weights"])


def volumes(results: Results, memory: int, low: int = 2, ours: int = 550) -> Results:
    """A network of 10 weights, 160 bytes per draw with log q sampled, 1000 bytes per volume, 500 beside."""
    row = {"kind": "volumes", "weights": 10, "one_draw": 500 + low * 1000 + 80, "per_example": 1000,
           "ours_100": ours + low * 1000}  # fmt: skip
    saved = {"kind": "draw", "per_draw_exact": 8.0, "per_draw_mc": 16.0}
    others = [row for row in results.rows if row["kind"] not in ("draw", "volumes")]
    return Results(replace(results.settings, memory=memory, volume_probes=(low, low + 1)), [*others, saved, row])


@pytest.mark.parametrize(
    ("memory", "table"),
    [
        (500 + 5000 + 200, [(1, 1 + 4040 // 160), (2, 1 + 3040 // 160), (4, 1 + 1040 // 160), (5, 1)]),
        (500 + 1000 + 160, [(1, 1)]),  # it fits to the byte, the second draw's share counted
        (500 + 1000 + 159, []),
    ],
)
def test_volumes_lose_draws_as_the_batch_grows(results, memory, table):
    assert volume_table(volumes(results, memory)) == table


@pytest.mark.parametrize(("memory", "told"), [(5700, None), (1660, True), (1000, None)])
def test_volumes_are_judged_only_by_what_holds_for_every_batch(results, memory, told):
    (found,) = (f for f in judge(volumes(results, memory)) if f.claim.startswith("With volumes"))
    assert found.held is told
    assert ("depends on the batch" in found.measured) == (memory == 5700)
    assert "1 iterations" not in found.measured


@pytest.mark.parametrize(("ours", "told"), [(550, True), (700, True), (701, False)])
def test_our_hundred_draws_are_judged_where_direct_has_filled_the_memory(results, ours, told):
    found = finding(volumes(results, 5700, ours=ours), "With ours, M = 100")
    assert found.held is told
    assert "batch 5" in found.measured
    assert finding(volumes(results, 1000), "With ours, M = 100").held is None


def changed(results: Results, kind: str, field: str, factor: float) -> Results:
    return Results(results.settings, [row | ({field: row[field] * factor} if row["kind"] == kind else {})
                                      for row in results.rows])  # fmt: skip


def finding(results: Results, words: str):
    (found,) = (f for f in judge(results) if words in f.claim)
    return found


@pytest.fixture
def dense(results):
    """As if the network were the paper's smaller model."""
    return Results(results.settings, [row | ({"network": SMALLER} if "network" in row else {}) for row in results.rows])


def test_the_papers_sentence_is_judged_on_its_own_estimate(results, dense):
    assert finding(results, "up to 1000 times more").held is None, "no DenseNet at this scale"
    (direct,), (ours,) = dense.of("network"), dense.of("repar")
    same = direct["really_one"] / ours["bytes"]
    for factor, told in ((same, True), (1.1 * same, False)):
        found = finding(changed(dense, "repar", "bytes", factor), "up to 1000 times more")
        assert found.held is told
        assert "`repar`" in found.measured


def test_stats_is_judged_as_ours(results):
    assert finding(results, "By `stats`").held
    grown = finding(changed(results, "network", "ours_many", 2.0), "By `stats`")
    assert grown.ours
    assert grown.held is False
    roomy = Results(replace(results.settings, memory=10**10), results.rows)  # a direct M above 1000
    assert finding(roomy, "By `stats`").held is False


def test_the_batch_is_compared_at_the_largest_direct_m(results, dense):
    assert finding(results, "batch size").held is None, "no DenseNet at this scale"
    assert finding(dense, "batch size").held
    (prediction,), (row,) = predictions(results).values(), results.of("repar")
    assert f"with M = {prediction['mc']}, its largest" in finding(dense, "batch size").measured
    full = results.settings.memory / row["bytes"]  # nothing is left for more examples
    assert finding(changed(dense, "repar", "bytes", full), "batch size").held is False


def test_one_network_is_named_once(results):
    assert finding(results, "By `stats`").measured.count("small_conv") == 1


def test_sizes_are_readable(results):
    assert size_text(0.00585938 * GIB) == "6 MiB"
    assert "within 6 MiB" in finding(results, "The predicted M").measured


def test_the_networks_of_all_scales_exist():
    for settings in EXPERIMENT.settings.values():
        assert {*settings.networks, *settings.runs, "unet3d_encoder"} <= set(MODELS)
    assert set(PAPER) <= set(EXPERIMENT.settings["cpu"].networks)
