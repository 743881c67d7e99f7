"""The Shiny session: fields in, answers out. Computed in threads, the newest question of a user first and only."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any

from shiny import Inputs, Outputs, Session, reactive

from mcrepar.errors import McreparError
from mcrepar.workbench.app.controls import FieldError
from mcrepar.workbench.app.view import View

_REMEMBERED = 128  # answers; the largest is about 200 kB

Message = dict[str, Any]


class Answers:
    """Answers the questions of all users.

    Args:
        views: by name.
    """

    def __init__(self, views: Mapping[str, View]) -> None:
        self.views = views
        self._remembered = lru_cache(_REMEMBERED)(self._compute)

    def reply(self, view: View, raw: Mapping[str, object], again: bool) -> Message:
        """The message for a page: an answer, or what is wrong with which field.

        Args:
            view: that is looked at.
            raw: what the page sent.
            again: whether the page shows a picture, which then stays; if not, defaults stand in for wrong fields.
        """
        texts = view.texts(raw)
        _, errors = view.read(texts)
        message: Message = {"view": view.name, "texts": texts, "errors": errors, "notice": ""}
        if errors and again:
            return message
        texts = {name: view.defaults[name] if name in errors else text for name, text in texts.items()}
        key = (view.name, tuple(texts.items()))
        try:
            message["answer"] = self._remembered(*key) if view.lasting else self._compute(*key)
            message["link"] = view.link(texts)
        except FieldError as error:
            errors[error.name] = error.text
        except McreparError as error:
            message["notice"] = str(error)
        except ArithmeticError as error:
            message["notice"] = f"These values are too extreme to compute with ({error})."
        except Exception as error:  # a fault of ours: the page says so, the terminal where, and the app stays up
            traceback.print_exc()
            message["notice"] = f"unexpected {type(error).__name__}: {error}"
        return message

    def _compute(self, name: str, texts: tuple[tuple[str, str], ...]) -> Message:
        view = self.views[name]
        values, _ = view.read(dict(texts))
        return view.compute(values).plain()


class Desk:
    """Where one user's questions are answered, one at a time; those that a newer one has overtaken never are.

    Args:
        answers: of the whole app.
        pool: the threads that compute.
        send: takes a message to the page.
    """

    def __init__(self, answers: Answers, pool: Executor, send: Callable[[Message], Awaitable[None]]) -> None:
        self._answers, self._pool, self._send = answers, pool, send
        self._newest: tuple[View, Mapping[str, object]] | None = None
        self._shown: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def ask(self, view: View, raw: Mapping[str, object]) -> None:
        """Take a question."""
        self._newest = (view, raw)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        """The user has gone."""
        self._newest = None
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._newest is not None:
            (view, raw), self._newest = self._newest, None
            again = view.name in self._shown
            message = await loop.run_in_executor(self._pool, self._answers.reply, view, raw, again)
            if "answer" in message:
                self._shown.add(view.name)
            await self._send(message)


def server_of(answers: Answers, pool: Executor) -> Callable[[Inputs, Outputs, Session], None]:
    """The function that Shiny calls for every user."""

    def server(input: Inputs, output: Outputs, session: Session) -> None:
        async def send(message: Message) -> None:
            await session.send_custom_message("answer", message)

        desk = Desk(answers, pool, send)
        session.on_ended(desk.close)

        @reactive.effect
        def _() -> None:
            view = answers.views.get(str(input["view"]()))
            if view is not None:
                desk.ask(view, {c.name: input[f"{view.name}_{c.name}"]() for c in view.every})

    return server
