"""Answers are JSON that any browser reads."""

import json
import math

import numpy as np

from mcrepar.workbench.app.answer import Answer, Figure, Gallery, Picture, Table, line

FIGURE = Figure(
    "a",
    "A",
    "words",
    [line("one", [1, 2], np.array([math.nan, 1 / 3]), "@series1", symbol="square")],
    "x",
    "y",
    x_log=True,
)


def strict(value: object) -> object:
    return json.loads(json.dumps(value, allow_nan=False))


def test_what_is_not_finite_is_a_gap_in_a_figure():
    plain = strict(FIGURE.plain())
    assert plain["data"][0]["y"] == [None, 0.3333333]
    assert plain["data"][0]["marker"]["symbol"] == "square"
    assert plain["layout"]["xaxis"]["type"] == "log"
    assert plain["layout"]["yaxis"]["type"] == "linear"


def test_tables_keep_all_digits_and_name_infinity():
    plain = strict(Table("t", "T", ("a", "b", "c", "d"), [(1 / 3, math.inf, math.nan, None)]).plain())
    assert plain["rows"] == [[1 / 3, "infinite", None, None]]


def test_a_whole_answer():
    answer = Answer(
        "done",
        ["note"],
        [FIGURE],
        [Table("t", "T", ("a",), [(1,)])],
        [Gallery("g", [Picture("data:", "c", "alt")])],
        "code",
    )
    plain = strict(answer.plain())
    assert plain["galleries"][0]["pictures"][0] == {"source": "data:", "caption": "c", "alt": "alt"}
    assert set(plain) == {"headline", "notes", "figures", "tables", "galleries", "code", "banner"}
