"""Measure what is missing of an experiment, judge it, and write result.json, figure.png and README.md.

`python -m experiments.reproduce` writes the pages and figures in experiments/results anew from their result.json.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from experiments.catalogue import EXPERIMENTS, find
from experiments.experiment import (
    SCALES,
    Bench,
    Experiment,
    Finding,
    Request,
    Results,
    Row,
    markdown,
    part_seed,
    verdict,
)
from experiments.store import Store, fingerprint
from mcrepar import __version__
from mcrepar.errors import McreparError, ParameterError

Say = Callable[[str], None]
_SMOKE = "The scale tiny is a smoke test: no verdict on the paper."
# Lines are written out at once: a log file shows how far a run of hours has come.
_print: Say = partial(print, flush=True)


def reproduce(request: Request, say: Say = _print) -> list[Path]:
    """The folders of the experiments that were computed; all is checked before any computing.

    Args:
        request: what to compute; of `all`, an experiment whose data are missing is named and left out.
        say: takes a line for the user.
    """
    if request.scale not in SCALES:
        raise ParameterError(f"--scale {request.scale}", "there is no such scale", ", ".join(SCALES))
    if request.seed < 0:
        raise ParameterError(f"--seed {request.seed}", "it is negative", "--seed 0")
    everything = request.name.lower() == "all"
    ready = []
    for name in EXPERIMENTS if everything else [request.name.lower()]:
        experiment = find(name)
        mark = fingerprint(experiment, request.scale, request.seed)
        store = Store(request.out / name, request.scale, request.seed, mark)
        store.check()
        try:
            experiment.check(experiment.settings[request.scale], request.root)
        except McreparError as error:
            if not everything:
                raise
            say(f"{name} is left out. {error}")
            continue
        ready.append((name, experiment, store))
    return [_run(name, experiment, store, request, say) for name, experiment, store in ready]


def _run(name: str, experiment: Experiment, store: Store, request: Request, say: Say) -> Path:
    settings = experiment.settings[request.scale]
    with store.taken():
        try:
            records = _records(name, experiment, store, request, say)
        except KeyboardInterrupt:
            say(f"{name} was interrupted; what was measured is stored, and the same command goes on from there")
            raise
        parts, machines = experiment.parts(settings), [record["machine"] for record in records]
        rows = [{"key": p.key, **p.given, **r["measured"]} for p, r in zip(parts, records, strict=True)]
        origin = {
            "scale": request.scale,
            "seed": request.seed,
            "command": request.command(name),
            "seconds": round(sum(record["seconds"] for record in records), 1),
            "finished": max(record["finished"] for record in records),
            "machines": [on for k, on in enumerate(machines) if on not in machines[:k]],
        }
        try:
            facts, files = written(name, experiment, Results(settings, rows), origin)
        except (KeyError, TypeError) as error:
            why = f"the parts in {store.parts} do not have what is judged ({error!r})"
            raise ParameterError(f"reproduce {name}", why, "another --out, where all is measured anew") from error
        store.check()  # again: another scale may have ended since
        for file, content in files.items():
            store.write(store.folder / file, content)
    say(f"{name}: {facts['verdict']} ({store.folder / 'README.md'})")
    return store.folder


def _records(name: str, experiment: Experiment, store: Store, request: Request, say: Say) -> list[Row]:
    """The stored record of every part; those that are missing are measured and stored one by one."""
    settings = experiment.settings[request.scale]
    parts = experiment.parts(settings)
    found = store.load(parts, say)
    with _progress(name, len(parts), sum(record is not None for record in found), say) as step:
        for k, part in enumerate(parts):
            if found[k] is None:
                step(part.key, None)
                bench = Bench(settings, part_seed(request.seed, part.key), request.root, request.out / "runs")
                start = time.perf_counter()
                measured = experiment.measure(part, bench)
                seconds = time.perf_counter() - start
                found[k] = store.save(part, measured, seconds)
                step(part.key, seconds)
    return [record for record in found if record is not None]


@contextmanager
def _progress(name: str, total: int, done: int, say: Say) -> Iterator[Callable[[str, float | None], None]]:
    """Takes the key of a part when it begins, and its seconds when it ends: a bar on a terminal, lines elsewhere."""
    if not sys.stdout.isatty():
        count = itertools.count(done + 1)

        def line(key: str, seconds: float | None) -> None:
            if seconds is not None:
                say(f"{name}: {key}, {seconds:,.1f} s, {next(count)} of {total}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(name, total=total, completed=done)
        yield lambda key, seconds: progress.update(
            task, description=f"{name} {key}", advance=0 if seconds is None else 1
        )


# ---- what is written


def written(name: str, experiment: Experiment, results: Results, origin: Row) -> tuple[Row, dict[str, str | bytes]]:
    """The facts of result.json, and the three files by name.

    Args:
        name: of the experiment.
        experiment: itself.
        results: what was measured.
        origin: how: scale, seed, command, seconds, when it was finished and on which machines.
    """
    from mcrepar.plots import png

    findings = experiment.findings(results, origin["scale"])
    facts = {
        "name": name,
        "where": experiment.where,
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        **origin,
        "versions": {"mcrepar": __version__, "experiment": experiment.version},
        "settings": asdict(results.settings),
        "measured": list(results.rows),
    }
    return facts, {
        "figure.png": png(experiment.draw(results)),
        "README.md": _page(experiment, results, findings, facts),
        "result.json": json.dumps(facts, indent=1, allow_nan=False) + "\n",
    }


def _page(experiment: Experiment, results: Results, findings: Sequence[Finding], facts: Row) -> str:
    """README.md: claim, verdict, what was measured beside it, figure, how and on what."""
    versions, scale = facts["versions"], facts["scale"]
    rows = [[f"{f.claim}{' (not the paper)' if f.ours else ''}", f.measured, f.word] for f in findings]
    sections = [
        f"# {experiment.title}",
        f"**The paper ({experiment.where}).** {experiment.claim}",
        f"**Measured here: {facts['verdict']}.** {_SMOKE if scale == 'tiny' else experiment.undecided.get(scale, '')}",
        markdown(["sentence", "measured", "held"], rows),
        f"![{experiment.title}](figure.png)",
        f"**How.** {experiment.method}",
        experiment.tell(results),
        "## Again",
        f"```\n{facts['command']}\n```",
        f"Scale {scale}, seed {facts['seed']}; {facts['seconds']:,.0f} s on "
        f"{' and '.join(map(_machine_text, facts['machines']))}; mcrepar {versions['mcrepar']} (experiment version "
        f"{versions['experiment']}); the last part ended {facts['finished']}. All numbers are in `result.json`.",
    ]
    return "\n\n".join(section.rstrip() for section in sections if section) + "\n"


def _machine_text(on: Mapping[str, object]) -> str:
    device = "" if on["device"] == "cpu" else f"{on['device']}, "
    return (
        f"{device}{on['cpu']}, {on['cores']} cores ({on['threads']} used), {on['system']}, torch {on['torch']}, Python "
        f"{on['python']}"
    )


def rewrite(folder: Path) -> None:
    """Judge the result.json in this folder again and write its three files anew, after a change of texts or figures.

    Args:
        folder: of one experiment, with its name.
    """
    experiment, old = find(folder.name), json.loads((folder / "result.json").read_text(encoding="utf-8"))
    settings = experiment.settings[old["scale"]]
    if json.loads(json.dumps(asdict(settings))) != old["settings"]:
        why = "its settings are not those of the code"
        raise ParameterError(f"{folder}", why, f"mcrepar reproduce {folder.name}, which measures anew")
    origin = {key: old[key] for key in ("scale", "seed", "command", "seconds", "finished", "machines")}
    _, files = written(folder.name, experiment, Results(settings, old["measured"]), origin)
    for file, content in files.items():
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


if __name__ == "__main__":
    for name in EXPERIMENTS:
        rewrite(Path(__file__).parent / "results" / name)
        print(f"experiments/results/{name}")
