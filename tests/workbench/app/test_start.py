"""Starting and stopping, and what a hand-made client can and cannot do."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from mcrepar.errors import ParameterError
from mcrepar.workbench.app import start as start_module
from mcrepar.workbench.app.start import AppOptions, _announce, start
from mcrepar.workbench.app.views import all_views
from tests.workbench.app.conftest import WAIT, start_server, stop_server

FIELDS = {f"{v.name}_{c.name}": c.default for v in all_views(None).values() for c in v.every} | {"quality_log": True}


def test_an_interrupt_ends_it():
    process, url = start_server()
    with urllib.request.urlopen(url, timeout=WAIT) as response:
        assert response.status == 200
    assert stop_server(process) in (0, 130)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": -1}, "a port is a number"),
        ({"port": 70000}, "a port is a number"),
        ({"host": "no.such.host.invalid"}, "--host no.such.host.invalid"),
    ],
    ids=str,
)
def test_a_wrong_address_is_refused(options, says):
    with pytest.raises(ParameterError, match=says):
        start(AppOptions(**options))


def test_a_port_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ParameterError, match="in use"):
        start(AppOptions(port=taken.getsockname()[1]))


@pytest.mark.parametrize("browser", [True, False])
def test_the_browser_opens_by_itself_unless_told_not_to(browser, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(start_module.webbrowser, "open", opened.append)
    _announce(SimpleNamespace(started=True), "http://127.0.0.1:1/", browser)
    assert opened == ["http://127.0.0.1:1/"] * browser
    assert "http://127.0.0.1:1/" in capsys.readouterr().out


def test_it_listens_on_this_machine_only(server):
    port = int(server.rstrip("/").rpartition(":")[2])
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        with pytest.raises(OSError, match=r"refused|unreachable|timed out|denied"):
            socket.create_connection((address, port), timeout=2)


def test_files_outside_are_not_served(server):
    for path in (
        "static/../page.py",
        "static/%2e%2e/page.py",
        "../../etc/passwd",
        "lib/../../x",
        "session/x/download/../y",
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server + path, timeout=WAIT)
        assert caught.value.code in (400, 403, 404)
        caught.value.close()


class Client:
    """A page made by hand."""

    def __init__(self, socket) -> None:
        self.socket = socket

    async def send(self, method: str, **data: object) -> None:
        await self.socket.send(json.dumps({"method": method, "data": data}))

    async def answer(self) -> dict:
        while True:
            message = json.loads(await asyncio.wait_for(self.socket.recv(), WAIT))
            if "custom" in message:
                return message["custom"]["answer"]


def talk(server: str, script) -> object:
    async def session() -> object:
        async with connect(server.replace("http", "ws") + "websocket/", max_size=2**24) as socket:
            return await script(Client(socket))

    return asyncio.run(session())


def test_a_question_has_an_answer(server):
    async def script(client: Client):
        await client.send("init", **FIELDS, view="quality")
        first = await client.answer()
        await client.send("update", quality_iterations="-7")
        wrong = await client.answer()
        await client.send("update", quality_iterations="10")
        return first, wrong, await client.answer()

    first, wrong, last = talk(server, script)
    assert "M = 1,000" in first["answer"]["headline"]
    assert "answer" not in wrong
    assert "too small" in wrong["errors"]["iterations"]
    assert "M = 10:" in last["answer"]["headline"]


@pytest.mark.parametrize("value", ["1e300", ["1"] * 100, {"a": "b"}, 10**30, None, "9" * 3000, True])
def test_hand_made_values_are_bounded(server, value):
    async def script(client: Client):
        await client.send("init", **FIELDS, view="quality")
        await client.answer()
        await client.send("update", quality_iterations=value, quality_simulations=value)
        return await client.answer()

    reply = talk(server, script)
    assert "answer" not in reply
    assert set(reply["errors"]) == {"iterations", "simulations"}


@pytest.mark.parametrize("name", ["../secret", "/etc", "shapes/../../secret"])
def test_a_hand_made_name_cannot_leave_the_folder(server, name):
    async def script(client: Client):
        await client.send("init", **{**FIELDS, "run_run": "shapes", "view": "run"})
        first = await client.answer()
        await client.send("update", run_run=name)
        return first, await client.answer()

    first, reply = talk(server, script)
    assert "answer" in first
    assert "answer" not in reply
    assert "not in the list" in reply["errors"]["run"]


def test_a_damaged_run_is_named_and_the_app_stays_up(server):
    async def script(client: Client):
        await client.send("init", **{**FIELDS, "run_run": "broken", "view": "run"})
        damaged = await client.answer()
        await client.send("update", run_run="shapes")
        return damaged, await client.answer()

    damaged, whole = talk(server, script)
    assert "run 'broken': predictions.npz is damaged" in damaged["notice"]
    assert "of 400 answers" in whole["answer"]["headline"]


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", "5", '{"method": "strange"}', '{"method": "update", "data": {}}', "x" * 2**17]
)
def test_garbage_ends_that_connection_only(server, text):
    async def everything(client: Client) -> None:
        await client.socket.send(text)
        while True:
            await asyncio.wait_for(client.socket.recv(), WAIT)

    with pytest.raises(ConnectionClosed):
        talk(server, everything)
    test_a_question_has_an_answer(server)


def test_a_view_that_does_not_exist_is_not_answered(server):
    async def script(client: Client):
        await client.send("init", **FIELDS, view="../quality")
        await client.send("update", view="graph")
        return await client.answer()

    assert talk(server, script)["view"] == "graph"
