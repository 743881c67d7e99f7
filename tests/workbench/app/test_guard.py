"""Who may speak to the app, and how much."""

import asyncio
import json

import pytest

from mcrepar.workbench.app import guard as guard_module
from mcrepar.workbench.app.guard import LOCAL, Guard


async def inner(scope, receive, send) -> None:
    if scope["type"] == "websocket":
        while True:
            message = await receive()
            await send({"type": "got", "message": message})
            if message["type"] == "websocket.disconnect":
                return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page"})


def ask(kind="http", method="GET", hosts=LOCAL, messages=(), **headers: str) -> list[dict]:
    sent, waiting = [], list(messages)

    async def receive():
        return waiting.pop(0) if waiting else {"type": "websocket.disconnect"}

    async def send(message):
        sent.append(message)

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(Guard(inner, hosts)({"type": kind, "method": method, "headers": pairs}, receive, send))
    return sent


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "localhost"])
def test_its_own_pages_are_served(host):
    assert ask(host=host)[0]["status"] == 200
    assert ask(host=host, origin=f"http://{host}")[0]["status"] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::1", "192.168.0.7"]
)
def test_a_name_that_was_made_to_point_here_is_refused(host):
    assert ask(host=host)[0]["status"] == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:9999", "https://127.0.0.1:8000.evil", "http://[", "//[::1"],
)
def test_a_page_of_another_site_is_refused(origin):
    assert ask(host="127.0.0.1:8000", origin=origin)[0]["status"] == 403
    sent = ask("websocket", host="127.0.0.1:8000", origin=origin)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_any_name_will_do_where_other_machines_are_let_in():
    assert ask(hosts=frozenset(), host="lab.example:8000")[0]["status"] == 200
    assert ask(hosts=frozenset(), host="lab.example:8000", origin="http://evil.example")[0]["status"] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_is_uploaded(method):
    assert ask(method=method, host="localhost")[0]["status"] == 405


def test_the_browser_is_told_to_stay_here():
    headers = dict(ask(host="localhost:8000")[0]["headers"])
    policy = headers[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "http:" not in policy
    assert "https:" not in policy
    assert "connect-src 'self' ws://localhost:8000 wss://localhost:8000" in policy


def received(*texts: str | bytes) -> list[dict]:
    """What the app gets of these messages."""
    messages = [{"type": "websocket.receive", "text" if isinstance(t, str) else "bytes": t} for t in texts]
    return [m["message"] for m in ask("websocket", messages=messages, host="localhost")]


def message(method="init", **data) -> str:
    return json.dumps({"method": method, "data": data})


def test_a_connection_may_send_only_so_much(monkeypatch):
    monkeypatch.setattr(guard_module, "_MOST_BYTES", 150)
    got = received(message(a="x" * 20), *[message("update", a="x" * 20)] * 10)
    assert [m["type"] for m in got] == ["websocket.receive"] * 2 + ["websocket.disconnect"]


def test_fields_pass_and_nothing_else():
    hidden = {".clientdata_url_search": "?_state_id_=x", "a:shiny.date": 5, "": 1}
    data = {"view": "run", "run_show": "all", "quality_log": True, "n": 1.5, "m": None}
    got = received(message(**hidden, **data), message("update", **data, **hidden))
    assert [json.loads(m["text"]) for m in got[:2]] == [{"method": m, "data": data} for m in ("init", "update")]
    assert json.loads(received(message(a=[[]], b={"x": 1}))[0]["text"])["data"] == {"a": "a list", "b": "a dict"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "5", "[]", "{}", "[" * 30_000, "1" * 5000, b"\x00", message("update"), message("uploadInit"),
     '{"method": "init"}', '{"method": "init", "data": []}', '{"method": ["init"], "data": {}}',
     '{"method": "x", "args": [], "tag": 1}'],
)  # fmt: skip
def test_after_any_other_message_the_page_is_gone(text):
    assert [m["type"] for m in received(text, message())] == ["websocket.disconnect"]
    got = received(message(), text if text != message("update") else message())
    assert [m["type"] for m in got] == ["websocket.receive", "websocket.disconnect"]


def test_the_life_of_the_server_passes_through():
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append(scope["type"])

    asyncio.run(Guard(app)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
