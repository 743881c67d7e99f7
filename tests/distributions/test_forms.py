"""What a statistic of the weight becomes: the entries of `expand` add up to it, and there are none beyond Theorem F."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from mcrepar import POSTERIORS
from mcrepar.distributions.forms import EXP, IDENTITY, LOG, Entry, Form, expand
from mcrepar.distributions.statistics import General, Monomial
from tests.conftest import example_posterior, seeded

SCALE, LOCATION_SCALE = Form(learned_loc=False), Form(learned_loc=True)
POWERS = [Monomial(float(k)) for k in (1, 2, 3, 4)]
SIZES = [Monomial(float(k), absolute=True) for k in (1, 1.5, 2, 4)]
REALS = [Monomial(p) for p in (-1.0, -0.5, 0.7, 2.5)]
LOGS = [Monomial(0.0, j) for j in (1, 2, 3)]
CENTERS = (0.0, 0.4, -0.7)


def added(entries: tuple[Entry, ...], loc: float, scale: torch.Tensor, xi: torch.Tensor, center: float, logs: float):
    """sum of factor * (loc - c)^a * scale^b * (log scale - c')^j * tau(xi), written out from Entry's docstring."""
    total = torch.zeros_like(scale * xi)
    for e in entries:
        n = e.factor * (loc - center) ** e.loc_power * scale**e.scale_power * (scale.log() - logs) ** e.log_power
        total = total + n * e.tau(xi)
    return total


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("statistic", [*POWERS, *[s for s in SIZES if s.even]], ids=str)
@pytest.mark.parametrize("loc", [0.0, 0.3, -1.2])
def test_polynomials_expand_under_location_scale(statistic, center, loc):
    xi = torch.randn(50, generator=seeded(0), dtype=torch.float64)
    scale = 0.1 + torch.rand(50, generator=seeded(1), dtype=torch.float64)
    entries = expand(statistic, LOCATION_SCALE, None, center, positive=False)
    torch.testing.assert_close(added(entries, loc, scale, xi, center, 0.0), statistic(loc + scale * xi - center))
    assert len(entries) == statistic.power + 1, "the binomial theorem"


@pytest.mark.parametrize("statistic", [*POWERS, *SIZES, *REALS, *LOGS], ids=str)
def test_everything_of_theorem_f_expands_under_a_positive_scale_family(statistic):
    xi = 0.05 + torch.rand(50, generator=seeded(2), dtype=torch.float64)
    scale = 0.1 + torch.rand(50, generator=seeded(3), dtype=torch.float64)
    entries = expand(statistic, SCALE, 0.0, 0.0, positive=True)
    torch.testing.assert_close(added(entries, 0.0, scale, xi, 0.0, 0.0), statistic(scale * xi))
    assert not any(e.tau.absolute for e in entries), "|xi| = xi"


@pytest.mark.parametrize("center", [0.4, -0.7])
def test_logs_of_a_scale_family_are_centred_in_the_log(center):
    """(log w - c)^2 with log w = log scale + log xi."""
    xi = 0.05 + torch.rand(50, generator=seeded(2), dtype=torch.float64)
    scale = 0.1 + torch.rand(50, generator=seeded(3), dtype=torch.float64)
    entries = expand(Monomial(0.0, 2), SCALE, 0.0, center, positive=True)
    found = added(entries, 0.0, scale, xi, 0.0, center)
    torch.testing.assert_close(found, ((scale * xi).log() - center) ** 2)


@pytest.mark.parametrize(
    ("statistic", "form", "loc", "center", "positive"),
    [
        *[(s, LOCATION_SCALE, None, 0.0, False) for s in (*REALS, *LOGS) if s != Monomial(0.7)],
        *[(s, LOCATION_SCALE, None, c, False) for s in SIZES if not s.even for c in (0.0, 0.3)],
        (General(torch.abs, "|u|", 1.0), SCALE, 0.0, 0.0, True),
        (Monomial(1.5), SCALE, 0.0, 0.3, True),  # a real power, off its centre
        (Monomial(1.0, absolute=True), SCALE, 0.0, 0.3, True),  # a centre among the weights
        (Monomial(1.5, absolute=True), SCALE, 0.0, -0.3, True),  # |w - c| = w - c, but no polynomial
        (Monomial(0.0, 1), SCALE, 0.5, 0.0, True),  # log of a shifted weight
        (Monomial(-1.0), Form(False, EXP), 0.0, 0.0, True),  # e^-v
        (Monomial(1.0), Form(True, EXP), None, 0.0, False),
        (Monomial(1.5), Form(False, LOG), 0.0, 0.0, True),
    ],
    ids=str,
)
def test_nothing_else_expands(statistic, form, loc, center, positive):
    assert expand(statistic, form, loc, center, positive) is None


def test_an_absolute_value_with_its_centre_below_every_weight_is_a_polynomial():
    xi = torch.rand(20, generator=seeded(0), dtype=torch.float64)
    entries = expand(Monomial(1.0, absolute=True), SCALE, 0.0, -0.7, positive=True)
    torch.testing.assert_close(added(entries, 0.0, torch.tensor(0.5), xi, -0.7, 0.0), (0.5 * xi + 0.7).abs())


def test_an_error_posterior_around_the_centre_of_the_prior_needs_no_polynomial():
    (entry,) = expand(Monomial(1.5, absolute=True), SCALE, 0.25, 0.25, positive=False)
    assert (entry.scale_power, entry.tau) == (1.5, Monomial(1.5, absolute=True))


@pytest.mark.parametrize(("form", "statistics"), [(Form(True, EXP), LOGS), (Form(False, LOG), POWERS)])
def test_outer_maps_turn_logs_into_powers_and_back(form, statistics):
    """Corollaries 1 and 2: (log w)^j of w = e^v, and w^k of w = log v."""
    v = 0.1 + torch.rand(30, generator=seeded(4), dtype=torch.float64)
    for statistic in statistics:
        composed = form.outer.compose(statistic)
        torch.testing.assert_close(composed(v), statistic(form.outer.apply(v)))


@pytest.mark.parametrize("outer", [IDENTITY, EXP, LOG], ids=lambda o: o.name)
def test_outer_maps_know_their_inverse_and_slope(outer):
    v = (0.1 + torch.rand(30, generator=seeded(5), dtype=torch.float64)).requires_grad_()
    w = outer.apply(v)
    torch.testing.assert_close(outer.inverse(w), v)
    (slope,) = torch.autograd.grad(w.sum(), v)
    found = torch.zeros_like(v) if outer.slope is None else outer.slope[0] * outer.slope[1](v)
    torch.testing.assert_close(found.detach(), slope.log())


@pytest.mark.parametrize("name", POSTERIORS)
def test_weights_are_the_outer_map_of_loc_plus_scale_xi(name):
    q = example_posterior(name, (2, 3), seed=1)
    xi = q.noise.draw(4, 6, dtype=q.dtype, device="cpu", generator=seeded(6)).reshape(4, 2, 3)
    maps = {"identity": lambda v: v, "exp": torch.exp, "log": torch.log}
    torch.testing.assert_close(q.weights(xi), maps[q.form.outer.name](q.loc + q.scale * xi))
    assert q.form.learned == len(q.row.learned)


def test_entries_read_as_formulas():
    texts = {
        (1.0, 2, 0.0, 0, True, False): "loc^2",
        (2.0, 1, 1.0, 0, True, True): "2 (loc - c) scale",
        (3.0, 1, 2.0, 0, False, True): "3 (loc0 - c) scale^2",
        (1.0, 0, -1.0, 0, False, False): "scale^-1",
        (2.0, 0, 0.0, 1, False, False): "2 log scale",
        (1.0, 0, 0.0, 0, False, False): "1",
    }
    for (factor, loc, scale, log, learned, centred), text in texts.items():
        assert Entry(factor, loc, scale, log, Monomial()).text(learned, centred) == text


@pytest.mark.parametrize(("degree", "learned"), list(product((1, 2, 3, 5), (True, False))))
def test_number_of_entries_is_that_of_the_theorems(degree, learned):
    """A power k has k + 1 = binom(k + S - 1, S - 1) entries for S = 2, one for S = 1 (Theorems 1 and 2)."""
    form = LOCATION_SCALE if learned else SCALE
    entries = expand(Monomial(float(degree)), form, None if learned else 0.0, 0.0, positive=not learned)
    assert len(entries) == (math.comb(degree + 1, 1) if learned else 1)
