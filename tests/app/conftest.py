"""A real server for the tests that need one: a process of its own, on a port that is free."""

import os
import signal
import subprocess
import sys

import pytest
from tests.app.browser_page import CHROMIUM, FLAGS, Page
from tests.app.example_run import write_run


def start_server(*options: str) -> tuple[subprocess.Popen, str]:
    """Start the app; the process and its address, as it prints it."""
    command = [sys.executable, "-m", "mcrepar", "app", "--port", "0", "--no-browser", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    line = process.stdout.readline()
    assert line.startswith("mcrepar app: http://127.0.0.1:"), line
    return process, line.split()[2]


def stop_server(process: subprocess.Popen) -> int:
    """Interrupt it as Ctrl+C does; its exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(180)
    finally:
        process.kill()
        process.stdout.close()


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app") / "runs"
    write_run(folder / "shapes")
    write_run(folder / "broken")
    (folder / "broken" / "predictions.npz").write_bytes(b"no archive")
    os.utime(folder / "broken", (1, 1))  # so that the other is the newest
    write_run(folder.parent / "secret")
    return folder


@pytest.fixture(scope="session")
def server(runs_folder):
    process, url = start_server("--runs", str(runs_folder))
    yield url
    stop_server(process)


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, server):
    contexts = []

    def opener(url: str = server, width: int = 1200, **more) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **more)
        contexts.append(context)
        return Page(context.new_page(), url)

    yield opener
    for context in contexts:
        context.close()
