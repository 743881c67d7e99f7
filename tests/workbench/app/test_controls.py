"""What fields accept, what they say, and that nothing hostile gets through."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcrepar.workbench.app.controls import Choice, FieldError, Number, Slider, Switch, parse_number

COUNT = Number("count", "Count", "10", least=1, most=1e6, whole=True)
SHARE = Number("share", "Share", "0.5", least=0.0, most=1.0)
NETWORK = Number(
    "network", "Network", "vgg16", least=1, most=1e9, whole=True, words=("vgg16", "preact_resnet18", "resnet20")
)
CHOICE = Choice("kind", "Kind", "a", choices={"a": "A", "b": "B"})
SWITCH = Switch("on", "On", "true")
SLIDER = Slider("tau", "Threshold", "0.9", least=0.0, most=1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1000", 1000), ("1,000", 1000), ("1_000", 1000), ("1 000", 1000), ("10^6", 1e6), ("2*10^3", 2000),
     ("2 x 10^-3", 0.002), ("1e3", 1000), (".5", 0.5), ("5.", 5.0), ("\u22123", -3), ("+7", 7)],
)  # fmt: skip
def test_numbers_as_people_type_them(text, value):
    assert parse_number(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", "abc", "1e", "nan", "inf", "0x10", "1..2", "__import__('os')", "1e99999", "--1", "10^", "ten"]
)
def test_what_is_no_number(text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_number(text)


@pytest.mark.parametrize(
    ("control", "raw", "says"),
    [
        (COUNT, "", "Type a number."),
        (COUNT, "   ", "Type a number."),
        (COUNT, "abc", "“abc” is no number; type one such as 10."),
        (COUNT, "-5", "-5 is too small: at least 1."),
        (COUNT, "0", "0 is too small: at least 1."),
        (COUNT, "1e30", "1e30 is too large: at most 1,000,000."),
        (COUNT, "1e9999", "1e9999 is too large"),
        (COUNT, "2.5", "2.5 is not a whole number."),
        (COUNT, None, "no number"),
        (COUNT, [1, 2], "no number"),
        (COUNT, {"a": 1}, "no number"),
        (SHARE, "1.1", "too large: at most 1."),
        (NETWORK, "", "Type a number or a name."),
        (NETWORK, "lenet", "or a name from the list"),
        (NETWORK, "resnet", "or a name from the list"),  # which of the two?
        (CHOICE, "c", "“c” is not in the list."),
        (CHOICE, ["a"], "not in the list"),
        (SWITCH, "maybe", "on or off"),
        (SLIDER, "2", "too large"),
        (SLIDER, "x", "no number"),
    ],
)
def test_the_field_says_what_is_wrong(control, raw, says):
    with pytest.raises(FieldError) as caught:
        control.read(raw)
    assert says in caught.value.text


@pytest.mark.parametrize(
    ("control", "raw", "value"),
    [(COUNT, "10^6", 10**6), (COUNT, 7, 7), (SHARE, "0.25", 0.25), (NETWORK, "VGG-16", "vgg16"),
     (NETWORK, "ResNet-18", "preact_resnet18"), (NETWORK, "resnet20", "resnet20"), (NETWORK, "20", 20),
     (CHOICE, "b", "b"), (SWITCH, "false", False), (SWITCH, True, True), (SLIDER, "0.5", 0.5)],
)  # fmt: skip
def test_what_is_right_is_read(control, raw, value):
    assert control.read(raw) == value
    assert type(control.read(raw)) is type(value)


def test_an_empty_field_may_mean_nothing():
    assert Number("size", "Size", "", blank=True).read("") is None


hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["9" * 5000, "1e" + "9" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(hostile)
def test_anything_is_read_within_the_bounds_or_refused(raw):
    for control in (COUNT, SHARE, NETWORK, CHOICE, SWITCH, SLIDER):
        try:
            value = control.read(raw)
        except FieldError as error:
            sentence = error.text
        else:
            sentence = "right"
            if isinstance(control, Number) and not isinstance(value, str):
                assert control.least <= value <= control.most
                assert math.isfinite(value)
        assert 0 < len(sentence) < 200
        assert len(control.text(raw)) <= 200


def test_fields_are_tied_to_their_hints_and_errors():
    html = str(Number("count", "Count", "10", "How many.", {"kind": ("a", "b")}).drawn("view", "<b>12</b>"))
    for part in ('id="view_count"', 'for="view_count"', 'id="view_count-hint"', 'id="view_count-error"', "How many.",
                 'data-needs-kind="a b"', "&lt;b&gt;12"):  # fmt: skip
        assert part in html


@pytest.mark.parametrize("control", [COUNT, SWITCH, CHOICE, SLIDER], ids=lambda control: control.name)
def test_frozen_controls_offer_what_is_stored(control):
    texts = {"count": ("10", "20"), "on": ("true", "false"), "kind": ("b", "a"), "tau": ("0.9", "1")}[control.name]
    frozen = control.frozen(texts)
    assert list(frozen.options) == list(texts)
    assert frozen.default == texts[0]
    assert frozen.name == control.name


def test_presets_are_texts_that_the_field_takes():
    presets = {"Sizes": {"10^2": "small"}, "Networks": {"vgg16": "VGG-16", "resnet20": "ResNet-20"}}
    field = str(replace(NETWORK, presets=presets).drawn("view", "vgg16"))
    texts = re.findall(r'<option value="([^"]*)">', field)
    assert texts == ["10^2", "vgg16", "resnet20"]
    assert [NETWORK.read(text) for text in texts] == [100, "vgg16", "resnet20"]
    assert " id=" not in re.search(r"<select[^>]*>", field)[0]  # Shiny would take it for an input of its own
    assert "<select" not in str(NETWORK.drawn("view", "vgg16"))
