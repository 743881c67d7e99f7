"""How fast the app repaints for one user, and whether it serves fifty at once: loopback only, bounded in time.

python benchmarks/app_load.py starts a server of its own, changes controls through real websockets and in a real
Chromium, and writes benchmarks/results/app.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
from timing import machine
from websockets.asyncio.client import connect

from mcrepar.workbench.app.views import all_views

RESULTS = Path(__file__).parent / "results"
CHANGES = {
    "quality": {
        "iterations": ("10", "100", "10^4", "10^6"),
        "variance": ("1e-6", "1e-2", "1", "0.3"),
        "size4": ("10^9", "vgg19", "preact_resnet50", "10^7"),
        "simulations": ("10", "1000", "300"),
        "entropy": ("exact", "mc"),
        "measure": ("variance", "std", "error"),
        "seed": tuple(map(str, range(50))),
    },
    "distributions": {
        "posterior": ("radial", "normal", "gamma", "wald", "horseshoe", "lognormal", "error", "loggamma"),
        "prior": ("normal", "laplace", "student_t", "mixture", "inverse_gaussian", "gamma", "lognormal", "radial"),
        "q_scale": ("0.1", "0.5", "2"),
        "weights": ("1", "10", "1000"),
        "iterations": ("100", "10^6"),
        "seed": tuple(map(str, range(50))),
    },
    "graph": {
        "posterior": ("radial", "normal", "gamma", "weibull"),
        "prior": ("normal", "gamma", "inverse_gaussian"),
        "iterations": ("1", "10", "50", "100"),
    },
    "memory": {
        "network": ("alexnet", "vgg16", "densenet161", "10^8"),
        "batch": ("1", "32", "512"),
        "memory": ("4", "24", "80"),
        "iterations": ("100", "10^6"),
    },
    "run": {"threshold": tuple(f"{k / 20:g}" for k in range(21)), "show": ("unsure", "wrong", "sure", "all")},
}


def write_run(folder: Path, count: int = 10_000, draws: int = 100) -> None:
    """A run with as many predictions as CIFAR-10 has test images, of random votes."""
    chance = np.random.default_rng(0)
    probs = chance.dirichlet([0.3] * 10, count)
    votes = chance.multinomial(draws, probs)
    entropy = -(probs * np.log(np.maximum(probs, 1e-12))).sum(1)
    folder.mkdir(parents=True)
    np.savez(
        folder / "predictions.npz",
        y=chance.multinomial(1, probs).argmax(1),
        probs=probs,
        label=votes.argmax(1),
        draws=draws,
        confidence=votes.max(1) / draws,
        entropy=entropy,
        mutual_information=entropy / 2,
        thumbnails=chance.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8),
        thumbnail_indices=np.arange(200),
    )


@contextmanager
def server(runs: Path, errors: IO[bytes] | None = None) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: its address and its process id; `errors` takes what it prints of them."""
    command = [sys.executable, "-m", "mcrepar", "app", "--port", "0", "--no-browser", "--runs", str(runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[2], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def memory_of(pid: int) -> dict[str, float]:
    """MB that a process holds, and the most that it has held."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(status[key].split()[0]) / 1024 for name, key in (("now", "VmRSS"), ("most", "VmHWM"))}


class User:
    """One page, made by hand: it waits for each answer before the next change."""

    def __init__(self, url: str, seed: int, runs: Path) -> None:
        self.url = url.replace("http", "ws") + "websocket/"
        self.random = random.Random(seed)
        self.fields: dict[str, Any] = {
            f"{view.name}_{control.name}": control.default
            for view in all_views(runs).values()
            for control in view.every
        }
        self.seconds: list[float] = []
        self.errors: list[str] = []

    async def visit(self, until: float, pause: float) -> None:
        try:
            async with connect(self.url, max_size=2**24) as self.socket:
                view = self.random.choice(list(CHANGES))
                await self.ask("init", {**self.fields, "view": view})
                while time.perf_counter() < until or not self.seconds:  # one change at least, however slow the machine
                    await asyncio.sleep(self.random.expovariate(1 / pause))
                    if self.random.random() < 0.1:
                        view = self.random.choice(list(CHANGES))
                    name = self.random.choice(list(CHANGES[view]))
                    change = {f"{view}_{name}": self.random.choice(CHANGES[view][name])}
                    await self.ask("update", {**change, "view": view})
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    async def ask(self, method: str, data: dict[str, Any]) -> None:
        start = time.perf_counter()
        await self.socket.send(json.dumps({"method": method, "data": data}))
        while True:
            message = json.loads(await asyncio.wait_for(self.socket.recv(), 30))
            if "custom" in message:
                break
        if message["custom"]["answer"]["notice"].startswith("unexpected"):
            self.errors.append(message["custom"]["answer"]["notice"])
        if method == "update":
            self.seconds.append(time.perf_counter() - start)


async def crowd(url: str, users: int, seconds: float, pause: float, runs: Path) -> list[User]:
    people = [User(url, seed, runs) for seed in range(users)]
    until = time.perf_counter() + seconds
    await asyncio.gather(*(user.visit(until, pause) for user in people))
    return people


def summary(seconds: list[float]) -> dict[str, float]:
    half, most, worst = np.quantile(seconds, [0.5, 0.95, 1.0])
    return {"changes": len(seconds), "median": round(half, 3), "p95": round(most, 3), "slowest": round(worst, 3)}


# In the page: change a field as a user does; seconds until what came of it has been painted.
REPAINT = """async ([id, text]) => {
  const field = document.getElementById(id), panel = field.closest("section.view"), before = panel.dataset.answered;
  const start = performance.now();
  field.value = text;
  for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
  while (panel.dataset.answered === before) {
    if (performance.now() - start > 20000) throw new Error("no answer to " + id + "=" + text);
    await new Promise(requestAnimationFrame);
  }
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return (performance.now() - start) / 1000;
}"""


def repaints(url: str, changes: int) -> dict[str, dict[str, float]]:
    """Seconds from a change in Chromium to the new picture, by view; the debounce of typed fields is part of it."""
    from playwright.sync_api import sync_playwright

    chance, found = random.Random(0), {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for view, controls in CHANGES.items():
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.goto(f"{url}?view={view}")
            page.wait_for_selector(f"#view-{view}[data-answered]", timeout=60_000)
            texts = all_views(None)[view].defaults  # what is there already would send nothing
            seconds = []
            while len(seconds) < changes:
                name = chance.choice(list(controls))
                text = chance.choice(controls[name])
                if text != texts[name]:
                    texts[name] = text
                    seconds.append(page.evaluate(REPAINT, [f"{view}_{name}", text]))
            found[view] = summary(seconds)
            page.close()
        browser.close()
    return found


def measure(users: int, seconds: float, pause: float, changes: int, warm: float) -> dict[str, Any]:
    found_on = machine()
    with TemporaryDirectory() as folder:
        write_run(Path(folder) / "random")
        return {"machine": found_on, **_measured(Path(folder), users, seconds, pause, changes, warm)}


def _measured(runs: Path, users: int, seconds: float, pause: float, changes: int, warm: float) -> dict[str, Any]:
    with server(runs) as (url, pid):
        asyncio.run(crowd(url, 1, warm, 0.2, runs))  # lets what is computed once be computed
        painted = repaints(url, changes) if changes else {}
        before = memory_of(pid)
        people = asyncio.run(crowd(url, users, seconds, pause, runs))
        after = memory_of(pid)
    errors = [error for user in people for error in user.errors]
    answered = summary([s for user in people for s in user.seconds])
    return {
        "load average at the end": round(os.getloadavg()[0], 2),
        "repaint, one user": painted,
        "crowd": {"users": users, "seconds": seconds, "mean pause": pause, **answered, "errors": errors},
        "megabytes": {"before": round(before["now"]), "after": round(after["now"]), "most": round(after["most"])},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=40.0, help="how long the crowd stays")
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between two changes of a user")
    parser.add_argument("--changes", type=int, default=40, help="repaints measured per view; 0 needs no Chromium")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of app.json")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of a single user before all that")
    arguments = parser.parse_args()
    found = measure(arguments.users, arguments.seconds, arguments.pause, arguments.changes, arguments.warm)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "app.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
