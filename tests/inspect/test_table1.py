"""The verdicts: tables C.1, C.2 and C.3 of math.md, typed in, against `table1` and `explain`."""

from __future__ import annotations

from collections import Counter

import pytest

import mcrepar
from mcrepar.inspect.table1 import render_table, table1

S = "INF-S"
RIGHT = ("T1", "T2", "C1", "C2", "X")
SCALING = [
    "exponential",
    "wald",
    "rayleigh",
    "dirichlet",
    "chi_squared",
    "pareto",
    "inverse_gamma",
    "gamma",
    "erlang",
    "lognormal",
    "error",
    "weibull",
    "inverse_gaussian",
    "normal",
]
C1 = {  # math.md C.1, in the order of its columns
    "exponential": "T1 INF-M T1 INF-S T1 INF-S INF-M T1 T1 X T1 T1 INF-M T1",
    "wald": "T1 T1 T1 INF-S T1 INF-S T1 T1 T1 X T1 T1 T1 T1",
    "rayleigh": "T1 T1 T1 INF-S T1 INF-S T1 T1 T1 X T1 T1 T1 T1",
    "weibull": "T1 T1 T1 INF-S T1 INF-S T1 T1 T1 X T1 T1 T1 T1",
    "erlang": "T1 T1 T1 INF-S T1 INF-S T1 T1 T1 X T1 T1 T1 T1",
    "gamma": "T1 T1 T1 INF-S T1 INF-S T1 T1 T1 X T1 T1 T1 T1",
    "error": "INF-S INF-S INF-S INF-S INF-S INF-S INF-S INF-S INF-S INF-S N INF-S INF-S T2",
    "loggamma": "INF-S INF-S INF-S INF-S INF-S INF-S INF-S INF-S INF-S INF-S N INF-S INF-S X",
    "inverse_gamma": "T1 T1 T1 INF-S T1 INF-S T1 T1 T1 X T1 T1 T1 T1",
}
EXPGAMMA = "N N N INF-S N C1 N N N C1 N N N N"  # its reading (B), which the paper does not count
LOCATION_SCALE = ["logistic", "exponential", "normal", "laplace", "horseshoe", "radial"]
C2 = {  # math.md C.2; the raw horseshoe is the one that is counted
    "normal": "N INF-S T2 N N N",
    "laplace": "N INF-S T2 N N N",
    "logistic": "N INF-S T2 N N N",
    "horseshoe": "INF-M INF-S INF-M INF-M N INF-M",
    "radial": "N INF-S T2 N N N",
}
SLAB = "N INF-S T2 N N N"
C3 = {"lognormal": "INF-S INF-S"}
KERNELS = {  # the "*" of C.1 and C.3: the improper reading of dirichlet and pareto
    **dict.fromkeys(["exponential", "wald", "rayleigh", "weibull", "erlang", "gamma", "inverse_gamma"], "T1"),
    "lognormal": "C2",
    "expgamma": "C1",
}
INFINITE_VARIANCE = {
    *[(q, p) for q in ("rayleigh", "weibull") for p in ("wald", "inverse_gaussian", "inverse_gamma")],
    ("inverse_gamma", "rayleigh"),
    ("inverse_gamma", "normal"),
}


def cells(table: dict[str, str], columns: list[str]) -> dict[tuple[str, str], str]:
    return {
        (row, column): verdict
        for row, verdicts in table.items()
        for column, verdict in zip(columns, verdicts.split(), strict=True)
    }


CLAIMED = cells(C1, SCALING) | cells(C2, LOCATION_SCALE) | cells(C3, ["dirichlet", "pareto"])


def name(cell) -> str:
    return cell.posterior.partition("(")[0]


def test_the_158_verdicts():
    found = {(name(cell), cell.prior): cell.verdict for cell in table1()}
    assert found == CLAIMED


def test_the_score():
    """158 claimed, 87 right (math.md C.4)."""
    counted = Counter(cell.verdict for cell in table1())
    assert counted == {"T1": 74, "T2": 5, "X": 8, "N": 19, "INF-S": 45, "INF-M": 7}
    assert counted.total() == 158
    assert sum(counted[verdict] for verdict in RIGHT) == 87


def test_tuples_and_finite_kls_are_counted_apart():
    """114 of the claimed pairs have a tuple, 106 a finite KL, 87 both: an infinite KL may have a tuple all the same."""
    cells = table1()
    assert [sum(c.has_tuple for c in cells), sum(c.finite for c in cells)] == [114, 106]
    assert sum(c.has_tuple and c.finite for c in cells) == 87
    found = {(name(c), c.prior) for c in cells if c.has_tuple and not c.finite}
    positive = ("exponential", "wald", "rayleigh", "weibull", "erlang", "gamma", "inverse_gamma", "lognormal")
    lines = ("normal", "laplace", "logistic", "horseshoe", "radial", "error", "loggamma")
    assert found == {
        *((q, p) for q in positive for p in ("pareto", "dirichlet")),
        *((q, "exponential") for q in lines),
        *(("exponential", p) for p in ("wald", "inverse_gaussian", "inverse_gamma")),
        ("horseshoe", "normal"),
    }


def test_values_on_which_a_verdict_depends_are_named():
    """error x error has a tuple at equal locations alone: the table and explain say so."""
    cell = next(c for c in table1() if (name(c), c.prior) == ("error", "error"))
    assert (cell.posterior, cell.verdict) == ("error(loc=0.25)", "N")
    assert cell.otherwise == "T1 with the posterior's loc = 0"
    assert "error x error is T1 with the posterior's loc = 0" in render_table(table1())
    assert "needs the same location of posterior and prior" in mcrepar.explain("error", "error").reason
    assert mcrepar.explain("error", mcrepar.prior("error", loc=0.25)).verdict == "N"


def test_infinite_variance_exactly_where_c1_says():
    assert {(name(c), c.prior) for c in table1() if c.note == "infinite variance"} == INFINITE_VARIANCE
    for cell in table1():
        if (name(cell), cell.prior) in INFINITE_VARIANCE:
            assert cell.default == "exact"


def test_rows_beside_the_table():
    """Exp-Gamma (B), the Horseshoe with its slab, and the Log-normal row beyond the paper's two pairs."""
    for column, verdict in zip(SCALING, EXPGAMMA.split(), strict=True):
        assert mcrepar.explain("expgamma", column).verdict == verdict
    for column, verdict in zip(LOCATION_SCALE, SLAB.split(), strict=True):
        assert mcrepar.explain("horseshoe", column).verdict == verdict
    assert mcrepar.explain("lognormal", "lognormal").verdict == "C2"
    for p in ("gamma", "weibull", "inverse_gamma", "inverse_gaussian"):
        plan = mcrepar.explain("lognormal", p)
        assert (plan.verdict, plan.method) == ("N", "exact")


@pytest.mark.parametrize("p", ["dirichlet", "pareto"])
@pytest.mark.parametrize("q", mcrepar.POSTERIORS)
def test_kernels(q, p):
    """The improper reading is right for positive posteriors, and infinite for the others."""
    verdict = mcrepar.explain(q, mcrepar.prior(p, improper=True)).verdict
    assert verdict == KERNELS.get(q, S)
    notes = {name(c): c.note for c in table1() if c.prior == p}
    if q in notes and q in KERNELS:
        assert notes[q] == f"kernel: {KERNELS[q]}"


def test_everything_is_every_pair():
    """All pairs of the two tables, and the defaults beside the generic parameters where those differ."""
    everything = table1(everything=True)
    twice = sum(bool(row.generic) for row in mcrepar.POSTERIORS.values())
    assert len(everything) == (len(mcrepar.POSTERIORS) + twice) * len(mcrepar.PRIORS)
    assert len({(c.posterior, c.prior) for c in everything}) == len(everything)
    assert sum(c.claimed for c in everything) == 158
    assert {c.group for c in everything if c.claimed} == {"scaling", "location-scale", "log-normal"}


@pytest.mark.parametrize("cell", table1(everything=True), ids=lambda c: f"{c.posterior}-{c.prior}")
def test_verdicts_methods_and_defaults_go_together(cell):
    if cell.verdict.startswith("INF"):
        assert cell.methods == ()
        assert cell.default is None
        assert "infinite" in cell.reason
        return
    if cell.default is None:  # nothing is left but a forced method
        assert cell.note == "infinite variance"
        assert not {"exact", "quad"} & set(cell.methods)
        return
    assert cell.default in cell.methods
    assert cell.reason
    tuples = {"stats", "repar"}
    if cell.verdict in RIGHT:
        assert cell.default == "exact"
        assert "repar" in cell.methods
    else:
        assert not tuples & set(cell.methods)
