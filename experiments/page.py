"""What is written of an experiment: the facts for programs, and a page for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from experiments.experiment import Experiment, Finding, Request, Results, Row, markdown, verdict
from mcrepar import __version__

_SMOKE = " The scale tiny is a smoke test: no verdict on the paper."


def facts_of(
    request: Request,
    name: str,
    experiment: Experiment,
    results: Results,
    findings: Sequence[Finding],
    records: Sequence[Row],
) -> dict[str, Any]:
    """result.json: the verdict, all numbers, and how they came about.

    Args:
        request: what was asked for.
        name: of the experiment.
        experiment: itself.
        results: what was measured.
        findings: what was judged.
        records: of the parts as they are stored: how long each took, when it ended and on what.
    """
    machines = [record["machine"] for record in records]
    return {
        "name": name,
        "where": experiment.where,
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        "scale": request.scale,
        "seed": request.seed,
        "command": request.command(name),
        "seconds": round(sum(record["seconds"] for record in records), 1),
        "finished": max(record["finished"] for record in records),
        "machines": [on for k, on in enumerate(machines) if on not in machines[:k]],
        "versions": {"mcrepar": __version__, "experiment": experiment.version},
        "settings": asdict(results.settings),
        "measured": list(results.rows),
    }


def page_of(experiment: Experiment, results: Results, findings: Sequence[Finding], facts: Mapping[str, Any]) -> str:
    """README.md: claim, verdict, what was measured beside it, figure, how and on what.

    Args:
        experiment: itself.
        results: what was measured.
        findings: what was judged.
        facts: those of result.json.
    """
    versions = facts["versions"]
    rows = [[f"{f.claim}{' (not the paper)' if f.ours else ''}", f.measured, f.word] for f in findings]
    tables = experiment.tell(results)
    sections = [
        f"# {experiment.title}",
        f"**The paper ({experiment.where}).** {experiment.claim}",
        f"**Measured here: {facts['verdict']}.**{_SMOKE if facts['scale'] == 'tiny' else _why(experiment, facts)}",
        markdown(["sentence", "measured", "held"], rows),
        f"![{experiment.title}](figure.png)",
        f"**How.** {experiment.method}",
        *([tables] if tables else []),
        "## Again",
        f"```\n{facts['command']}\n```",
        f"Scale {facts['scale']}, seed {facts['seed']}; {facts['seconds']:,.0f} s on "
        f"{' and '.join(map(_machine_text, facts['machines']))}; mcrepar {versions['mcrepar']} (experiment version "
        f"{versions['experiment']}); the last part ended {facts['finished']}. All numbers are in `result.json`.",
    ]
    return "\n\n".join(sections) + "\n"


def _why(experiment: Experiment, facts: Mapping[str, Any]) -> str:
    """Why this scale decides nothing, where that is so."""
    reason = experiment.undecided.get(facts["scale"])
    return f" {reason}" if reason else ""


def _machine_text(on: Mapping[str, Any]) -> str:
    device = "" if on["device"] == "cpu" else f"{on['device']}, "
    return (
        f"{device}{on['cpu']}, {on['cores']} cores ({on['threads']} used), {on['system']}, torch {on['torch']}, Python "
        f"{on['python']}"
    )
