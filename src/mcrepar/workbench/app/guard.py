"""What may reach the app: its own pages only, and no more than a person types.

A page of another site cannot speak to it (the names of host and origin are checked, so that a name that is made to
point here does not help), nothing is uploaded, and the browser is told to fetch nothing from elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LONGEST_MESSAGE = 2**16  # bytes of one message of a page
_MOST_BYTES = 2**24  # that one connection may send: a hundred thousand changes of a control
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws://{host} wss://{host}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FIELD = re.compile(r"[a-z]\w*", re.ASCII)
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


class Guard:
    """An ASGI app around another.

    Args:
        app: the other.
        hosts: the names under which it may be asked for; empty means any.
    """

    def __init__(self, app: App, hosts: frozenset[str] = LOCAL) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        own = not self.hosts or _name(f"//{host}") in self.hosts
        if not own or (origin is not None and _place(origin) != host):
            await _refuse(scope, receive, send, 403)
        elif scope["type"] == "websocket":
            await self.app(scope, _fields_alone(receive), send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _refuse(scope, receive, send, 405)
        else:
            await self.app(scope, receive, _with_policy(send, host))


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str | None:
    """Host and port of an origin; None where it is none, such as http://[."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _fields_alone(receive: Receive) -> Receive:
    """Messages as pages of ours send them: all fields at first, then changed ones; after any other the page is gone.

    Shiny knows more messages, of which it prints a traceback where they are wrong, and none is needed here.
    """
    total, method = 0, "init"

    async def bounded() -> Message:
        nonlocal total, method
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        text = message.get("text") or ""
        total += len(text)
        fields = _fields(text, method) if total <= _MOST_BYTES else None
        if fields is None:
            return {"type": "websocket.disconnect", "code": 1008}
        message = {"type": "websocket.receive", "text": json.dumps({"method": method, "data": fields})}
        method = "update"
        return message

    return bounded


def _fields(text: str, method: str) -> dict[str, Any] | None:
    """The values of fields in a message with this method; None where it is no such message."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    data = found.get("data") if isinstance(found, dict) and found.get("method") == method else None
    if not isinstance(data, dict):
        return None
    return {name: _plain(value) for name, value in data.items() if _FIELD.fullmatch(name)}


def _plain(value: object) -> str | int | float | None:
    return value if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _with_policy(send: Send, host: str) -> Send:
    async def headed(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(b"content-security-policy", _POLICY.format(host=host).encode("latin-1")),
                    (b"referrer-policy", b"no-referrer"), (b"x-content-type-options", b"nosniff")]  # fmt: skip
            message["headers"] = [*message.get("headers", []), *more]
        await send(message)

    return headed


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    with contextlib.suppress(Exception):  # after a malformed body the connection is closed: nobody hears the refusal
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"refused\n"})
