from dataclasses import replace
from pathlib import Path

import pytest

from experiments import convergence, fig8_left
from experiments.experiment import Bench, Finding, Part, Results, part_seed
from experiments.fig7 import EXPERIMENT, LABELS, OF_WHOM, SENTENCES, draw, judge, runs, tell
from experiments.store import fingerprint
from experiments.studies import parts, training_of
from experiments.training_runs import TAUS
from mcrepar.models import MODELS, model
from tests.experiments.replications import made_up
from tests.experiments.tiny import held, tiny

pytestmark = pytest.mark.slow

CPU = EXPERIMENT.settings["cpu"]
RIGHT = {"deterministic": 0.87, "radial": 0.885, "normal": 0.86, "radial-whole": 0.865, "normal-whole": 0.1,
         "published": 0.865}  # fmt: skip
WHOLE, NOISE, OURS = (f"({LABELS[name]})" for name in OF_WHOM)
RISES, SURE, SHARE, ALMOST, DROP = (sentence.text for sentence in SENTENCES)


def run(part: Part, accuracy=0.0, sure=0.95, share=0.95, wide=0.001, failed=(), empty=(), information=None) -> dict:
    """A run whose sets from 0.75 on hold a share of the data and are right in `sure` of them."""
    name, k = part.given["variant"], part.given["replication"]
    row = made_up("resnet8", 100, k, (accuracy or RIGHT[name]) + wide * (k - 1))
    for found in row["sets"]:
        if found["tau"] >= 0.75:
            found |= {"share": share + wide * (k - 1), "accuracy": sure + wide * (k - 1)}
        if found["tau"] in empty:
            found |= {"share": 0.0, "accuracy": None}
    row["scores"]["mutual_information"] = information or (1e-5 if name == "published" else 0.1)
    return {**row, **part.given, "failed": "nan" if k in failed else None}


def results(changed: dict | None = None, network: str = "resnet8", scale: str = "cpu") -> Results:
    """All parts as the paper would have them, three of every variant, but for some of a network, by variant."""
    settings = EXPERIMENT.settings[scale]
    studies = [replace(s, variants=tuple(replace(v, most=None) for v in s.variants)) for s in settings.studies]
    settings = replace(settings, studies=tuple(studies))
    return Results(settings, [
        run(part, **((changed or {}).get(part.given["variant"], {}) if part.given["study"] == network else {}))
        for part in parts(settings)
    ])  # fmt: skip


def of(found: list[Finding], *words: str) -> Finding:
    (finding,) = (f for f in found if all(word in f.claim for word in words))
    return finding


def test_tiny(tmp_path):
    result = tiny("fig7", tmp_path)
    rows = result["measured"]
    assert [row["variant"] for row in rows] == [v for v in LABELS for _ in range(1 if v == "published" else 2)]
    assert min(row["scores"]["accuracy"] for row in rows) > 0.5, "of ten classes"
    assert [row["asked"] for row in rows] == [1, 1, *[5] * 9]
    assert max(abs(row["scores"]["mutual_information"]) for row in rows[:2]) < 1e-6
    assert rows[2]["scores"] != rows[3]["scores"], "replications have seeds of their own"
    assert set(held(result)) == {None}, "digits tell nothing about CIFAR-10"
    assert result["verdict"] == "inconclusive at this scale"


def test_the_paper_would_hold():
    found = judge(results())
    assert all(f.held for f in found), [f.claim for f in found if not f.held]
    assert len(found) == len(OF_WHOM) * len(SENTENCES) + 2


def test_tempered_sentences_are_ours():
    assert [f.ours for f in judge(results())] == [False] * 10 + [True] * 5 + [False, True]


@pytest.mark.parametrize("variant", OF_WHOM)
@pytest.mark.parametrize(
    ("sentence", "changed", "told"),
    [
        (RISES, {"accuracy": 0.8, "sure": 0.9}, True),
        (RISES, {"accuracy": 0.8, "sure": 0.75}, False),
        (RISES, {"accuracy": 0.8, "sure": 0.802}, None),
        (RISES, {"accuracy": 0.8, "sure": 0.9, "empty": (1.0,)}, True),
        (RISES, {"empty": TAUS[1:]}, None),
        (SURE, {"sure": 0.92}, True),
        (SURE, {"sure": 0.88}, False),
        (SURE, {"sure": 0.92, "wide": 0.02}, None),
        (SURE, {"empty": (1.0,)}, None),
        (SHARE, {"share": 0.86}, True),
        (SHARE, {"share": 0.84}, False),
        (SHARE, {"share": 0.86, "wide": 0.02}, None),
        (SHARE, {"empty": (0.75,), "wide": 0.0}, False),
        (ALMOST, {"share": 0.88}, True),
        (ALMOST, {"share": 0.86}, False),
        (ALMOST, {"share": 0.88, "wide": 0.02}, None),
        (DROP, {"accuracy": 0.86}, True),
        (DROP, {"accuracy": 0.84}, False),
        (DROP, {"accuracy": 0.855, "wide": 0.02}, None),
    ],
)
def test_each_sentence_holds_fails_and_is_inconclusive(variant, sentence, changed, told):
    assert of(judge(results({variant: changed})), sentence, f"({LABELS[variant]})").held is told


@pytest.mark.parametrize("sentence", [RISES, SURE, SHARE, ALMOST, DROP])
def test_no_run_that_ended_is_inconclusive(sentence):
    finding = of(judge(results({"published": {"failed": (0, 1, 2)}})), sentence, NOISE)
    assert finding.held is None
    assert finding.measured == "resnet8 no run ended"


def test_an_empty_set_is_no_accuracy_of_0():
    found = results({"radial-whole": {"empty": (1.0,)}})
    assert of(judge(found), SURE, WHOLE).measured == "resnet8 empty"
    assert "| empty |" in tell(found)


@pytest.mark.parametrize(
    ("network", "sentence", "changed", "told"),
    [
        ("resnet20", DROP, {"accuracy": 0.89}, True),
        ("resnet20", DROP, {"accuracy": 0.87}, None),
        ("resnet20", DROP, {"accuracy": 0.83}, None),
        ("resnet20", DROP, {"accuracy": 0.81}, False),
        ("resnet20", SURE, {"sure": 0.92}, None),
        ("resnet20", SURE, {"sure": 0.86}, False),
        ("densenet_bc16_12", SHARE, {"share": 0.81}, False),
        ("densenet_bc16_12", ALMOST, {"share": 0.5}, True),
    ],
)
def test_a_single_run_is_judged_only_beyond_its_noise(network, sentence, changed, told):
    finding = of(judge(results({"radial": changed}, network)), sentence, OURS)
    assert finding.held is told
    assert ("(fewer than 3 runs, and less than 3 points from the limit)" in finding.measured) is (told is None)


def test_a_failure_outweighs_what_is_inconclusive():
    found = results({"radial": {"accuracy": 0.7, "sure": 0.75}}, "resnet20")
    found.rows[:] = [{**row, "failed": "nan"} if row["study"] == "densenet_bc16_12" else row for row in found.rows]
    assert of(judge(found), DROP, OURS).held is False


def test_without_a_deterministic_run_there_is_no_drop():
    finding = of(judge(results({"deterministic": {"failed": (0, 1, 2)}})), DROP, WHOLE)
    assert (finding.held, finding.measured) == (None, "resnet8 without a deterministic run")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, True),
        ({"normal-whole": {"failed": (0, 1, 2)}}, True),
        ({"normal-whole": {"accuracy": 0.8}}, False),
        ({"normal-whole": {"accuracy": 0.8, "failed": (0, 1)}}, False),
        ({"radial-whole": {"accuracy": 0.3, "sure": 0.3}}, None),
        ({"radial-whole": {"accuracy": 0.3, "sure": 0.3}, "normal-whole": {"accuracy": 0.8}}, None),
        ({"radial-whole": {"failed": (0, 1, 2)}}, None),
    ],
)
def test_gaussian_posteriors(changed, told):
    assert of(judge(results(changed)), "Without fixes").held is told


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"published": {"information": 0.009}}, True),
        ({"published": {"information": 0.011}}, False),
        ({"radial-whole": {"failed": (0, 1, 2)}}, None),
        ({"published": {"failed": (0, 1, 2)}}, None),
    ],
)
def test_noise_that_does_not_vanish_is_noticed(changed, told):
    assert of(judge(results(changed)), "nearly none").held is told


def test_digits_are_not_judged():
    assert {f.held for f in judge(results(scale="tiny"))} == {None}


def test_a_run_that_diverged_is_counted():
    found = results({"radial-whole": {"failed": (1,)}, "normal-whole": {"failed": (0, 1, 2)}})
    assert "86.50 ± 0.14 % (1 diverged)" in of(judge(found), "Without fixes").measured
    assert "| resnet8 | Radial, whole KL | 2 (1 diverged) | 86.50 ± 0.14 |" in tell(found)
    assert "| resnet8 | Gaussian, whole KL | 0 (3 diverged) | - |" in tell(found)
    (ended,) = runs(found, "radial-whole")
    assert (len(ended.rows), len(ended.plain)) == (2, 3)
    draw(found)


@pytest.mark.parametrize(
    ("other", "name", "variant"),
    [
        (fig8_left, "resnet8", "radial"),
        (convergence, "resnet8", "radial"),
        (convergence, "resnet8-whole", "radial-whole"),
    ],
)
def test_runs_of_other_experiments_are_found(other, name, variant):
    def folder(part: Part, settings) -> str:
        training, options = training_of(part, settings)
        return training.config(Bench(settings, part_seed(0, part.key), Path("data"), Path("runs")), **options).out

    theirs = other.EXPERIMENT.settings["cpu"]
    for k in range(3):
        wanted = {"study": "resnet8", "variant": variant, "replication": k}
        (part,) = (p for p in parts(CPU) if p.given == wanted)
        (their,) = (p for p in parts(theirs) if p.given == {"study": name, "variant": "M = 100", "replication": k})
        assert folder(part, CPU) == folder(their, theirs)


def test_no_part_of_other_options_is_used():
    net, *rest = CPU.studies
    first, *others = net.variants
    for changed in ({"options": {**first.options, "start_std": 1e-5}}, {"random": True}):
        settings = replace(CPU, studies=(replace(net, variants=(replace(first, **changed), *others)), *rest))
        other = replace(EXPERIMENT, settings={"cpu": settings})
        assert fingerprint(other, "cpu", 0) != fingerprint(EXPERIMENT, "cpu", 0)


@pytest.mark.parametrize(("scale", "asked"), [("cpu", 20), ("paper", 100)])
def test_the_networks_exist(scale, asked):
    for part in parts(EXPERIMENT.settings[scale]):
        training, options = training_of(part, EXPERIMENT.settings[scale])
        assert training.asked == (1 if part.given["variant"] == "deterministic" else asked)
        assert training.model in MODELS
        assert ("beta" in options) == (part.given["variant"] in ("deterministic", "radial", "normal"))
    for net in EXPERIMENT.settings[scale].studies:
        assert {variant.name for variant in net.variants} <= set(LABELS)
        if net.training.options.get("model_options"):
            model(net.training.model, size=(32, 32), **net.training.options["model_options"])
