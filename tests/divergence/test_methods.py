"""The options of an estimator: what is accepted, and the three parts of what is not."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest
import torch

import mcrepar
from mcrepar import MethodError, ParameterError, kl_divergence, prior
from mcrepar.divergence.methods import DEFAULT_BYTES, DEFAULT_DRAWS, METHODS, Estimator
from tests.conftest import example_posterior

SAMPLED = [name for name, row in METHODS.items() if row.samples]


def three_parts(error):
    """The message is what was asked, why not, and what to use instead."""
    assert error.asked
    assert error.why
    assert error.instead
    assert str(error) == f"{error.asked}: {error.why}. Use {error.instead}."


def test_defaults():
    estimator = Estimator()
    assert (estimator.method, estimator.n_mc_iter, estimator.entropy, estimator.force) == ("auto", None, "exact", False)
    assert estimator.draws == DEFAULT_DRAWS
    assert estimator.max_bytes == DEFAULT_BYTES == 64 * 2**20
    assert Estimator("repar", 7).draws == 7


def test_it_is_a_value():
    """Frozen, equal by its fields and hashable: a key of caches."""
    assert Estimator("repar", 7) == Estimator("REPAR", 7)
    assert len({Estimator("repar", 7), Estimator("repar", 7), Estimator("repar", 8)}) == 2
    with pytest.raises(FrozenInstanceError):
        Estimator().method = "exact"


@pytest.mark.parametrize("name", ["closed", "Closed", "EXACT"])
def test_spellings(name):
    assert Estimator(name).method == "exact"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_accepted(method):
    assert Estimator(method).method == method


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("repra", "'repar'"), ("streem", "'stream'"), ("exakt", "'exact'"), ("quadrature", "'quad'")]
)
def test_an_unknown_method_names_the_nearest(wrong, nearest):
    with pytest.raises(MethodError, match="no method has this name") as caught:
        Estimator(wrong)
    assert nearest in caught.value.instead
    assert repr(wrong) in caught.value.asked
    three_parts(caught.value)


def test_an_unknown_method_like_none_lists_all():
    with pytest.raises(MethodError) as caught:
        Estimator("zzzz")
    assert all(repr(m) in caught.value.instead for m in ("auto", *METHODS))


@pytest.mark.parametrize("method", ["auto", *SAMPLED])
@pytest.mark.parametrize("draws", [0, -1, 2.5, True, False, "3", math.nan, 10.0])
def test_draws_are_a_whole_number_of_at_least_one(method, draws):
    """By every method that draws, and through kl_divergence."""
    with pytest.raises(ParameterError, match="n_mc_iter") as caught:
        Estimator(method, draws)
    three_parts(caught.value)
    assert "whole number" in caught.value.instead
    with pytest.raises(ParameterError, match="n_mc_iter"):
        kl_divergence(example_posterior("normal"), prior("normal"), method, draws)


@pytest.mark.parametrize("method", ["exact", "quad", "closed"])
def test_draws_where_nothing_is_drawn(method):
    with pytest.raises(MethodError, match="it draws nothing") as caught:
        Estimator(method, 10)
    assert "n_mc_iter=10" in caught.value.asked
    assert "'stats' with n_mc_iter" in caught.value.instead
    three_parts(caught.value)


@pytest.mark.parametrize("method", ["exact", "quad"])
def test_a_sampled_entropy_where_nothing_is_drawn(method):
    with pytest.raises(MethodError, match="entropy='mc'") as caught:
        Estimator(method, entropy="mc")
    three_parts(caught.value)


@pytest.mark.parametrize("option", [{"degree": 3}, {"center": 0.5}])
@pytest.mark.parametrize("method", ["auto", *(m for m in METHODS if m != "taylor")])
def test_options_of_taylor_only(method, option):
    with pytest.raises(MethodError, match="only taylor has it") as caught:
        Estimator(method, **option)
    assert next(iter(option)) in caught.value.asked
    three_parts(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"degree": 0},
        {"degree": 2.0},
        {"degree": True},
        {"center": math.nan},
        {"center": math.inf},
        {"max_bytes": 10},
        {"max_bytes": 1e6},
        {"max_bytes": -1},
    ],
)
def test_values_out_of_range(options):
    with pytest.raises(ParameterError, match=next(iter(options))) as caught:
        Estimator("taylor", **options)
    three_parts(caught.value)


@pytest.mark.parametrize("entropy", ["MC", "sampled", None, True])
def test_an_unknown_entropy(entropy):
    with pytest.raises(MethodError, match="entropy") as caught:
        Estimator("repar", entropy=entropy)
    assert caught.value.instead == "'exact' or 'mc'"


def test_every_error_is_a_value_error():
    """One class to catch, and Python's own."""
    with pytest.raises(ValueError, match="no method"):
        Estimator("nothing")
    with pytest.raises(mcrepar.McreparError):
        Estimator("repar", 0)


def test_options_are_refused_before_the_pair_is_looked_at():
    """A wrong option on a pair that is refused as well: nothing is drawn, nothing is planned."""
    state = torch.random.get_rng_state()
    with pytest.raises(ParameterError, match="n_mc_iter"):
        kl_divergence(example_posterior("normal"), prior("exponential"), "repar", 0)
    assert torch.equal(torch.random.get_rng_state(), state)
