"""The tables of quality_uci.py in Markdown, for readme.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

METHODS = {  # in benchmarks/quality_uci.py: their names for readers
    "deterministic": "deterministic network",
    "deterministic, validated noise": "deterministic network, noise from validation errors",
    "deterministic, heteroscedastic": "deterministic network, noise that depends on the input",
    "dropout": "MC dropout",
    "dropout, heteroscedastic": "MC dropout, noise that depends on the input",
    "normal, local": "normal posterior, normal prior",
    "rank1 .3": "rank-1 posterior",
    "hierarchical .3": "normal posterior, hierarchical prior",
    "hierarchical .3, heteroscedastic": "the same, noise that depends on the input",
}
SCORES = {
    "log_likelihood": "Test log-likelihood on UCI data",
    "rmse": "Test RMSE on UCI data, in the units of the targets",
    "coverage_90": "Share of test targets inside of their 90 % intervals on UCI data",
}


def uci_block(found: dict[str, Any], score: str = "log_likelihood", names: Iterable[str] = tuple(METHODS)) -> list[str]:
    """A score of the test parts of UCI data, for the methods that were run on all of them."""
    by = {(run["method"], run["task"]): run for run in found.values() if run["task"].startswith("uci-")}
    tasks = sorted(task for method, task in by if method == "deterministic")
    methods = [name for name in names if all((name, task) in by for task in tasks)]
    if not tasks:
        return []
    rows = [f"| {METHODS[name]} | {' | '.join(_cell(by[name, task], score) for task in tasks)} |" for name in methods]
    head = f"{SCORES[score]} (mean ± standard error, 20 splits, equal steps, beta = 1; ours last):"
    titles = " | ".join(task.removeprefix("uci-") for task in tasks)
    return [head, "", f"| network | {titles} |", "|---|" + "---|" * len(tasks), *rows]


def uci_short_block(found: dict[str, Any]) -> list[str]:
    """The fair baseline and what we recommend."""
    return uci_block(found, names=("deterministic, validated noise", "hierarchical .3"))


def _cell(run: dict[str, Any], score: str) -> str:
    return f"{run['mean']['test'][score]:.2f} ± {run['standard_error']['test'][score]:.2f}"
