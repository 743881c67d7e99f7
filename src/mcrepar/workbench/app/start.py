"""Start the app: a socket, a server, a browser."""

from __future__ import annotations

import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import shiny
import torch
import uvicorn

from mcrepar.errors import ParameterError
from mcrepar.models import MODELS
from mcrepar.workbench.app.guard import LOCAL, LONGEST_MESSAGE, Guard
from mcrepar.workbench.app.memory_budget import random_weights
from mcrepar.workbench.app.page import STATIC, live_page, plotly_script
from mcrepar.workbench.app.server import Answers, server_of
from mcrepar.workbench.app.views import all_views


@dataclass(frozen=True)
class AppOptions:
    """How the app is started.

    Args:
        port: to listen on; 0 takes any that is free.
        host: to bind to; other machines can reach the app only if it is not 127.0.0.1.
        runs: the folder below which runs may be looked at.
        browser: whether to open one.
    """

    port: int = 8000
    host: str = "127.0.0.1"
    runs: Path | None = None
    browser: bool = True


def application(runs: Path | None, hosts: frozenset[str] = LOCAL) -> Guard:
    """The ASGI app.

    Args:
        runs: the folder below which runs may be looked at.
        hosts: the names under which it may be asked for; empty means any.
    """
    views, pool = all_views(runs), ThreadPoolExecutor(2, "answers")
    answers = Answers(views)
    app = shiny.App(
        lambda request: shiny.ui.page_html(live_page(views)),
        server_of(answers, pool),
        static_assets={"/static": STATIC, "/plotly.min.js": plotly_script()},
    )
    ending = threading.Event()
    app.on_shutdown(ending.set)
    app.on_shutdown(lambda: pool.shutdown(wait=False, cancel_futures=True))
    pool.submit(warm_up, answers, ending)
    return Guard(app, hosts)


def warm_up(answers: Answers, ending: threading.Event) -> None:
    """Measure every network and answer every lasting view once: what is computed once is there when someone asks."""
    tasks: list[Callable[[], object]] = [partial(random_weights, name) for name in MODELS]
    tasks += [partial(answers.reply, view, {}, again=False) for view in answers.views.values() if view.lasting]
    for task in tasks:
        if ending.is_set():
            return
        task()


def start(options: AppOptions) -> None:
    """Serve until interrupted."""
    listener = _listen(options.host, options.port)
    torch.set_num_threads(1)  # tensors are small here, and users many
    hosts = LOCAL if options.host in LOCAL else frozenset()
    config = uvicorn.Config(
        application(options.runs, hosts),
        log_level="warning",
        ws_max_size=LONGEST_MESSAGE,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    shown = "localhost" if options.host in ("0.0.0.0", "::") else options.host
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}/"
    threading.Thread(target=_announce, args=(server, url, options.browser), daemon=True).start()
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ParameterError(f"--port {port}", "a port is a number from 0 to 65535", "--port 8000")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ParameterError(f"--host {host} --port {port}", str(error), "--port 0 for any free one") from None


def _announce(server: Any, url: str, browser: bool) -> None:
    """Say where the app is, once it is there, and open a browser."""
    while not server.started:
        time.sleep(0.05)
    print(f"mcrepar app: {url} (stop with Ctrl+C)", flush=True)
    if browser:
        webbrowser.open(url)
