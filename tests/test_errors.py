import copy

import pytest

from mcrepar import errors
from mcrepar.errors import McreparError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, McreparError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_message_has_three_parts(cls):
    error = cls("what was asked", "why not", "something else")
    assert str(error) == "what was asked: why not. Use something else."
    assert (error.asked, error.why, error.instead) == ("what was asked", "why not", "something else")
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("instead", "ending"),
    [
        ("Start it without torchrun.", "Start it without torchrun."),
        ("Adam", "Use Adam."),  # a name begins with a capital letter too
        ("--ood NAME,as=another ...", "Use --ood NAME,as=another ...."),
    ],
)
def test_the_third_part_is_a_sentence_or_becomes_one(instead, ending):
    error = McreparError("a", "b", instead)
    assert str(error) == f"a: b. {ending}"
    assert error.instead == instead


@pytest.mark.parametrize("cls", CLASSES)
def test_survives_a_copy_as_between_processes(cls):
    error = copy.copy(cls("a", "b", "c"))
    assert type(error) is cls
    assert str(error) == "a: b. Use c."


@pytest.mark.parametrize("cls", CLASSES)
def test_a_part_is_named_before_what_was_asked(cls):
    error = cls("a", "b", "c").within("head.weight")
    assert type(error) is cls
    assert str(error) == "head.weight: a: b. Use c."


def test_warnings_are_user_warnings():
    assert issubclass(errors.InfiniteVarianceWarning, UserWarning)
    assert issubclass(errors.TaylorWarning, UserWarning)
