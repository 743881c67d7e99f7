"""Attempts to break a training: kills, damaged files, full disks, and links out of its folder.

Every try is the command `mcrepar train` in a forked process with a time limit, and is judged by what is left: the files
of the model, bit by bit, and the log of a run that nothing happened to.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from reliability_training import REFUSED, SECONDS, VARIANTS, Ended, Runs, command, contents, some_runs
from reliability_trial import Part, Trial

from mcrepar.workbench.training.checkpoint import NAME
from mcrepar.workbench.training.run_folder import read_run

# ---- kills


def kills(chance: random.Random, tries: int) -> Trial:
    """Kills at random moments of a run and of its continuations, and the end that it comes to."""
    failures: list[str] = []
    killed = number = 0
    with some_runs() as runs:
        while killed < tries and number < 2 * tries:  # a run may end before it is killed
            variant, out = number % len(VARIANTS), runs.folder / f"killed-{number}"
            runs.wanted(variant)
            ended = Ended(None, "")
            for _ in range(min(tries - killed, chance.randint(1, 6))):
                ended = resumed(runs, variant, out, chance.uniform(0.0, runs.seconds[variant]))
                killed += ended.code is None
                if ended.code is not None:
                    break
            if ended.code is None:
                ended = resumed(runs, variant, out, SECONDS)
            if why := runs.differs(variant, out) if ended.code == 0 else ended.why:
                failures.append(f"run {number}: {why}")
            number += 1
    promise = (
        "A training that is killed at any moment goes on with `--resume` and ends bit by bit as if nothing had been."
    )
    how = f"SIGKILL at random moments of {number} trainings by `mcrepar train` and of their continuations"
    return Trial(promise, how, killed, failures)


def resumed(runs: Runs, variant: int, out: Path, seconds: float) -> Ended:
    """`--resume --out` alone; what was killed before it could say what it is must be refused, and begins anew."""
    before = (out / "config.yaml").exists()
    ended = command(["train", "--resume", "--out", str(out)], seconds)
    if before or ended.code is None:
        return ended
    if ended.code != REFUSED:
        return Ended(98, "--resume trained something that nobody had asked for")
    return command([*runs.words(variant, out), "--resume"], seconds)


# ---- damaged files


def flipped(chance: random.Random, raw: bytes) -> bytes:
    """One bit is another."""
    place = chance.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << chance.randrange(8)]) + raw[place + 1 :]


def zeroed(chance: random.Random, raw: bytes) -> bytes:
    """A block of zeros."""
    first = chance.randrange(len(raw))
    length = min(len(raw) - first, chance.randint(1, 4096))
    return raw[:first] + bytes(length) + raw[first + length :]


BYTES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "a bit": flipped,
    "cut short": lambda chance, raw: raw[: chance.randrange(len(raw))],
    "empty": lambda chance, raw: b"",
    "zeros": zeroed,
    "more bytes": lambda chance, raw: raw + chance.randbytes(chance.randint(1, 100)),
    "other bytes": lambda chance, raw: chance.randbytes(len(raw)),
}
KINDS: dict[str, Callable[[Path], None]] = {
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


def damage(chance: random.Random, path: Path) -> str:
    """Change a file in one way, and say in which."""
    how = chance.choice([*BYTES, *KINDS])
    raw = path.read_bytes()
    path.unlink()
    if how in BYTES:
        path.write_bytes(BYTES[how](chance, raw))
    else:
        KINDS[how](path)
    return f"{path.name}: {how}"


def damaged_checkpoints(chance: random.Random, tries: int) -> Trial:
    """The newest checkpoint is no checkpoint."""
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            out = runs.unfinished(0, runs.folder / "damaged")
            newest = max(path for path in (out / "checkpoints").iterdir() if NAME.fullmatch(path.name))
            how = damage(chance, newest)
            ended = command(["train", "--resume", "--out", str(out)])
            why = runs.differs(0, out) if ended.code == 0 else ended.why
            if "warning" not in ended.said and not why:
                why = "nothing was said"
            if why:
                failures.append(f"try {number}, {how}: {why}")
            shutil.rmtree(out)
    promise = (
        "A damaged checkpoint is named and left out: the one before it is taken, and the run ends bit by bit the same."
    )
    return Trial(promise, f"the newest checkpoint {_ways()}", tries, failures)


def damaged_options(chance: random.Random, tries: int) -> Trial:
    """config.yaml is not what was written."""
    promise = (
        "A damaged or changed `config.yaml` never makes a run go on with other options: it is refused without a change "
        "to any file, or nothing that matters was changed and the end is the same."
    )
    return _damaged_text("config.yaml", promise, chance, tries)


def damaged_facts(chance: random.Random, tries: int) -> Trial:
    """run.json is not what was written."""
    promise = (
        "A damaged `run.json` is restored from the checkpoint and the run comes to the same end, or it is refused "
        "without a change to any file."
    )
    return _damaged_text("run.json", promise, chance, tries)


def _damaged_text(name: str, promise: str, chance: random.Random, tries: int) -> Trial:
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            out = runs.unfinished(0, runs.folder / "damaged")
            how, before = damage(chance, out / name), contents(out)
            ended = command(["train", "--resume", "--out", str(out)])
            if ended.code == REFUSED:
                why = "" if contents(out) == before else "it was refused, but files changed"
            else:
                why = runs.differs(0, out) if ended.code == 0 else ended.why
            if why:
                failures.append(f"try {number}, {how}: {why}")
            shutil.rmtree(out)
    return Trial(promise, f"`{name}` {_ways()}", tries, failures)


def _ways() -> str:
    return f"damaged in one of {len(BYTES)} ways, or replaced by one of {len(KINDS)} other kinds of files"


# ---- disks and links


def full_disks(chance: random.Random, tries: int) -> Trial:
    """Files cannot grow beyond a random size, then they can."""
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            variant, out = number % len(VARIANTS), runs.folder / "full"
            largest = max(path.stat().st_size for path in runs.wanted(variant).rglob("*") if path.is_file())
            words = [*runs.words(variant, out), "--resume"]
            ended = command(words, most_bytes=chance.randrange(int(1.2 * largest)))
            finished = out.exists() and read_run(out).get("status") == "finished"
            why = ""
            if finished != (ended.code == 0):
                why = f"exit code {ended.code} and {'' if finished else 'not '}finished"
            elif ended.code not in (0, REFUSED):
                why = ended.why
            else:
                ended = command(words)
                why = runs.differs(variant, out) if ended.code == 0 else f"later {ended.why}"
            if why:
                failures.append(f"try {number}: {why}")
            shutil.rmtree(out, ignore_errors=True)
    promise = (
        "A disk that is full costs no more than what was to be written: a run says that it has finished only where its "
        "model is stored, and `--resume` then brings it to the same end."
    )
    return Trial(promise, "files that cannot grow beyond a random size, then without that limit", tries, failures)


def links(chance: random.Random, tries: int) -> Trial:
    """Names in a run folder lead elsewhere."""
    failures: list[str] = []
    with some_runs() as runs:
        for number in range(tries):
            outside = runs.folder / "precious"
            shutil.copytree(runs.wanted(0), outside)
            out, name = runs.folder / "linked", chance.choice((".lock", "model", "checkpoints", "log.csv", "run.json"))
            begun = chance.random() < 0.5
            if begun:
                shutil.copytree(runs.wanted(0), out)
                shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
            else:
                out.mkdir()
            target = outside / name if chance.random() < 0.5 else outside / "config.yaml"
            (out / name).symlink_to(target)
            before = contents(outside)
            ended = command([*runs.words(0, out), *(["--resume"] if begun else [])])
            if ended.code not in (0, REFUSED):
                failures.append(f"try {number}, {name}: {ended.why}")
            if contents(outside) != before:
                failures.append(f"try {number}: {name} was followed, and files outside changed")
            shutil.rmtree(out)
            shutil.rmtree(outside)
    promise = "A training changes nothing outside its folder, whatever links the folder holds."
    return Trial(
        promise, "`.lock`, `model`, `checkpoints`, `log.csv` or `run.json` linked to other files", tries, failures
    )


PARTS: dict[str, Part] = {
    "kills": kills,
    "damaged checkpoints": damaged_checkpoints,
    "damaged config.yaml": damaged_options,
    "damaged run.json": damaged_facts,
    "full disks": full_disks,
    "links": links,
}

if __name__ == "__main__":
    sys.exit("python benchmarks/reliability.py runs these parts")
