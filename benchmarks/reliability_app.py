"""Attempts to break the app: hostile requests, hostile messages and damaged runs, against a server on 127.0.0.1.

Every part starts a server of its own in a folder of its own, makes a bounded number of tries, each bounded in time, and
ends the server. `python benchmarks/reliability_app.py --tries 300` prints what broke.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from app_load import server, write_run
from reliability_trial import Part, Trial
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from mcrepar.workbench.app.views import all_views

SECONDS = 10.0  # in which a request is answered, or an honest question after it
START_SECONDS = 180.0  # in which a server that has just started has computed what it computes once
EVERY = 50  # tries between two honest questions

PATHS = (
    "/", "/static/app.css", "/plotly.min.js", "/websocket/", "/static/../../../etc/passwd", "/static/%2e%2e/%2e%2e/x",
    "/static/%00", "/static/" + "a" * 5000, "/" + "%ff" * 300, "//evil.example/", "/?view=run&run=../../etc", "*",
    "/session/x/upload/y", "/session/x/download/y", "/?" + "a=b&" * 2000, "/\u00ff", "http://evil.example/", "/[", "",
)  # fmt: skip
METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "CONNECT", "G\0T", "A" * 3000, "")
HEADERS = (
    "Origin: http://[", "Origin: http://evil.example", "Origin: null", "Origin: //", "Origin: http://[::1", "Host: [",
    "Host: evil.example", "Host: localhost\r\nHost: evil.example", "Content-Length: -1", "Content-Length: 10000000000",
    "Content-Length: x", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Expect: 100-continue",
    "Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c\r\nConnection: Upgrade", "Range: bytes=-0",
    "Range: bytes=5-1", "Range: bytes=99999999999-", "Range: bytes=0-0," + "1-2," * 1000, "X: " + "a" * 70_000,
    "X\0: y", "Cookie: " + "\u00ff" * 100, ": empty", "If-Modified-Since: \u00ff", "Accept: */*",
    "Sec-WebSocket-Key: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: " + "A" * 22 + "==\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 99",
)  # fmt: skip
TEXTS = (
    "\ud800", "\0", "a" * 60_000, "-1", "NaN", "1e999", "10^99999", "../../etc/passwd", "<script>", "' or 1", "\u202e",
    None, True, [], {}, [[[]]], {"a": {"b": 1}}, -1, 1e308, 10**400, "", " ", "run\n", "\u00e4" * 300, 0.5,
)  # fmt: skip
MESSAGES = (
    "", "{", "[", "null", "5", '"x"', "[]", "{}", "[" * 30_000, '{"method": 5}', '{"method": "init"}', "{}" * 100,
    '{"method": "init", "data": []}', '{"method": "update", "data": null}', '{"method": "update", "data": "x"}',
    '{"method": "update", "data": {"view:shiny.action": {}}}', '{"method": "update", "data": {"view:no.such": 1}}',
    '{"method": "update", "data": {"a:b:c": 1}}', '{"method": "uploadInit", "args": [], "tag": 0}',
    '{"method": "uploadInit", "args": [[{"name": "x", "size": 1e15, "type": "t"}]], "tag": 0}',
    '{"method": "uploadEnd", "args": ["x", "y"], "tag": 1}', '{"method": "__class__", "args": [], "tag": 2}',
    '{"method": "makeRequest", "args": [], "tag": 3}', '{"method": "update", "data": {"": 1}}', "\u0000",
    '{"method": "update", "data": {".clientdata_output_x_hidden": {"a": []}}}',
)  # fmt: skip


@contextmanager
def a_server(runs: Path, failures: list[str]) -> Iterator[str]:
    """The address of a server; a traceback of it is a failure."""
    with tempfile.TemporaryFile() as errors:
        with server(runs, errors) as (url, pid):
            ask(url, START_SECONDS, view="memory")  # which waits for what is computed once
            yield url
            if not Path(f"/proc/{pid}").exists():
                failures.append("the server has ended")
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if "Traceback" in said:
            failures.append(f"{said.count('Traceback')} tracebacks, the last: {said.strip().splitlines()[-1]}")


def ask(url: str, seconds: float = SECONDS, **changed: Any) -> dict[str, Any]:
    """The reply to an honest page, or to one that changed a few fields."""
    return asyncio.run(_asked(url, seconds, changed))


async def _asked(url: str, seconds: float, changed: dict[str, Any]) -> dict[str, Any]:
    fields = {f"{view.name}_{c.name}": c.default for view in all_views(None).values() for c in view.every}
    async with asyncio.timeout(seconds), connect(url.replace("http", "ws") + "websocket/", max_size=2**24) as page:
        data = {"view": "graph", **fields, **changed}
        await page.send(json.dumps({"method": "init", "data": data}))
        while True:
            message = json.loads(await page.recv())
            if "custom" in message:
                reply: dict[str, Any] = message["custom"]["answer"]
                return reply


def honest(url: str, failures: list[str], after: str) -> None:
    """Whether an honest page is still answered."""
    try:
        if not ask(url).get("answer"):
            failures.append(f"no answer to an honest page after {after}")
    except (OSError, ConnectionClosed, TimeoutError) as error:
        failures.append(f"{type(error).__name__} for an honest page after {after}")


def requests(chance: random.Random, tries: int) -> Trial:
    """Requests that no browser sends."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder, a_server(Path(folder), failures) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        for number in range(tries):
            raw = _request(chance, port)
            status = _status(port, raw)
            if not status < 500:
                failures.append(f"{status:g} for {raw[:120]!r}")
            if number % EVERY == EVERY - 1 or number == tries - 1:
                honest(url, failures, f"{raw[:120]!r}")
    promise = "Whatever a request is, the app refuses it or answers it, prints no traceback and goes on answering."
    how = "methods, paths, headers and bodies that no browser sends, drawn at random, over raw sockets"
    return Trial(promise, how, tries, failures)


def _request(chance: random.Random, port: int) -> bytes:
    lines = [
        f"{chance.choice(METHODS)} {chance.choice(PATHS)} {chance.choice(('HTTP/1.1', 'HTTP/1.1', 'HTTP/9', 'x'))}"
    ]
    if chance.random() < 0.8:
        lines.append(f"Host: 127.0.0.1:{port}")
    lines += chance.sample(HEADERS, chance.randrange(4))
    raw = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    if chance.random() < 0.2:
        raw += chance.randbytes(chance.randrange(2000))
    if chance.random() < 0.2:
        place = chance.randrange(len(raw))
        raw = raw[:place] + chance.randbytes(1) + raw[place + 1 :]
    return raw[: chance.randrange(len(raw))] if chance.random() < 0.1 else raw


def _status(port: int, raw: bytes) -> float:
    """The status of the answer; 0 where the connection was closed without one, infinity where nothing came."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            start = connection.recv(64)
        except TimeoutError:
            return float("inf")
        except OSError:  # it hung up while we were speaking
            return 0
    words = start.split(b" ")
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def messages(chance: random.Random, tries: int) -> Trial:
    """Messages that no page sends."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder, a_server(Path(folder), failures) as url:
        for number in range(tries):
            message = _message(chance)
            try:
                asyncio.run(_send(url, message))
            except TimeoutError:
                failures.append(f"it hangs after {message[:120]!r}")
            if number % EVERY == EVERY - 1 or number == tries - 1:
                honest(url, failures, f"{message[:120]!r}")
    promise = "Whatever a page sends, the app stays up, prints no traceback and answers others."
    how = "websocket messages: no JSON, deep JSON, other types, unknown methods, values that no field has"
    return Trial(promise, how, tries, failures)


def _message(chance: random.Random) -> str | bytes:
    if chance.random() < 0.3:
        return chance.choice(MESSAGES)
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(100))
    if chance.random() < 0.05:
        return "x" * 70_000  # more than a message may have
    fields: dict[str, Any] = {
        f"{view.name}_{c.name}": c.default for view in all_views(None).values() for c in view.every
    }
    fields["view"] = chance.choice(list(all_views(None)))
    for name in chance.sample(list(fields), 5):
        fields[name] = chance.choice(TEXTS)
    return json.dumps({"method": chance.choice(("init", "update")), "data": fields})


async def _send(url: str, message: str | bytes) -> None:
    """Send it, and wait a moment for what comes; to be hung up on is an answer too."""
    try:
        async with asyncio.timeout(SECONDS), connect(url.replace("http", "ws") + "websocket/", max_size=2**24) as page:
            await page.send(message)
            try:
                async with asyncio.timeout(0.05):
                    await page.recv()
            except TimeoutError:
                pass
    except ConnectionClosed:
        pass


def damaged_runs(chance: random.Random, tries: int) -> Trial:
    """Run folders with files that are not what they were."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        write_run(runs / "whole", count=500)
        _write_texts(runs / "whole")
        with a_server(runs, failures) as url:
            for _ in range(tries):
                what = _damage(chance, runs)
                start = time.perf_counter()
                try:
                    notice = ask(url, view="run", run_run="run")["notice"]
                    if notice.startswith("unexpected"):
                        failures.append(f"{what}: {notice}")
                except (OSError, ConnectionClosed) as error:  # a TimeoutError is an OSError
                    failures.append(f"{what}: {type(error).__name__} after {time.perf_counter() - start:.0f} s")
    promise = "A damaged run is shown or its damage is named, within ten seconds; the app prints no traceback."
    how = "predictions.npz, run.json and log.csv cut, with flipped bits, replaced, or with other arrays"
    return Trial(promise, how, tries, failures)


def _write_texts(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({"status": "finished", "simulated": False}))
    rows = "".join(f"{epoch},{1 / epoch},{2 / epoch}\n" for epoch in range(1, 13))
    (folder / "log.csv").write_text(f"epoch,loss,nll\n{rows}")


def _damage(chance: random.Random, runs: Path) -> str:
    """Make runs/run a damaged copy of runs/whole; what was done."""
    folder = runs / "run"
    folder.mkdir(exist_ok=True)
    for path in (runs / "whole").iterdir():
        other = folder / path.name
        if other.is_dir() and not other.is_symlink():
            other.rmdir()
        other.unlink(missing_ok=True)
        other.write_bytes(path.read_bytes())
    name, damage = chance.choice(DAMAGES)
    names = ("predictions.npz",) if damage is _arrays else ("predictions.npz", "run.json", "log.csv")
    path = folder / chance.choice(names)
    damage(chance, path)
    return f"{path.name}, {name}"


def _cut(chance: random.Random, path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: chance.randrange(len(raw))])


def _flip(chance: random.Random, path: Path) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 20))):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def _replace(chance: random.Random, path: Path) -> None:
    path.unlink()
    kind = chance.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(path.name)
    elif kind == 3:
        path.symlink_to("/dev/zero")


def _long(chance: random.Random, path: Path) -> None:
    unit = chance.choice(('{"a":', "[", "a,b\n", "1\n", "1,2,3\n", '"', "\0", "\u00e4", "epoch\n", "1" * 1000 + ","))
    path.write_text(unit * (chance.choice((100, 10**5, 8 * 2**20)) // len(unit)))


def _arrays(chance: random.Random, path: Path) -> None:
    """Arrays that are missing, of other lengths, of other types, or with values out of range."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = chance.choice(list(arrays))
    array = arrays.pop(name)
    kind = chance.randrange(7)
    changes: dict[int, Callable[[], Any]] = {
        1: lambda: array[:-1] if array.ndim else array[None],
        2: lambda: array.astype(str) if array.size < 10**5 else array.astype(complex),
        3: lambda: np.full_like(array, -7) if array.dtype.kind in "if" else np.full_like(array, 7),
        4: lambda: array * np.nan,
        5: lambda: array[..., None],
        6: lambda: np.zeros(0),
    }
    if kind:
        arrays[name] = changes[kind]()
    np.savez(path, **arrays)


DAMAGES: tuple[tuple[str, Callable[[random.Random, Path], None]], ...] = (
    ("cut", _cut),
    ("flipped bits", _flip),
    ("another kind of file", _replace),
    ("long or deep text", _long),
    ("other arrays", _arrays),
)
PARTS: dict[str, Part] = {"requests": requests, "messages": messages, "damaged runs": damaged_runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append")
    arguments = parser.parse_args()
    for name in arguments.part or PARTS:
        trial = PARTS[name](random.Random(arguments.seed), arguments.tries)
        print(f"{name}: {trial.tries} tries, {len(trial.failures)} failures")
        print(*(f"  {failure}" for failure in trial.failures), sep="\n", end="\n" if trial.failures else "")


if __name__ == "__main__":
    main()
