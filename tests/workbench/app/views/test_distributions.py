"""Every pair of the two tables: the verdict, the methods and the numbers are the library's, and the code runs."""

import re
from itertools import product

import pytest
import torch

import mcrepar
from mcrepar.divergence.methods import METHODS
from mcrepar.divergence.reasons import VERDICTS
from mcrepar.errors import ParameterError
from mcrepar.workbench.app.views.distributions import DISTRIBUTIONS, pair_of

PAIRS = list(product(mcrepar.POSTERIORS, mcrepar.PRIORS))
FEW = {"iterations": "10", "weights": "3"}


def answer(**texts: str):
    values, errors = DISTRIBUTIONS.read(DISTRIBUTIONS.texts({**FEW, **texts}))
    assert errors == {}
    return DISTRIBUTIONS.compute(values), values


def table(found, name: str):
    return next(t for t in found.tables if t.name == name)


@pytest.mark.parametrize("q", mcrepar.POSTERIORS)
def test_every_pair_is_what_the_library_says(q):
    for p in mcrepar.PRIORS:
        found, values = answer(posterior=q, prior=p)
        plan = mcrepar.explain(*pair_of(values, 3))
        assert found.headline.startswith(f"{plan.verdict}: {VERDICTS[plan.verdict].meaning}.")
        applies = {row[0]: row[1] for row in table(found, "methods").rows}
        assert list(applies) == list(METHODS)
        assert {m for m, yes in applies.items() if yes == "yes"} <= set(plan.methods)
        for name, yes, _, why in table(found, "methods").rows:
            assert yes == "yes" or why, f"{name} is refused without a reason"
        assert any(t.name == "tuple" for t in found.tables) == bool(plan.right and plan.statistics)
        drawn = any(yes == "yes" and METHODS[m].samples for m, yes in applies.items())  # not without variance
        assert [f.name for f in found.figures] == ["densities", "convergence"][: 1 + drawn]


@pytest.mark.parametrize(
    ("q", "p"), [("radial", "normal"), ("gamma", "inverse_gaussian"), ("lognormal", "pareto"), ("normal", "laplace")]
)
def test_the_values_are_the_library_s(q, p):
    found, values = answer(posterior=q, prior=p, q_loc="0.7", q_scale="0.2", improper="true")
    posterior, prior = pair_of(values, 3)
    assert prior.improper == (p == "pareto")
    exact = mcrepar.kl_divergence(posterior, prior, method="exact").item()
    assert table(found, "methods").rows[0][2] == exact
    plan = mcrepar.explain(posterior, prior)
    if plan.right:
        assert table(found, "tuple").rows == plan.statistics
        assert f"d_P = {plan.d_P}." in found.headline


@pytest.mark.parametrize("p", mcrepar.PRIORS)
def test_the_formula_has_a_number_for_each_of_its_letters(p):
    found, values = answer(posterior="gamma", prior=p)
    parts = dict(table(found, "formula").rows)
    letters = set(re.findall(r"\bc\d+\b", parts["Prior"]))
    numbers = dict(pair.split(" = ") for pair in parts["Its numbers"].split(", "))
    assert letters | {"constant"} == set(numbers)
    _, prior = pair_of(values, 3)
    assert [float(numbers[f"c{k}"]) for k in range(1, len(numbers))] == pytest.approx(
        [float(term.coefficient) for term in prior.density.terms], rel=1e-4
    )


def test_the_headline_counts_the_methods():
    assert " All methods apply." in answer(posterior="radial", prior="normal")[0].headline
    assert " 5 of the 8 methods apply." in answer(posterior="normal", prior="laplace")[0].headline


def test_parameters_reach_the_objects():
    _, values = answer(posterior="horseshoe", q_slab="2.5", prior="student_t", p_df="7", p_loc="0.1", p_scale="3")
    q, p = pair_of(values, 5)
    assert q.fixed == {"slab": 2.5}
    assert p.values == {"df": 7.0, "loc": 0.1, "scale": 3.0}
    assert q.numel == 5


def test_a_value_that_a_family_refuses_is_said():
    with pytest.raises(ParameterError, match="whole number"):
        answer(posterior="erlang", q_concentration="2.5")
    with pytest.raises(ParameterError, match="between 0 and 1"):
        answer(prior="mixture", p_mix="3")


@pytest.mark.parametrize(
    ("q", "p"), [("radial", "normal"), ("gamma", "gamma"), ("radial", "exponential"), ("normal", "horseshoe")]
)
def test_the_code_runs(q, p, capsys):
    found, _ = answer(posterior=q, prior=p)
    scope = {"mu": torch.zeros(4, requires_grad=True), "sigma": torch.ones(4, requires_grad=True)}
    exec(compile(found.code, "code", "exec"), scope)
    assert ("infinite" in capsys.readouterr().out) == (p == "exponential")
    if p != "exponential":
        assert scope["kl"].requires_grad


def test_what_ends_early_says_so():
    found, _ = answer(weights="1000", iterations="1000")
    rows = {row[0]: row for row in table(found, "methods").rows}
    assert "ends at M" in rows["direct"][3]
    assert rows["stats"][3] == ""
