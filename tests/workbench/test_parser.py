"""A value that an option does not take is refused in one sentence of three parts."""

import re

import pytest

from mcrepar.workbench.cli import main
from mcrepar.workbench.parser import sentence

REFUSED = {
    "train --lr nan": "--lr nan: it is not a finite number. Use --lr 0.1.",
    "train --epochs abc": "--epochs abc: it is not a whole number. Use --epochs 10.",
    "train --augment flop": "--augment flop: it is not auto or crop_flip or crop or flip or none. Use --augment flip.",
    "train --patience x": "--patience x: it is not a whole number or null. Use --patience 10.",
    "train --signs up": "--signs up: it is not keep or positive. Use --signs keep or --signs positive.",
    "train --model-options 3": "--model-options 3: it is not names with their values. Use --model-options.NAME VALUE.",
    "evaluate runs/a --draws moment": "--draws moment: it is not a whole number or moments. Use --draws moments.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_value_is_refused_in_a_sentence(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    assert re.search(r"^error: (.*)\n\Z", capsys.readouterr().err, re.MULTILINE)[1] == REFUSED[words]


def test_other_messages_stay_as_they_are():
    assert sentence("unrecognized arguments: --nosuch 3") == "unrecognized arguments: --nosuch 3"
    assert sentence('Parser key "x":\n  Something new') == 'Parser key "x":\n  Something new'
