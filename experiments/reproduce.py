"""Measure what is missing of an experiment, judge it, and write result.json, figure.png and README.md."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from experiments.catalogue import EXPERIMENTS, find
from experiments.experiment import SCALES, Bench, Experiment, Request, Results, Row, part_seed
from experiments.page import facts_of, page_of
from experiments.store import Store, fingerprint
from mcrepar.errors import McreparError, ParameterError

# Lines are written out at once: a log file shows how far a run of hours has come.
_print: Callable[[str], None] = partial(print, flush=True)


def reproduce(request: Request, say: Callable[[str], None] = _print) -> list[Path]:
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


def _run(name: str, experiment: Experiment, store: Store, request: Request, say: Callable[[str], None]) -> Path:
    with store.taken():
        try:
            records = _records(name, experiment, store, request, say)
        except KeyboardInterrupt:
            say(f"{name} was interrupted; what was measured is kept, and the same command goes on from there")
            raise
        try:
            files, told = _files(name, experiment, records, request)
        except (KeyError, TypeError) as error:
            why = f"the parts in {store.parts} do not have what is judged ({error!r})"
            raise ParameterError(f"reproduce {name}", why, "another --out, where all is measured anew") from error
        store.check()  # again: another scale may have ended since
        for file, content in files.items():
            store.write(store.folder / file, content)
    say(f"{name}: {told} ({store.folder / 'README.md'})")
    return store.folder


def _files(
    name: str, experiment: Experiment, records: Sequence[Row], request: Request
) -> tuple[dict[str, str | bytes], str]:
    """What is written of an experiment, by file, and its verdict."""
    from mcrepar.plots import png

    settings = experiment.settings[request.scale]
    parts = experiment.parts(settings)
    rows = [{"key": p.key, **p.given, **r["measured"]} for p, r in zip(parts, records, strict=True)]
    results = Results(settings, rows)
    findings = experiment.findings(results, request.scale)
    facts = facts_of(request, name, experiment, results, findings, records)
    files: dict[str, str | bytes] = {
        "figure.png": png(experiment.draw(results)),
        "README.md": page_of(experiment, results, findings, facts),
        "result.json": json.dumps(facts, indent=1, allow_nan=False) + "\n",
    }
    return files, facts["verdict"]


def _records(
    name: str, experiment: Experiment, store: Store, request: Request, say: Callable[[str], None]
) -> list[Row]:
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
def _progress(
    name: str, total: int, done: int, say: Callable[[str], None]
) -> Iterator[Callable[[str, float | None], None]]:
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
