"""What may reach the app: its own pages only, and no more than a person types.

A page of another site cannot speak to it (the names of host and origin are checked, so that a name that is made to
point here does not help), nothing is uploaded, and the browser is told to fetch nothing from elsewhere.
"""

from __future__ import annotations

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
            await self.app(scope, _counted(receive), send)
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


def _counted(receive: Receive) -> Receive:
    """Messages until a connection has sent more than people do; then it is told that the page has gone."""
    total = 0

    async def bounded() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("text") or "") + len(message.get("bytes") or b"")
        return message if total <= _MOST_BYTES else {"type": "websocket.disconnect", "code": 1009}

    return bounded


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
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"refused\n"})
