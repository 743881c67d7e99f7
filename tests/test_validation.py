"""Types of options: which values pass, and that every option of readers and networks has a type that is known."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_type_hints

import numpy as np
import pytest
import torch

from mcrepar.data import DATASETS, load
from mcrepar.errors import ParameterError
from mcrepar.models import MODELS, model
from mcrepar.validation import check_generator, closest, described, fits, real_number, whole_number
from mcrepar.workbench.evaluation import EvaluateOptions
from mcrepar.workbench.training.config import TrainConfig


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (int, [0, -3, np.int64(3)], [True, 1.0, "1", None]),
        (float, [0, 1.5, np.float32(0.5)], [False, "1.5", None]),
        (bool, [True], [1, "yes"]),
        (str, ["", "a"], [1, None, ["a"]]),
        (int | None, [None, 3], ["none", 1.5]),
        (int | Literal["exact"], [3, "exact"], ["exactly", 1.5]),
        (Sequence[int], [[], [1, 2], (3,)], [3, "12", [1.0], [True]]),
        (Sequence[str], [["no", "yes"]], ["no", [False, True], [0, 1]]),
        (tuple[str, ...], [(), ("a",)], ["a", (1,)]),
        (Mapping[str, Any], [{}, {"a": 1}], [[1], None]),
    ],
)
def test_values(kind, right, wrong):
    assert all(fits(value, kind) for value in right)
    assert not any(fits(value, kind) for value in wrong)


def test_every_option_is_of_a_known_type_and_its_default_fits():
    for row in DATASETS.values():
        assert all(described(kind) != "names with values" for kind in row.options.values())
    for row in MODELS.values():
        kinds = get_type_hints(row.make.__init__)
        assert all(fits(value, kinds[name]) for name, value in row.options.items() if value is not ...), row.home
    for options in (TrainConfig(), EvaluateOptions()):
        assert all(fits(getattr(options, name), kind) for name, kind in get_type_hints(type(options)).items())


@pytest.mark.parametrize(
    "call",
    [
        lambda: load("digits", test_share="abc"),
        lambda: load("digits", seed="abc"),
        lambda: load("arrays", "data.npz", classes="ab"),
        lambda: load("arrays", "data.npz", classes=[False, True]),
        lambda: load("nifti", ".", regression="maybe"),
        lambda: model("fcnet", size=(8,), hidden="abc"),
        lambda: model("vgg11", batch_norm="no"),
    ],
)
def test_readers_and_networks_refuse_other_types(call):
    with pytest.raises(ParameterError, match=r"no value of this option|it counts something"):
        call()


@pytest.mark.parametrize(
    ("name", "near"),
    [("digitz", ["digits"]), ("MNIST", ["mnist", "fashion_mnist"]), ("zzz", ["digits", "fashion_mnist", "mnist"])],
)
def test_the_closest_names_come_first_and_all_where_none_is_close(name, near):
    assert closest(name, ["digits", "fashion_mnist", "mnist"]) == near


def test_a_seed_is_no_generator():
    check_generator(None)
    check_generator(torch.Generator())
    with pytest.raises(ParameterError, match=r"generator=3: it is of type int, not a torch.Generator"):
        check_generator(3)


@pytest.mark.parametrize(("value", "why"), [(True, "it is a bool"), (2.0, "it is a float"), (0, "it is too small")])
def test_what_is_no_count_is_refused(value, why):
    assert whole_number("draws", np.int64(3)) == 3
    with pytest.raises(ParameterError, match=why):
        whole_number("draws", value)


@pytest.mark.parametrize(
    ("value", "bounds", "why"),
    [
        ("3", {}, "x='3': it is not a finite number. Use a finite number"),
        (True, {}, "x=True: it is not a finite number"),
        (math.nan, {}, "x=nan: it is not a finite number"),
        (math.inf, {"low": 0}, "x=inf: it is not a positive number"),
        (0, {"low": 0}, "x=0: it is not a positive number"),
        (-0.1, {"low": 0, "closed": True}, "it is not a finite number of at least 0"),
        (torch.zeros(()), {"low": 0, "closed": True}, "it is not a finite number of at least 0"),
        (1, {"low": 0, "high": 1}, "it is not a positive number and below 1"),
        (800, {"low": -700, "high": 700, "instead": "-3"}, "it is not a number above -700 and below 700. Use -3"),
    ],
)
def test_numbers_outside_of_their_bounds_are_refused(value, bounds, why):
    with pytest.raises(ParameterError, match=re.escape(why)):
        real_number("x", value, **bounds)


def test_numbers_between_their_bounds_are_floats():
    assert real_number("x", 0, 0, closed=True) == 0.0
    assert isinstance(real_number("x", np.float32(0.5), 0, 1), float)
