import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.catalogue import EXPERIMENTS, find
from experiments.experiment import Finding, Request, Results, markdown, part_seed, verdict


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([True, True], "held"),
        ([False, False], "not held"),
        ([True, False], "held in part"),
        ([True, None], "held (1 of 2 judged)"),
        ([True, False, None], "held in part (2 of 3 judged)"),
        ([False, None, None], "not held (1 of 3 judged)"),
        ([None], "inconclusive at this scale"),
        ([], "inconclusive at this scale"),
    ],
)
def test_verdict(told, expected):
    assert verdict([Finding("a", "b", held) for held in told]) == expected


def test_our_own_sentences_do_not_count():
    findings = [Finding("the paper", "x", True), Finding("ours", "y", False, ours=True)]
    assert verdict([*findings, Finding("ours", "z", None, ours=True)]) == "held"
    assert verdict(findings) == "held"
    assert [finding.word for finding in findings] == ["yes", "no"]
    assert Finding("a", "b", None).word == "inconclusive"


def test_the_seed_of_a_part_depends_on_both():
    seeds = {part_seed(seed, key) for seed in range(5) for key in ("a", "b", "c")}
    assert len(seeds) == 15
    assert part_seed(3, "a") == part_seed(3, "a")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request("all"), "mcrepar reproduce fig4 --scale cpu"),
        (Request("fig4", "tiny", seed=3), "mcrepar reproduce fig4 --scale tiny --seed 3"),
        (Request("fig4", out=Path("my results")), "mcrepar reproduce fig4 --scale cpu --out 'my results'"),
        (Request("fig4", root=Path("secret")), "mcrepar reproduce fig4 --scale cpu --root DATA"),
    ],
    ids=["all", "seed", "out", "root"],
)
def test_the_command_of_a_request(request_, expected):
    assert request_.command("fig4") == expected


def test_markdown_keeps_bars_inside_cells():
    assert markdown(["a", "b"], [["|w|", 1]]).splitlines()[2] == r"| \|w\| | 1 |"


def test_rows_by_kind():
    results = Results(None, [{"kind": "a", "x": 1}, {"kind": "b"}, {"x": 2}])
    assert results.of("a") == [{"kind": "a", "x": 1}]


UNDECIDED = [(name, scale) for name in EXPERIMENTS for scale in find(name).undecided]


def test_a_scale_that_cannot_decide_decides_nothing_of_the_paper():
    """Neither what it seems to refute nor what it seems to confirm; our own sentences stay."""
    name, scale = UNDECIDED[0]
    found = [Finding("a", "1", True), Finding("b", "2", False), Finding("c", "3", True, ours=True)]
    experiment = replace(find(name), judge=lambda results: found)
    held = [f.held for f in experiment.findings(Results(None, []), scale)]
    assert held == [None, None, True]
    assert [f.held for f in experiment.findings(Results(None, []), "paper")] == [True, False, True]


@pytest.mark.parametrize(("name", "scale"), UNDECIDED)
def test_stored_results_say_that_their_scale_cannot_decide(name, scale):
    folder = Path(__file__).parents[2] / "experiments" / "results" / name
    facts, page = json.loads((folder / "result.json").read_text()), (folder / "README.md").read_text()
    assert facts["scale"] == scale
    assert facts["verdict"] == "inconclusive at this scale"
    assert all(f["held"] is None for f in facts["findings"] if not f["ours"])
    assert f"**Measured here: inconclusive at this scale.** {find(name).undecided[scale]}" in page
