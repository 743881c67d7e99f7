"""Measure what is missing of an experiment, judge it, and write result.json, figure.png and README.md."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcrepar.errors import McreparError, ParameterError
from mcrepar.experiments.catalogue import EXPERIMENTS, find
from mcrepar.experiments.experiment import SCALES, Bench, Experiment, Part, Request, Results, Row, part_seed, verdict
from mcrepar.experiments.page import facts_of, page_of
from mcrepar.experiments.store import Store, fingerprint


def reproduce(request: Request, say: Callable[[str], None] = print) -> list[Path]:
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
        store = Store(request.out / name, request.scale, fingerprint(experiment, request.scale, request.seed))
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


def _run(name: str, experiment: Experiment, store: Store, request: Request, say: Callable[[str], None]) -> Path:
    from mcrepar.plots import png

    settings = experiment.settings[request.scale]
    parts = experiment.parts(settings)
    try:
        records = _records(name, experiment, parts, store, request, say)
    except KeyboardInterrupt:
        say(f"{name} was interrupted; what was measured is kept, and the same command goes on from there")
        raise
    rows = [{"key": p.key, **p.given, **r["measured"]} for p, r in zip(parts, records, strict=True)]
    results = Results(settings, rows)
    findings = experiment.judge(results)
    seconds = sum(record["seconds"] for record in records)
    facts = facts_of(request, name, experiment, results, findings, seconds)
    store.write(store.folder / "figure.png", png(experiment.draw(results)))
    store.write(store.folder / "README.md", page_of(experiment, results, findings, facts))
    store.write(store.folder / "result.json", json.dumps(facts, indent=1, allow_nan=False) + "\n")
    say(f"{name}: {verdict(findings)} ({store.folder / 'README.md'})")
    return store.folder


def _records(
    name: str, experiment: Experiment, parts: Sequence[Part], store: Store, request: Request, say: Callable[[str], None]
) -> list[Row]:
    """The stored record of every part; those that are missing are measured and stored one by one."""
    found = store.load(parts, say)
    settings = experiment.settings[request.scale]
    with _bar(name, len(parts), sum(record is not None for record in found)) as step:
        for k, part in enumerate(parts):
            if found[k] is None:
                step(part.key, 0)
                bench = Bench(settings, part_seed(request.seed, part.key), request.root, store.parts / part.key)
                start = time.perf_counter()
                measured = experiment.measure(part, bench)
                found[k] = store.save(part, measured, time.perf_counter() - start)
                step(part.key, 1)
    return [record for record in found if record is not None]


@contextmanager
def _bar(name: str, total: int, done: int) -> Iterator[Callable[[str, int], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stdout.isatty():
        yield lambda key, count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(name, total=total, completed=done)
        yield lambda key, count: progress.update(task, description=f"{name} {key}", advance=count)
