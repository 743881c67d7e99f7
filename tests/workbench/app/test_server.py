"""Questions and answers without a browser: what stays, what is said, what is overtaken, what is bounded."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcrepar.errors import ParameterError
from mcrepar.workbench.app.answer import Answer
from mcrepar.workbench.app.controls import FieldError, Number, Switch
from mcrepar.workbench.app.server import Answers, Desk
from mcrepar.workbench.app.view import View


def view_of(compute, **more) -> View:
    controls = (Number("count", "Count", "3", least=1, most=100, whole=True), Switch("log", "Log", "true"))
    return View("view", "View", "A view", ("Words.",), controls, compute, **more)


def echo(values) -> Answer:
    return Answer(f"count is {values['count']}")


@pytest.fixture
def answers():
    return Answers({"view": view_of(echo)})


def test_an_answer_carries_its_settings_and_its_link(answers):
    reply = answers.reply(answers.views["view"], {"count": "7", "log": True}, again=True)
    assert reply["answer"]["headline"] == "count is 7"
    assert reply["texts"] == {"count": "7", "log": "true"}
    assert reply["link"] == "view=view&count=7"
    assert reply["errors"] == {}


def test_a_wrong_field_leaves_the_picture(answers):
    reply = answers.reply(answers.views["view"], {"count": "-1", "log": True}, again=True)
    assert "answer" not in reply
    assert "too small" in reply["errors"]["count"]


def test_a_page_that_shows_nothing_yet_gets_the_start_value_instead(answers):
    reply = answers.reply(answers.views["view"], {"count": "nonsense"}, again=False)
    assert reply["answer"]["headline"] == "count is 3"
    assert "no number" in reply["errors"]["count"]
    assert reply["link"] == "view=view"


@pytest.mark.parametrize(
    ("error", "part", "says"),
    [
        (FieldError("Type more.", "count"), "errors", "Type more."),
        (ParameterError("this", "it cannot be", "that"), "notice", "this: it cannot be. Use that."),
        (OverflowError("too large"), "notice", "too extreme"),
    ],
)
def test_what_a_view_refuses_is_said(error, part, says):
    def compute(values):
        raise error

    answers = Answers({"view": view_of(compute)})
    reply = answers.reply(answers.views["view"], {}, again=True)
    assert "answer" not in reply
    assert says in json.dumps(reply[part])


@pytest.mark.parametrize(
    "text", ["\ud800", "7\udcff", "\0", "\u202e7", "7" * 10**5, [[]], {"a": "\ud800"}, None, 1e400]
)
def test_any_text_can_be_sent_back(answers, text):
    reply = answers.reply(answers.views["view"], {"count": text, "log": text}, again=False)
    assert reply["answer"]["headline"] == "count is 3"
    assert reply["errors"].keys() == {"count", "log"}
    assert json.dumps(reply, ensure_ascii=False).encode()


def test_a_fault_of_ours_is_said_and_survived(capsys):
    answers = Answers({"view": view_of(lambda values: {}["x"])})
    reply = answers.reply(answers.views["view"], {}, again=True)
    assert reply["notice"].startswith("unexpected KeyError")
    assert "Traceback" in capsys.readouterr().err


def test_the_same_question_is_computed_once_unless_its_answer_may_change():
    asked = []
    for lasting, times in ((True, 1), (False, 3)):
        asked.clear()
        view = view_of(lambda values: asked.append(1) or echo(values), lasting=lasting)
        answers = Answers({"view": view})
        for _ in range(3):
            answers.reply(view, {}, again=True)
        assert len(asked) == times


def test_what_is_remembered_is_bounded():
    asked = []
    view = view_of(lambda values: asked.append(1) or echo(values))
    view = View(**{**vars(view), "controls": (Number("count", "Count", "3", least=1, most=1e6, whole=True),)})
    answers = Answers({"view": view})
    for count in (*range(1, 1000), 1):
        answers.reply(view, {"count": str(count)}, again=True)
    assert len(asked) == 1000  # the first had been forgotten


@pytest.mark.parametrize(
    "raw", [{"count": ["a"] * 1000}, {"count": {"x": 1}}, {"log": 3}, {"count": None}, {"other": 1}]
)
def test_a_hand_made_message_is_an_error_or_a_default(answers, raw):
    reply = answers.reply(answers.views["view"], raw, again=True)
    assert reply["errors"] or reply["answer"]


def test_only_the_newest_question_of_a_user_is_answered():
    go, asked, sent = threading.Event(), [], []

    def compute(values) -> Answer:
        asked.append(values["count"])
        go.wait(10)
        return echo(values)

    async def session() -> None:
        async def send(message) -> None:
            sent.append(message["texts"]["count"])

        answers = Answers({"view": view_of(compute)})
        with ThreadPoolExecutor(2) as pool:
            desk = Desk(answers, pool, send)
            desk.ask(answers.views["view"], {"count": "1"})
            while not asked:
                await asyncio.sleep(0.01)
            for count in range(2, 30):
                desk.ask(answers.views["view"], {"count": str(count)})
                await asyncio.sleep(0)
            go.set()
            while len(sent) < 2:
                await asyncio.sleep(0.01)
            desk.close()

    asyncio.run(session())
    assert asked == [1, 29]
    assert sent == ["1", "29"]


def test_a_user_who_has_gone_gets_nothing():
    sent = []

    async def session() -> None:
        async def send(message) -> None:
            sent.append(message)

        answers = Answers({"view": view_of(echo)})
        with ThreadPoolExecutor(1) as pool:
            desk = Desk(answers, pool, send)
            desk.ask(answers.views["view"], {"count": "1"})
            desk.close()
            await asyncio.sleep(0.05)

    asyncio.run(session())
    assert sent == []
