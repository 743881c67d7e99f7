"""Numbers in words: what a reader may conclude, and what not."""

import pytest
from scipy.stats import binomtest

from mcrepar.metrics import METRICS, MetricRow
from mcrepar.workbench.evaluation.words import metric_rows, notes, ood_rows, percent, shown, tiles, verdict


def a_set(tau, share, accuracy, count=100):
    return {"tau": tau, "share": share, "accuracy": accuracy, "count": count, "low": 0.1, "high": 0.9}


def found(sets=(), accuracy=0.9, **more):
    base = {
        "task": "classification",
        "data": {"name": "mine", "split": "test", "count": 1234, "size": [8, 8], "simulated": False},
        "model": {"name": "net"},
        "draws": 100,
        "in": {"accuracy": accuracy, "nll": 0.3, "ece": 0.012, "mutual_information": 0.1},
        "mean_weights": {"accuracy": 0.88, "nll": 0.5, "ece": 0.1, "mutual_information": 0.0},
        "commonest_class": 0.6,
        "confidence_sets": list(sets),
        "ood": {},
        "notes": [],
    }
    return {**base, **more}


def test_the_sentence_of_the_verdict():
    head, lines = verdict(found([a_set(0.9, 0.71, 0.992)], accuracy=0.93))
    assert head == "Right in 93.0 % of 1,234 test images"
    rest = (0.93 - 0.71 * 0.992) / 0.29
    assert lines[0] == (
        f"Right in 99.2 % of the 71.0 % where at least 90 % of draws agree, in {100 * rest:.1f} % of the others."
    )
    assert lines[1] == "Its confidence differs from its accuracy by 1.2 points on average (ECE 0.012)."


def test_a_set_of_nothing_and_a_set_of_everything():
    assert verdict(found([a_set(0.9, 0.0, None, 0)]))[1][0] == "For no example do 90 % of the draws agree."
    assert verdict(found([a_set(0.9, 1.0, 0.9)]))[1][0] == "At least 90 % of the draws agree on all of them."


def test_one_draw_agrees_with_itself_and_is_no_vote():
    assert not any("draws agree" in line for line in verdict(found([a_set(0.9, 1.0, 0.9)], draws=1))[1])


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.9996, "> 99.9 %"), (0.9994, "99.9 %"), (0.0001, "< 0.1 %"), (0.5, "50.0 %")],
)
def test_nothing_is_rounded_to_certainty(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(("value", "text"), [(1234.5678, "1,234.568"), (0.0, "0.000"), (-0.5, "-0.500"), (None, "-")])
def test_numbers(value, text):
    assert shown("nll", value) == text


def test_tiles_say_how_sure_the_accuracy_is_and_what_guessing_gives():
    first, *_, last = tiles(found([a_set(0.9, 0.71, 0.992)], accuracy=0.9))
    assert first["value"] == "90.0 %"
    oracle = binomtest(1111, 1234).proportion_ci(0.95, method="wilson")
    assert f"{100 * oracle.low:.1f} % to {100 * oracle.high:.1f} %" in first["note"]
    assert "60.0 %" in first["note"]
    assert (last["title"], last["value"]) == ("Confident in", "71.0 %")


def test_rows_have_the_words_of_the_table():
    for row, name in zip(metric_rows(found()), found()["in"], strict=True):
        assert (row["title"], row["meaning"]) == (METRICS[name].title, METRICS[name].meaning)
    assert metric_rows(found())[1]["mean"] == "0.500"
    assert metric_rows(found())[-1]["mean"] == "-"  # one network has no mutual information


def test_foreign_sets_and_their_notes():
    scores = {"auroc": 0.9, "aupr": 0.8, "fpr95": 0.25}
    about = {"count": 7, "score": "entropy", **scores, "by_score": {"mutual_information": scores},
             "notes": ["resized"], "simulated": True, "in": {"accuracy": 0.5, "nll": 1.0, "ece": 0.2}}  # fmt: skip
    results = found(ood={"black": about}, notes=["the run is stopped"])
    rows = ood_rows(results)
    assert [row["name"] for row in rows] == ["black", ""]
    assert [row["score"] for row in rows] == ["entropy", "mutual information"]
    assert rows[0]["fpr95"] == "25.0 %"
    assert notes(results) == [
        "The run is stopped.",
        "black: resized.",
        "black: SIMULATED data.",
        "black has the same classes: Accuracy 50.0 %, NLL 1.000, ECE 0.200.",
    ]
    assert (
        "black data look more uncertain than in-distribution data in 90.0 % of all comparisons." in verdict(results)[1]
    )


def test_a_new_metric_is_one_row_and_its_number(monkeypatch):
    monkeypatch.setitem(METRICS, "gini", MetricRow("Gini", "inequality of the probabilities", "higher", lambda c: 0.25))
    results = found()
    results["in"]["gini"] = 0.25
    row = metric_rows(results)[-1]
    assert (row["title"], row["value"], row["sign"]) == ("Gini", "0.250", "\u2191")
