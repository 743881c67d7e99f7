"""The tables of quality are those of the runs: means over corruptions, and goals that say what was not reached."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import quality_goals
import quality_rule
import quality_tables
import quality_uci_tables


def run(method, seed, accuracy=0.9, nll=0.3, ece=0.02, mutual_information=0.01, task="cifar10-resnet20"):
    scores = {"accuracy": accuracy, "nll": nll, "ece": ece, "mutual_information": mutual_information}
    part = {**scores, "accuracy_most_confident_half": 0.99}
    return {
        "task": task, "method": method, "seed": seed, "validation": part, "test": part,
        "ood svhn": {"entropy": 0.8, "mutual_information": 0.9},
        "corrupted blur": {**part, "accuracy": 0.5}, "corrupted contrast": {**part, "accuracy": 0.7},
    }  # fmt: skip


def uci():
    """By method, the log-likelihoods of the validation and the test part."""
    error = {"log_likelihood": 0.1, "rmse": 0.2, "coverage_90": 0.01}
    methods = {
        "deterministic": (-3.0, -3.1),
        "deterministic, validated noise": (-2.6, -2.6),
        "hierarchical .3": (-2.5, -2.5),
        "hierarchical .3, heteroscedastic": (-1.0, -1.1),
        "dropout": (-1.5, -1.6),
        "dropout, heteroscedastic": (-1.7, -1.2),
    }
    return [{"task": f"uci-{name}", "method": method, "standard_error": {"test": error},
             "mean": {part: {"log_likelihood": value, "rmse": 2 * index, "coverage_90": 0.9} for part, value
                      in zip(("validation", "test"), values, strict=True)}}
            for name in quality_goals.DROPOUT for index, (method, values) in enumerate(methods.items())]  # fmt: skip


def found(*runs):
    return {str(place): each for place, each in enumerate([*runs, *uci()])}


def test_runs_without_a_test_part_are_compared_by_the_rule_and_shown_in_no_other_table():
    chosen = {key: value for key, value in run("fan-in .3, auto", 0, nll=0.25, task="fashion-lenet5").items()
              if key in ("task", "method", "seed", "validation")}  # fmt: skip
    rows = found(run("fan-in .5, auto", 0, nll=0.25, task="fashion-lenet5"), chosen)
    assert "fan-in .3" not in "".join(quality_tables.classes_block(rows))
    text = "\n".join(quality_rule.rule_block(rows))
    assert "**`fan-in .3, auto`** | -0.250 / - (1)" in text
    assert "`fan-in .5, auto` -0.250 = `fan-in .3, auto` -0.250" in text


def test_corruptions_are_averaged():
    row = quality_tables.classes_block(found(run("rank1 normal .3", 0)))[-1]
    assert row.split(" | ")[-2:] == ["0.600", "0.300 |"]
    assert quality_tables.corrupted(run("rank1 normal .3", 0), "accuracy") == pytest.approx(0.6)


def test_the_short_table_has_what_we_recommend_and_its_rivals_by_names_for_readers():
    runs = [run(name, seed) for name in ("fan-in .2, one draw, SGD", "fan-in .3") for seed in (0, 1)]
    lines = quality_tables.short_classes_block(found(*runs, run("deterministic", 0, mutual_information=0.0)))
    rows = [line for line in lines if line.startswith("| ")][-3:]  # the head, and the methods in the order of the table
    assert rows[1] == "| deterministic network | 1 | 0.900 | 0.300 | 0.020 | - | 0.800 | - | 0.600 |"
    assert rows[2].startswith("| hierarchical prior, `scale=0.2` | 2 | 0.900 ± 0.000 |")
    assert rows[2].endswith("| 0.010 ± 0.000 | 0.800 ± 0.000 | 0.900 ± 0.000 | 0.600 ± 0.000 |")


def test_corruptions_are_shown_for_lenet_by_learning_rate():
    rows = [run(name, 0, task="fashion-lenet5") for name in ("fan-in .3, auto", "deterministic, Adam .01", "fan-in 1")]
    lines = quality_tables.corrupted_block(found(*rows))
    assert lines[-2:] == ["| deterministic, Adam .01 | 1 | 0.900 | 0.600 | 0.300 | 0.700 |",
                          "| `fan-in .3, auto` | 1 | 0.900 | 0.600 | 0.300 | 0.700 |"]  # fmt: skip


def test_every_network_is_shown_with_the_weight_decay_that_was_tuned_for_it():
    rows = [run(name, 0, nll=nll, task=task) for task, name in quality_tables.TUNED.items()
            for name, nll in ((name, 0.25), ("deterministic, weight decay .01", 0.2))]  # fmt: skip
    shown = [line for line in quality_tables.short_classes_block(found(*rows)) if "weight decay" in line]
    assert shown == ["| the same, weight decay tuned | 1 | 0.900 | 0.250 | 0.020 | 0.010 | 0.800 | 0.900 | 0.600 |"] * 2
    row = next(line for line in quality_goals.goals_block(found(
        run("deterministic", 0, task="fashion-lenet5"), run("fan-in 1", 0, task="fashion-lenet5"), *rows))
        if line.startswith("| Fashion"))  # fmt: skip
    assert "Others: weight decay tuned: 17 % lower" in row


def test_without_a_run_of_ours_the_goal_is_open():
    rows = quality_goals.goals_block(found(run("deterministic", 0)))
    row = next(row for row in rows if "ResNet-20" in row)
    assert "| not run |" in row
    assert "| open |" in row


def test_a_goal_that_is_missed_has_a_reason_and_one_that_is_reached_has_none():
    twin = run("deterministic", 0, nll=0.3, ece=0.03)
    missed = quality_goals.goals_block(found(twin, run("rank1 normal .3", 0, nll=0.29, ece=0.02)))
    row = next(row for row in missed if "ResNet-20, 24" in row)
    assert "accuracy: yes (+0.0 points), NLL: no (3 % lower), ECE: no (0.020)" in row
    assert "0.010 nats here; the goal asks for 0.030" in row
    reached = quality_goals.goals_block(found(twin, run("rank1 normal .3", 0, accuracy=0.897, nll=0.26, ece=0.009)))
    row = next(row for row in reached if "ResNet-20, 24" in row)
    assert "accuracy: yes (-0.3 points), NLL: yes (13 % lower), ECE: yes (0.009) | - |" in row


def test_the_fastest_training_is_held_against_the_goal():
    runs = [{**run("rank1 normal .3", seed), "seconds": [minutes * 30] * 2} for seed, minutes in ((0, 90), (1, 33))]
    row = next(
        row for row in quality_goals.goals_block(found(run("deterministic", 0), *runs)) if "ResNet-20, 24" in row
    )
    assert "at most 60 minutes on two cores" in row
    assert "time: yes (33 minutes of one core, the fastest run)" in row


def test_the_method_with_the_most_seeds_is_shown_and_then_the_best_on_the_validation_part():
    runs = [run("a", 0, nll=0.1), run("b", 0), run("b", 1), run("c", 0, nll=0.2), run("c", 1, nll=0.2)]
    methods = quality_tables.by_method(found(*runs))["cifar10-resnet20"]
    assert quality_goals.chosen(methods) == "c"
    assert quality_goals.chosen({"deterministic": [], "ivon": []}) is None


def test_validation_parts_choose_the_noise_of_uci_data():
    (row,) = (line for line in quality_goals.goals_block(found(run("deterministic", 0))) if line.startswith("| UCI"))
    assert "| -1.10, -1.10, -1.10, -1.10 |" in row
    assert "have -1.60, -1.60, -1.60, -1.60" in row, "the better test score was not chosen"


def test_a_set_that_neither_reaches_is_named_with_the_published_figure():
    rows = found(run("deterministic", 0))
    for each in rows.values():
        if each["task"] == "uci-concrete" and each["method"].startswith(("hierarchical", "dropout")):
            each["mean"]["test"]["log_likelihood"] = -3.0
    (row,) = (line for line in quality_goals.goals_block(rows) if line.startswith("| UCI"))
    assert "concrete: no" in row
    assert "On concrete neither has the published -2.93 on this budget |" in row


def test_a_missed_detection_has_a_reason_and_members_that_were_not_trained_are_named():
    ours = {**run("fan-in .2", 0), "ood svhn": {"entropy": 0.79, "mutual_information": 0.7}}
    twin = run("deterministic", 0, mutual_information=0.0)
    (row,) = (line for line in quality_goals.goals_block(found(twin, ours)) if line.startswith("| OOD"))
    assert "ResNet-20: no; members: open" in row
    assert "the entropy of the same network detects more (0.790). No members were trained on the ResNet-20 |" in row


def test_uci_tables_have_every_score():
    rows = found()
    rmse, coverage = (quality_uci_tables.uci_block(rows, score)[-1] for score in ("rmse", "coverage_90"))
    assert rmse.endswith(" | " + " | ".join(["6.00 ± 0.20"] * 4) + " |")
    assert coverage.endswith(" | " + " | ".join(["0.90 ± 0.01"] * 4) + " |")


def test_the_rule_ranks_by_validation_density_and_breaks_ties_by_detection():
    def of(method, nll, detection):
        outside = {"entropy": 0.8, "mutual_information": detection}
        return {**run(method, 0, nll=nll), "ood svhn": outside}

    runs = [of("fan-in .5", 0.2404, 0.7), of("fan-in .5, auto", 0.2396, 0.8), of("fan-in .5, one draw", 0.2304, 0.6)]
    lines = quality_rule.rule_block(found(run("deterministic", 0, mutual_information=0.0), *runs))
    (row,) = (line for line in lines if line.startswith("| forward | CIFAR-10, ResNet-20"))
    assert row.endswith("| `fan-in .5, one draw` -0.230, `fan-in .5, auto` -0.240 = `fan-in .5` -0.240 |")
    settings = [line for line in lines if line.startswith(("| the deterministic", "| `"))]
    assert settings[0] == "| the deterministic network | -0.300 / - (1) | - |"
    assert settings[1] == "| `fan-in .5, one draw` | -0.230 / 0.600 (1) | - |"
