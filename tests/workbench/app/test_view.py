"""What holds for every view: it answers its defaults, its links restore, its stored values are its own."""

import json
from itertools import islice, product
from urllib.parse import parse_qsl

import pytest

from mcrepar.workbench.app.controls import Number
from mcrepar.workbench.app.server import Answers
from mcrepar.workbench.app.views import all_views
from tests.workbench.app.example_run import write_run

NAMES = ("run", "network", "quality", "distributions", "graph", "memory")


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app") / "runs"
    write_run(folder / "one")
    return all_views(folder)


def test_your_own_come_first_and_the_paper_s_share_a_tab(views):
    assert tuple(views) == NAMES
    assert [view.group for view in views.values()] == ["", "", *["The paper"] * 4]


@pytest.mark.parametrize("name", NAMES)
def test_the_start_values_have_an_answer(views, name):
    view = views[name]
    values, errors = view.read(view.defaults)
    assert errors == {}
    plain = view.compute(values).plain()
    json.dumps(plain, allow_nan=False)
    assert plain["headline"]
    assert plain["figures"]
    assert plain["tables"]
    assert plain["code"]
    for figure in plain["figures"]:
        assert figure["alt"].endswith(".")
        assert figure["title"]
    for table in plain["tables"]:
        assert {len(row) for row in table["rows"]} == {len(table["header"])}


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_bounded(views, name):
    for control in views[name].every:
        if isinstance(control, Number):
            assert control.most < 2**31
            assert control.least >= -1e6


@pytest.mark.parametrize("name", NAMES)
def test_a_link_restores_the_settings(views, name):
    view = views[name]
    changed = {c: t for c, texts in view.stored().items() if (t := texts[-1]) != view.defaults[c]}
    texts = view.texts({**view.defaults, **changed})
    query = dict(parse_qsl(view.link(texts)))
    assert query.pop("view") == name
    assert query == changed
    assert view.texts(query) == texts


@pytest.mark.parametrize("name", NAMES)
def test_stored_values_are_right_and_begin_with_the_default(views, name):
    view = views[name]
    stored = view.stored()
    assert {n: texts[0] for n, texts in stored.items()} == {n: view.defaults[n] for n in stored}
    answers = Answers(views)
    for case in islice(product(*stored.values()), 0, None, 97):
        reply = answers.reply(view, dict(zip(stored, case, strict=True)), again=False)
        assert reply["errors"] == {}
        assert "answer" in reply or reply["notice"]
        assert "unexpected" not in reply["notice"]


def test_a_hidden_field_cannot_be_wrong(views):
    view = views["distributions"]
    texts = view.texts({"posterior": "gamma", "q_loc": "no number", "prior": "normal", "p_df": "-7"})
    _, errors = view.read(texts)
    assert errors == {}  # gamma has no location, the normal prior no degrees of freedom
    _, errors = view.read({**texts, "posterior": "normal", "prior": "student_t"})
    assert set(errors) == {"q_loc", "p_df"}
