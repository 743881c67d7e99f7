"""Our methods against other libraries: python benchmarks/peers.py [--quick] [--out FOLDER] [--figures FOLDER].

One training step of a Bayesian PreActResNet-18, the same batch for all: seconds, peak memory and saved bytes against
the number M of draws, each as far as it goes; and points of correctness, measured on every library. The libraries
live in an environment of their own, which is made when it is missing; without it they are skipped, and the result says
so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers_checks
import peers_environment
import peers_figure
import peers_steps
import readme
from peers_libraries import LIBRARIES
from peers_steps import FLAT, PRIOR, STEPS, Step
from timing import machine

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "results", HERE.parent / "docs" / "figures"
GRID = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 10**6)
JUDGED = 1000  # M of the targets, and the last M to which a curve that ends is extrapolated
BUDGET, MOST_SECONDS = 8 * 2**30, 60.0  # where a curve ends: bytes that a process may add, seconds of a step
FULL = {"network": {}, "batch": 32, "rounds": 5, "enough": 10.0, "listen": 0.5, "budget": BUDGET}
QUICK = {**FULL, "network": {"depths": [1, 1], "width": 8}, "batch": 4, "rounds": 1, "listen": 0.01}
FASTER = (  # what should be how many times faster than what, at M = 1000
    ("stats", "gradient accumulation", 500.0),
    ("exact", "gradient accumulation", 500.0),
    ("stats", "per-draw loop", 50.0),
    ("exact", "per-draw loop", 50.0),
    ("repar", "gradient accumulation", 10.0),
)
OURS = Path(sys.executable)
QUANTITIES = ("seconds", "peak_bytes", "saved_bytes")
Point = dict[str, Any]
Run = Callable[[Path, dict[str, Any]], dict[str, Any]]


@dataclass
class Curve:
    """What was measured of a step, and why it ended."""

    step: Step
    points: list[Point] = field(default_factory=list)
    end: dict[str, Any] | None = None

    def predicted(self, key: str, draws: int) -> float:
        """Linear in M through the last two points; through the only one, proportional to M; flat where it must be."""
        last = self.points[-1]
        if key != "seconds" and not self.step.grows:
            return float(last[key])
        if len(self.points) == 1:
            return float(last[key] * draws / last["M"])
        before = self.points[-2]
        slope = max(0.0, (last[key] - before[key]) / (last["M"] - before["M"]))
        return float(last[key] + slope * (draws - last["M"]))

    def goes_on(self, draws: int) -> bool:
        """Whether the step is worth taking with so many draws; where not, the curve ends."""
        if not self.step.has_draws:
            return not self.points and self.end is None
        if self.end is None and self.points and (seconds := self.predicted("seconds", draws)) > MOST_SECONDS:
            self.end = {"M": draws, "reason": "time", "seconds": seconds}
        return self.end is None

    def add(self, draws: int, found: dict[str, Any]) -> None:
        if "failed" in found:
            self.end = {"M": draws, "reason": found["failed"], "error": found["error"]}
        else:
            self.points.append({"M": draws, "extrapolated": False, **found})

    def extrapolate(self, grid: Sequence[int]) -> None:
        """Hollow points: the M at which it ended, and up to M = 1000."""
        if not self.points or self.end is None or self.end["reason"] == "error":
            return
        rest = [m for m in grid if m >= self.end["M"] and m <= max(JUDGED, self.end["M"])]
        hollow = [{"M": m, "extrapolated": True, **{k: self.predicted(k, m) for k in QUANTITIES}} for m in rest]
        self.points += hollow

    def at(self, draws: int) -> Point | None:
        """The point of this M, or the only one of a step without M; None where the curve ended with an error."""
        return next((p for p in self.points if p["M"] == draws or not self.step.has_draws), None)


def step_here(python: Path, case: dict[str, Any]) -> dict[str, Any]:
    """A step of ours without a process of its own, which costs seconds: for a quick run."""
    return peers_steps.attempt(case) if python == OURS else step_apart(python, case)


def step_apart(python: Path, case: dict[str, Any]) -> dict[str, Any]:
    return child(python, "peers_steps.py", json.dumps(case))


def child(python: Path, script: str, argument: str) -> dict[str, Any]:
    """The JSON line of a script run in a process of its own; how it ended, where it left none."""
    try:
        done = subprocess.run([str(python), str(HERE / script), argument], capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        return {"failed": "time", "error": "not done after 900 s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    last = (done.stderr.strip().splitlines() or [""])[-1].replace(str(HERE.parent), "")
    return {"failed": "error", "error": f"exit code {done.returncode}: {last[:120]}"}


def curves(pythons: dict[str, Path], settings: dict[str, Any], grid: Sequence[int], run: Run) -> dict[str, Curve]:
    """Every step whose library is there, against M; for each M all steps take their turn."""
    found = {name: Curve(step) for name, step in STEPS.items() if step.library in pythons}
    for draws in grid:
        for name in [name for name, curve in found.items() if curve.goes_on(draws)]:
            print(f"measuring {name}, M = {draws}", file=sys.stderr, flush=True)
            found[name].add(draws, run(pythons[STEPS[name].library], {**settings, "step": name, "M": draws}))
    for curve in found.values():
        curve.extrapolate(grid)
    return found


def targets(found: dict[str, Curve], draws: int) -> list[dict[str, Any]]:
    """What the project set itself at M = 1000, beside what was reached; an end that was not measured is named.

    A target whose step failed is missed, with no ratio.
    """
    rows: list[dict[str, Any]] = []
    for what, against, target in FASTER:
        fast, slow = found[what].at(draws), found[against].at(draws)
        ratio = slow["seconds"] / fast["seconds"] if fast and slow else None
        guessed = [name for name, point in ((what, fast), (against, slow)) if point and point["extrapolated"]]
        rows.append({"what": f"{what} is faster than {against}", "M": draws, "ratio": ratio, "at least": target,
                     "met": ratio is not None and ratio >= target, "extrapolated": guessed})  # fmt: skip
    for what in FLAT:
        point = found[what].at(draws)
        ratio = point["saved_bytes"] / found[what].points[0]["saved_bytes"] if point else None
        rows.append({"what": f"saved bytes of {what}, against M = 1", "M": draws, "ratio": ratio, "at most": 1.0,
                     "met": ratio is not None and ratio <= 1,
                     "extrapolated": [what] if point and point["extrapolated"] else []})  # fmt: skip
    return rows


def interpreters(environment: Path, quick: bool) -> tuple[dict[str, Path], str]:
    """The Python of every library, and why the peers are skipped where they are."""
    ours, why = {"mcrepar": OURS}, ""
    python = peers_environment.interpreter(environment)
    if not quick:
        try:
            python = peers_environment.make(environment)
        except subprocess.CalledProcessError as error:
            why = f"their environment could not be made: exit code {error.returncode} of {error.cmd[1:4]}"
    if python is None:
        return ours, why or "their environment is not there, and a quick run makes none"
    return dict.fromkeys(LIBRARIES, python) | ours, ""


def measure(environment: Path, quick: bool) -> dict[str, Any]:
    pythons, why = interpreters(environment, quick)
    found_on, grid, settings = machine(), GRID[:2] if quick else GRID, QUICK if quick else FULL
    checks, broken = {}, {name: why for name in LIBRARIES if name not in pythons}
    for name, python in list(pythons.items()):
        here = quick and python == OURS
        checked = peers_checks.run(LIBRARIES[name]) if here else child(python, "peers_checks.py", name)
        if "failed" in checked:
            broken[name] = checked["error"]
            del pythons[name]
        else:
            checks[name] = checked
    found = curves(pythons, settings, grid, step_here if quick else step_apart)
    return {
        "quick": quick,
        "machine": found_on,
        "network": "preact_resnet18",
        "settings": settings,
        "pair": f"normal posterior, normal prior of scale {PRIOR}, float32: the pair that all have",
        "most seconds": MOST_SECONDS,
        "skipped": broken,
        "targets": targets(found, grid[-1] if quick else JUDGED),
        "steps": {
            name: {"library": c.step.library, "M is spent on": c.step.spends, "has M": c.step.has_draws,
                   "grows": c.step.grows, "points": c.points, "end": c.end}
            for name, c in found.items()
        },
        "checks": checks,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds, on a small network")
    parser.add_argument("--out", type=Path, help="folder of peers.json (default: benchmarks/results)")
    parser.add_argument("--figures", type=Path, help="folder of peers.png (default: that of --out, or docs/figures)")
    parser.add_argument("--environment", type=Path, default=peers_environment.FOLDER, help="where the peers live")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.out:
        parser.error("--quick needs --out: its numbers must not replace the measured ones")
    out, figures = arguments.out or RESULTS, arguments.figures or arguments.out or FIGURES
    for folder in (out, figures):
        folder.mkdir(parents=True, exist_ok=True)
    found = measure(arguments.environment, arguments.quick)
    if found["skipped"] and not arguments.out:
        why = "; ".join(f"{name}: {reason}" for name, reason in found["skipped"].items())
        sys.exit(f"peers.json: some libraries are missing ({why}); use --out to keep what was measured of the others")
    (out / "peers.json").write_text(json.dumps(found, indent=1) + "\n")
    peers_figure.draw(found, figures)
    if not arguments.out:
        for name in ("peers", "steps", "checks"):
            readme.rewrite(name)
    print("\n".join(readme.checks_block(found)))
    for row in found["targets"]:
        goal = f"at least {row['at least']:g}" if "at least" in row else f"at most {row['at most']:g}"
        reached = "not measured" if row["ratio"] is None else f"{row['ratio']:.2f}x"
        print(f"{row['what']}, M = {row['M']}: {reached} ({goal}: {'met' if row['met'] else 'missed'})")
    for name, why in found["skipped"].items():
        print(f"skipped {name}: {why}")


if __name__ == "__main__":
    main()
