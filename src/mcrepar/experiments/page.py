"""What is written of an experiment: the facts for programs, and a page for readers."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mcrepar import __version__
from mcrepar.experiments.experiment import Experiment, Finding, Request, Results, markdown, verdict

_SMOKE = " The scale tiny is a smoke test: no verdict on the paper."


def facts_of(
    request: Request, name: str, experiment: Experiment, results: Results, findings: Sequence[Finding], seconds: float
) -> dict[str, Any]:
    """result.json: the verdict, all numbers, and how they came about.

    Args:
        request: what was asked for.
        name: of the experiment.
        experiment: itself.
        results: what was measured.
        findings: what was judged.
        seconds: that all parts took.
    """
    return {
        "name": name,
        "where": experiment.where,
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        "scale": request.scale,
        "seed": request.seed,
        "command": request.command(name),
        "seconds": round(seconds, 1),
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"mcrepar": __version__, "experiment": experiment.version, **_versions()},
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
    on, versions = facts["machine"], facts["versions"]
    rows = [[f"{f.claim}{' (not the paper)' if f.ours else ''}", f.measured, f.word] for f in findings]
    tables = experiment.tell(results)
    sections = [
        f"# {experiment.title}",
        f"**The paper ({experiment.where}).** {experiment.claim}",
        f"**Measured here: {facts['verdict']}.**{_SMOKE if facts['scale'] == 'tiny' else ''}",
        markdown(["sentence", "measured", "held"], rows),
        f"![{experiment.title}](figure.png)",
        f"**How.** {experiment.method}",
        *([tables] if tables else []),
        "## Again",
        f"```\n{facts['command']}\n```",
        f"Scale {facts['scale']}, seed {facts['seed']}; {facts['seconds']:,.0f} s on {on['cpu']}, {on['cores']} cores "
        f"({on['threads']} used), {on['system']}; mcrepar {versions['mcrepar']} (experiment version "
        f"{versions['experiment']}), torch {versions['torch']}, Python {versions['python']}; finished "
        f"{facts['finished']}. All numbers are in `result.json`.",
    ]
    return "\n\n".join(sections) + "\n"


def cpu_name() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine() -> dict[str, Any]:
    """What the numbers were taken on, without its name or paths."""
    import torch

    return {
        "cpu": cpu_name(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }


def _versions() -> dict[str, str]:
    import numpy
    import torch

    return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": numpy.__version__}
