"""The image of the app without a Docker engine: its instructions are read, and its command runs on a free port."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PORT = "3838"
WAIT = 120  # seconds


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, re.sub(r"\s+", " ", rest)) for word, _, rest in (line.partition(" ") for line in lines)]


def all_of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def copied() -> list[str]:
    return [name for rest in all_of("COPY") for name in rest.split()[:-1]]


def health_check() -> list[str]:
    (rest,) = all_of("HEALTHCHECK")
    return json.loads(rest.partition("CMD ")[2])


def test_what_is_copied_exists_belongs_to_the_repository_and_is_not_ignored():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied()) == allowed
    for name in copied():
        assert (ROOT / name).exists(), name
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no checkout to ask")
    done = subprocess.run(["git", "check-ignore", *copied()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout  # 1: nothing is ignored
    known = subprocess.run(["git", "ls-files", *copied()], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.partition("/")[0] for line in known.split()} == set(copied())


def test_the_packages_are_pinned_and_the_extra_exists():
    (command,) = all_of("RUN")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = (ROOT / "constraints.txt").read_text()
    assert "-c constraints.txt" in command
    (extra,) = re.findall(r"\"\.\[(\w+)\]\"", command)
    needed = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"][extra]]
    for requirement in needed:
        name = re.match(r"[\w-]+", requirement)[0]
        assert name == "mcrepar" or re.search(rf"^{name}==", pins, re.M | re.I), name
    (base,) = all_of("FROM")
    least = project["project"]["requires-python"].removeprefix(">=")
    assert base.startswith(f"python:{least}"), "the oldest Python that is promised, on which everything is tested"


def test_it_does_not_run_as_root_and_the_user_exists():
    words = [word for word, _ in instructions()]
    (user,) = all_of("USER")
    assert user not in ("root", "0")
    assert re.search(rf"useradd .*\b{user}\b", all_of("RUN")[0])
    assert words.index("RUN") < words.index("USER") < words.index("CMD")


def test_the_port_is_one_everywhere():
    (command,) = map(json.loads, all_of("CMD"))
    assert command[command.index("--port") + 1] == PORT
    assert command[command.index("--host") + 1] == "0.0.0.0"  # of the container; compose.yaml publishes it to 127.0.0.1
    assert all_of("EXPOSE") == [PORT]
    assert f"127.0.0.1:{PORT}/" in health_check()[-1]
    app = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["app"]
    assert app["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert app["build"] == "."
    runs = command[command.index("--runs") + 1]
    assert [volume.endswith(f":{runs}:ro") for volume in app["volumes"]] == [True]
    assert app["read_only"]
    assert app["cap_drop"] == ["ALL"]


def here(words: list[str], port: str, runs: Path) -> list[str]:
    """The words of a command of the image on another port, without an installed script."""
    found = [word.replace(PORT, port).replace("0.0.0.0", "127.0.0.1").replace("/runs", str(runs)) for word in words]
    return [sys.executable, *(["-m", "mcrepar"] if found[0] == "mcrepar" else []), *found[1:]]


def test_its_command_serves_the_page_and_its_health_check_tells(tmp_path):
    """From the copied files alone, so that a file that COPY forgets is missed here."""
    for name in copied():
        whole = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        whole(ROOT / name, tmp_path / name)
    (tmp_path / "runs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (command,) = map(json.loads, all_of("CMD"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    check = here(health_check(), port, tmp_path / "runs")
    options = {"cwd": tmp_path, "env": environment}
    assert subprocess.run(check, capture_output=True, check=False, **options).returncode != 0
    process = subprocess.Popen(here(command, port, tmp_path / "runs"), **options, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + WAIT
        while subprocess.run(check, capture_output=True, check=False, **options).returncode:
            assert process.poll() is None, "the app has ended"
            assert time.monotonic() < end, "the app does not answer"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=WAIT) as page:
            assert b"mcrepar" in page.read()
    finally:
        process.terminate()  # what docker stop sends
        assert process.wait(WAIT) in (0, -15, 143)
