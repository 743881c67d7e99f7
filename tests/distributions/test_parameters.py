"""Every parameter of the two tables with every kind of bad value: the message names parameter, constraint, offender."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest
import torch

import mcrepar
from mcrepar import POSTERIORS, PRIORS, ParameterError, UnknownFamilyError
from mcrepar.distributions.parameters import (
    HALF_LINE,
    LINE,
    POSITIVE,
    REAL,
    UNIT,
    WHOLE,
    Interval,
    Parameter,
    canonical,
    check_value,
)
from tests.conftest import example_posterior, example_prior

BAD = {
    REAL.text: [math.nan, math.inf, -math.inf],
    POSITIVE.text: [0.0, -2.5, math.nan, math.inf],
    UNIT.text: [0.0, 1.0, -0.5, 1.5, math.nan],
    WHOLE.text: [0.0, 2.5, -3.0, math.nan, math.inf],
}


@dataclass(frozen=True)
class Case:
    """One parameter of one row, and how to make the row with another value of it."""

    table: str
    row: str
    parameter: Parameter

    def make(self, value):
        if self.table == "prior":
            return mcrepar.prior(self.row, **{self.parameter.name: value})
        q = example_posterior(self.row)
        learned = dict(zip(q.row.learned, q.learned, strict=True)) | {self.parameter.name: value}
        if "log_scale" in learned:
            del learned["scale"]
        return mcrepar.posterior(self.row, **learned)

    def __str__(self):
        return f"{self.table}-{self.row}-{self.parameter.name}"


def cases() -> list[Case]:
    found = [Case("prior", name, p) for name, row in PRIORS.items() for p in row.parameters]
    for name, row in POSTERIORS.items():
        learned = [Parameter("scale", POSITIVE), Parameter("log_scale", REAL)]
        learned += [Parameter("loc", REAL)] if "loc" in row.learned else []
        found += [Case("posterior", name, p) for p in (*row.fixed, *learned)]
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
def test_bad_numbers_are_named(case):
    for bad in BAD[case.parameter.constraint.text]:
        wrong = f"{case.parameter.name} must be {case.parameter.constraint.text}, but is {bad:g}"
        pattern = rf"{case.table}\('{case.row}'\).*{re.escape(wrong)}"
        with pytest.raises(ParameterError, match=pattern):
            case.make(bad)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_bad_elements_of_tensors_are_named(case):
    """The first offender, its place, and how many there are."""
    bad = BAD[case.parameter.constraint.text][0]
    good = {UNIT.text: 0.5}.get(case.parameter.constraint.text, 2.0)
    value = torch.tensor([good, bad, bad], dtype=torch.float64)
    pattern = (
        rf"{case.parameter.name} must be {case.parameter.constraint.text}, but is {bad:g} at \(1,\) \(2 of 3 values\)"
    )
    with pytest.raises(ParameterError, match=pattern):
        case.make(value)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_other_types_are_refused(case):
    for bad, why in (
        ("1", "is a str|one of these words"),
        (True, "is a bool"),
        ([1.0], "is a list"),
        (torch.tensor(2), "dtype torch.int64"),
    ):
        with pytest.raises(ParameterError, match=rf"{case.parameter.name}.*{why}"):
            case.make(bad)
    if not case.parameter.optional:
        with pytest.raises(ParameterError, match=f"{case.parameter.name} is a NoneType"):
            case.make(None)


@pytest.mark.parametrize("case", [c for c in cases() if c.parameter.default is not None], ids=str)
def test_defaults_are_valid_and_used(case):
    assert check_value("default", case.parameter, case.parameter.default) == case.parameter.default
    made = example_prior(case.row).values if case.table == "prior" else mcrepar.posterior(case.row).fixed
    assert made[case.parameter.name] == case.parameter.default


@pytest.mark.parametrize("name", POSTERIORS)
def test_unknown_parameters_are_refused_with_the_known_ones(name):
    with pytest.raises(ParameterError, match=rf"posterior\('{name}'\).*no parameter 'sigma'.*scale.*log_scale"):
        mcrepar.posterior(name, sigma=torch.ones(2))


@pytest.mark.parametrize("name", PRIORS)
def test_unknown_parameters_of_priors_are_refused_with_the_known_ones(name):
    with pytest.raises(ParameterError, match=rf"no parameter 'sigma'.*{PRIORS[name].parameters[-1].name}"):
        mcrepar.prior(name, sigma=1.0)


@pytest.mark.parametrize("make", [mcrepar.posterior, mcrepar.prior])
@pytest.mark.parametrize(
    ("given", "nearest"),
    [("normel", "'normal'"), ("gama", "'gamma'"), ("invers_gamma", "'inverse_gamma'"), ("Horse-shoo", "'horseshoe'")],
)
def test_unknown_names_suggest_the_nearest(make, given, nearest):
    with pytest.raises(UnknownFamilyError, match=rf"{make.__name__} '{given}'.*no family has this name.*{nearest}"):
        make(given)


@pytest.mark.parametrize("make", [mcrepar.posterior, mcrepar.prior])
def test_a_name_like_no_other_lists_them_all(make):
    table = POSTERIORS if make is mcrepar.posterior else PRIORS
    with pytest.raises(UnknownFamilyError) as caught:
        make("zzzz")
    assert all(repr(name) in str(caught.value) for name in table)
    with pytest.raises(UnknownFamilyError, match="by its name"):
        make(3)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Radial", "radial"),
        ("Gaus", "normal"),
        ("Gaussian", "normal"),
        ("Normal", "normal"),
        ("Inverse-Gamma", "inverse_gamma"),
        ("inverse gamma", "inverse_gamma"),
        ("InverseGamma", "inverse_gamma"),
        ("Log-normal", "lognormal"),
        ("Standard Wald", "wald"),
        ("LAPLACE", "laplace"),
        (" erlang ", "erlang"),
    ],
)
@pytest.mark.parametrize("make", [mcrepar.posterior, mcrepar.prior])
def test_the_papers_spellings(make, given, name):
    assert make(given).name == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Chi-squared", "chi_squared"),
        ("Inverse-Gaussian", "inverse_gaussian"),
        ("Student-t", "student_t"),
        ("Pareto", "pareto"),
    ],
)
def test_the_papers_spellings_of_priors(given, name):
    assert mcrepar.prior(given).name == name


@pytest.mark.parametrize(("given", "name"), [("Log-Gamma", "loggamma"), ("Exp-Gamma", "expgamma")])
def test_the_papers_spellings_of_posteriors(given, name):
    assert mcrepar.posterior(given).name == name


def test_every_alias_and_name_finds_its_row():
    for make, table in ((mcrepar.posterior, POSTERIORS), (mcrepar.prior, PRIORS)):
        for name, row in table.items():
            assert canonical(name) == name
            for spelling in (name, *row.aliases):
                assert make(spelling.upper().replace("_", "-")).name == name


@pytest.mark.parametrize("name", [n for n in POSTERIORS if "loc" in POSTERIORS[n].learned])
def test_learned_tensors_must_agree(name):
    ones = torch.ones(3)
    for other, why in ((torch.ones(2), r"\(2,\)"), (torch.ones(3).double(), "float64")):
        with pytest.raises(ParameterError, match=why):
            mcrepar.posterior(name, loc=ones, scale=other)
    with pytest.raises(ParameterError, match="scale is missing"):
        mcrepar.posterior(name, loc=ones)
    with pytest.raises(ParameterError, match="loc is missing"):
        mcrepar.posterior(name, log_scale=ones)


@pytest.mark.parametrize("name", POSTERIORS)
def test_one_scale_and_at_least_one_weight(name):
    learned = dict.fromkeys(POSTERIORS[name].learned, torch.ones(2))
    with pytest.raises(ParameterError, match=r"scale and log_scale.*one parameter"):
        mcrepar.posterior(name, **learned, log_scale=torch.zeros(2))
    with pytest.raises(ParameterError, match="no weight"):
        mcrepar.posterior(name, **dict.fromkeys(POSTERIORS[name].learned, torch.ones(0)))


@pytest.mark.parametrize(
    "case", [c for c in cases() if c.table == "posterior" and c.parameter in POSTERIORS[c.row].fixed], ids=str
)
def test_fixed_parameters_are_numbers(case):
    """A 0-dim tensor is a number; a learned one, and one with a shape, is refused (a location may have one)."""
    value = 2.0
    assert case.make(torch.tensor(value)).fixed[case.parameter.name] == value
    with pytest.raises(ParameterError, match=f"learned {case.parameter.name}.*fixed in this family"):
        case.make(torch.tensor(value, requires_grad=True))
    if case.parameter.name == "loc":
        assert case.make(torch.full((3,), value, dtype=torch.float64)).loc.tolist() == [value] * 3
        with pytest.raises(ParameterError, match=r"loc has shape \(2,\)"):
            case.make(torch.full((2,), value, dtype=torch.float64))
    else:
        with pytest.raises(ParameterError, match="one number"):
            case.make(torch.full((3,), value))


def test_numbers_beside_tensors_take_their_shape():
    q = mcrepar.posterior("normal", loc=0.0, scale=torch.full((2, 3), 0.5, dtype=torch.float64))
    assert q.loc.shape == (2, 3)
    assert q.loc.dtype == torch.float64


def test_intervals():
    assert HALF_LINE in LINE
    assert LINE not in HALF_LINE
    assert Interval(1.0, math.inf) in HALF_LINE
    assert HALF_LINE not in Interval(1e-9, math.inf)
    assert 3.0 not in LINE, "an interval holds intervals"
    assert str(HALF_LINE) == "(0, inf)"


def test_aliases_are_among_the_nearest_names():
    with pytest.raises(mcrepar.UnknownFamilyError, match="'gaussian'"):
        mcrepar.posterior("gausian")
