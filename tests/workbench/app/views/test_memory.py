"""The calculator against its own rule, and the benchmark as it was measured."""

import json
from pathlib import Path

import pytest

from mcrepar.errors import SupportMismatchError
from mcrepar.models import MODELS
from mcrepar.workbench.app.memory_budget import Step, example_bytes, random_weights
from mcrepar.workbench.app.views.memory import MEMORY, benchmark

MEASURED = Path(__file__).parents[4] / "benchmarks" / "results" / "kl.json"


def answer(**texts: str):
    values, errors = MEMORY.read(MEMORY.texts(texts))
    assert errors == {}
    return MEMORY.compute(values)


def test_the_shipped_measurements_are_the_benchmark_s():
    assert benchmark() == json.loads(MEASURED.read_text())


def test_the_calculator_is_the_library_s():
    found = answer(network="ResNet-18", batch="64", memory="8", iterations="500")
    step = Step(random_weights("preact_resnet18"), example_bytes("preact_resnet18"), 64, "radial", "normal")
    most = step.most_draws(8e9)
    assert found.headline.startswith(f"{most:,} direct iterations fit into 8 GB")
    rows = {row[0]: row for row in found.tables[0].rows}
    assert rows["direct"][1] == pytest.approx(step.needed("direct", 500) / 1e9)
    assert rows["direct"][2:4] == ("no", most)
    assert rows["stats"][2:4] == ("yes", "any")
    assert rows["exact"][1] < rows["stats"][1] < rows["direct"][1]


def test_the_zoo_is_whole_and_the_chosen_one_stands_out():
    found = answer(network="alexnet")
    zoo = next(f for f in found.figures if f.name == "zoo")
    assert set(zoo.traces[0]["y"]) == set(MODELS)
    place = zoo.traces[0]["y"].index("alexnet")
    assert [k for k, colour in enumerate(zoo.traces[0]["marker"]["color"]) if colour == "@series2"] == [place]


def test_a_number_of_weights_has_no_examples():
    found = answer(network="10^9", memory="11")
    assert found.headline.startswith("Not one direct iteration fits")
    assert any("are not counted" in note for note in found.notes)


def test_time_is_scaled_from_the_measurements():
    curves = benchmark()["curves"]
    found = answer(network=str(curves["weights"]), iterations="1")
    rows = {row[0]: row for row in found.tables[0].rows}
    for method, points in curves["points"].items():
        assert rows[method][4] == pytest.approx(points[0]["seconds"])
    assert rows["regen"][4] is None  # was not measured


def test_every_measured_point_is_shown():
    points = benchmark()["curves"]["points"]
    assert len(answer().tables[2].rows) == sum(map(len, points.values()))


def test_a_pair_without_a_kl_is_refused():
    with pytest.raises(SupportMismatchError):
        answer(posterior="radial", prior="gamma")


def test_a_pair_without_a_tuple_offers_what_is_left():
    methods = [row[0] for row in answer(prior="laplace").tables[0].rows]
    assert methods == ["direct", "stream", "regen", "quad"]
