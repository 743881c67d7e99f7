"""A real server and a real browser for the tests that need one, each in processes of its own."""

import os
import select
import signal
import subprocess
import sys

import pytest
from torch import nn

import mcrepar
from tests.workbench.app.browser_page import CHROMIUM, DEADLINE, Chromium, Page
from tests.workbench.app.example_run import write_run

WAIT = 60  # seconds: on a busy machine


def start_server(*options: str) -> tuple[subprocess.Popen, str]:
    """Start the app; the process and its address, as it prints it."""
    command = [sys.executable, "-m", "mcrepar", "app", "--port", "0", "--no-browser", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    ready, _, _ = select.select([process.stdout], [], [], WAIT)
    line = process.stdout.readline() if ready else ""
    if not line.startswith("mcrepar app: http://127.0.0.1:"):
        process.kill()
        process.communicate()
        raise RuntimeError(f"the app did not start within {WAIT} s: {line!r}")
    return process, line.split()[2]


def stop_server(process: subprocess.Popen) -> int:
    """Interrupt it as Ctrl+C does; its exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(WAIT)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app") / "runs"
    write_run(folder / "shapes")
    write_run(folder / "simulated", seed=1, simulated=True)
    write_run(folder / "broken")
    (folder / "broken" / "predictions.npz").write_bytes(b"no archive")
    mcrepar.save(mcrepar.bayesian(nn.Linear(3, 2)), folder / "saved")
    for name in ("simulated", "broken"):
        os.utime(folder / name, (1, 1))  # so that the other is the newest
    write_run(folder.parent / "secret")
    return folder


@pytest.fixture(scope="session")
def server(runs_folder):
    process, url = start_server("--runs", str(runs_folder))
    yield url
    stop_server(process)


@pytest.fixture(scope="module")  # while it lives its event loop runs, and no other test of the process can have one
def chromium(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium was found: `apt-get install chromium` brings one, and these tests then run")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = Chromium(playwright, tmp_path_factory.mktemp("chromium"))
        yield started
        started.close()


@pytest.fixture
def open_page(chromium, server):
    """Opens pages; whatever they do, they ask no other machine, and the test ends."""
    pages: list[Page] = []

    def opener(url: str = server, **options) -> Page:
        pages.append(chromium.page(url, **options))
        return pages[-1]

    with chromium.deadline(DEADLINE):
        yield opener
        for page in pages:
            page.page.close()
    assert [page.elsewhere for page in pages] == [[]] * len(pages)
