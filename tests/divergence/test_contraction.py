"""The contraction <n, t>: `repar` is `direct` on the same noise, and the fused sums are their eager twin.

One generator state gives repar, stream, regen and direct identical noise, so equality is to rounding, not statistical.
"""

from __future__ import annotations

import warnings
from functools import partial
from unittest import mock

import pytest
import torch

import mcrepar
from mcrepar import POSTERIORS, PRIORS, explain, kl_divergence, posterior, prior
from mcrepar.distributions.forms import Entry
from mcrepar.distributions.parameters import REAL, WHOLE
from mcrepar.distributions.random import new_seed, on_cores
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence import kl, sums
from mcrepar.divergence.chunks import Chunks
from mcrepar.divergence.contraction import CONTRACTED, Product, contract
from mcrepar.divergence.methods import DEFAULT_BYTES, Estimator
from mcrepar.divergence.sums import empty_like, flat, unflat, weight_order
from tests.conftest import example_posterior, example_prior, seeded, variance_penalty

DRAWS = 7


def tables() -> list[tuple[str, str, bool]]:
    """Every pair with a finite tuple, kernels included: (posterior, prior, improper)."""
    out = []
    for q in POSTERIORS:
        for p, row in PRIORS.items():
            for improper in (False, True) if row.kernel else (False,):
                if "repar" in explain(q, prior(p, improper=improper)).methods:
                    out.append((q, p, improper))
    return out


PAIRS = tables()
over_pairs = pytest.mark.parametrize(
    ("q_name", "p_name", "improper"), PAIRS, ids=[f"{q}-{p}{'*' * i}" for q, p, i in PAIRS]
)


def value_of(q, p, estimator, seed, eager):
    """The KL; `eager` keeps its contraction in plain autograd."""
    with mock.patch.object(kl, "apply_plan", partial(kl.apply_plan, eager=eager)):
        return kl.kl_of(q, p, estimator, seeded(seed))


def estimate(q, p, method, *, eager=False, seed=5, draws=DRAWS, **options):
    """The KL with its gradient for every tensor of both sides that requires one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mcrepar.InfiniteVarianceWarning)
        estimator = Estimator(method, None if method == "exact" else draws, force=True, **options)
        value = value_of(q, p, estimator, seed, eager)
    inputs = [x for x in (*q.learned, *p.tensors.values()) if x.requires_grad]
    return [value.detach(), *torch.autograd.grad(value, inputs, materialize_grads=True)]


def oracle(q, p, *, seed=5, draws=DRAWS):
    """-H - mean_i log p(w_i) written out in plain torch on the noise that `seed` gives, with its gradient."""
    start = new_seed(seeded(seed))
    chunks = Chunks(q.noise, draws, q.numel, q.dtype, q.device, start, DEFAULT_BYTES, p.density.joint)
    order = weight_order(q, p)
    w = q.weights(torch.stack([unflat(row, q.shape, order) for row in chunks.all()]))
    entropy = q.noise.entropy() * (1 if q.noise.joint else q.numel) + q.log_scale.sum()
    match q.form.outer.name:
        case "exp":
            entropy = entropy + (q.loc + q.scale * q.noise.moment(Monomial(1.0))).sum()
        case "log":
            entropy = entropy - (q.log_scale + q.noise.moment(Monomial(0.0, 1))).sum()
    value = -entropy - p.log_prob(w).sum() / draws + variance_penalty(q, p)
    inputs = [x for x in (*q.learned, *p.tensors.values()) if x.requires_grad]
    return [value.detach(), *torch.autograd.grad(value, inputs, materialize_grads=True)]


def assert_same(found, expected, tolerance):
    """Every tensor to `tolerance` of its own largest entry."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.isfinite(b).all()
        assert a.shape == b.shape
        size = max(float(b.abs().max()), 1e-3)
        assert float((a.double() - b.double()).abs().max()) <= tolerance * size, (a, b)


def kernel(p_name, improper, **options):
    return example_prior(p_name, **options, **({"improper": True} if improper else {}))


# ---- F3: repar is direct


@over_pairs
def test_repar_is_direct_on_the_same_noise(q_name, p_name, improper):
    """Value and gradient to 1e-11, prior parameters that are not the defaults."""
    q = example_posterior(q_name, (2, 3), requires_grad=True, seed=3)
    p = kernel(p_name, improper, seed=4)
    if "repar" not in explain(q, p).methods:  # another exponent has no tuple
        p = kernel(p_name, improper)
    assert_same(estimate(q, p, "repar"), estimate(q, p, "direct"), 1e-11)


@over_pairs
def test_repar_is_direct_in_float32(q_name, p_name, improper):
    q = example_posterior(q_name, 5, torch.float32, requires_grad=True, seed=3)
    p = kernel(p_name, improper)
    assert_same(estimate(q, p, "repar"), estimate(q, p, "direct"), 1e-4)


@over_pairs
def test_repar_is_direct_for_a_free_log_scale(q_name, p_name, improper):
    q = example_posterior(q_name, 4, requires_grad=True, seed=6, log_scale=True)
    p = kernel(p_name, improper)
    assert_same(estimate(q, p, "repar"), estimate(q, p, "direct"), 1e-11)


def test_repar_is_direct_for_other_noise_only_in_distribution():
    """The equality above is not vacuous: another seed gives another value."""
    q, p = example_posterior("normal", 4, requires_grad=True), prior("normal")
    assert abs(estimate(q, p, "repar")[0] - estimate(q, p, "direct", seed=6)[0]) > 1e-3


def test_repar_is_direct_over_several_blocks():
    """More weights than one block of noise and one block of the contraction hold."""
    size = CONTRACTED + 77
    q, p = example_posterior("normal", size, requires_grad=True), prior("normal", loc=0.3, scale=0.7)
    assert_same(estimate(q, p, "repar", draws=2), estimate(q, p, "direct", draws=2), 1e-11)


# ---- the prior's tensors


def shaped_prior(q_name, p_name, improper, shape, requires_grad):
    """A prior whose parameters are tensors of `shape`, below its defaults; whole numbers and powers stay."""
    rng, values = seeded(11), {}
    for parameter in PRIORS[p_name].parameters:
        power = parameter.name in ("power", "df") or (p_name, parameter.name) == ("weibull", "concentration")
        if not power and parameter.constraint is not WHOLE:
            spread = 0.6 + 0.4 * torch.rand(shape, generator=rng, dtype=torch.float64)
            start = 0.3 if parameter.constraint is REAL else parameter.default
            values[parameter.name] = (start * spread).requires_grad_(requires_grad)
    return prior(p_name, **values, **({"improper": True} if improper else {}))


SHAPES = [(), (1,), (3,), (2, 1), (2, 3)]


@over_pairs
@pytest.mark.parametrize("learned", [True, False], ids=["learned", "fixed"])
def test_prior_tensors_of_any_shape(q_name, p_name, improper, learned):
    """Scalars, rows, columns and one number per weight: value and every gradient against plain torch."""
    q = example_posterior(q_name, (2, 3), requires_grad=True, seed=3)
    seen = 0
    for shape in SHAPES:
        p = shaped_prior(q_name, p_name, improper, shape, learned)
        if "repar" not in explain(q, p).methods:
            continue  # |w - c| with a tensor for c
        expected = oracle(q, p)
        assert_same(estimate(q, p, "repar"), expected, 1e-11)
        assert_same(estimate(q, p, "repar", eager=True), expected, 1e-11)
        seen += 1
    assert seen or p.name in ("laplace", "error")


@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
def test_direct_with_shaped_prior_tensors(shape):
    q = example_posterior("normal", (2, 3), requires_grad=True)
    p = shaped_prior("normal", "normal", False, shape, True)
    assert_same(estimate(q, p, "direct"), oracle(q, p), 1e-11)


# ---- strides


def laid_out(layout, low=0.2):
    """A (2, 3, 4, 5) leaf of random numbers above `low` whose memory is not in logical order."""
    x = torch.rand(2, 3, 4, 5, generator=seeded(2), dtype=torch.float64) + low
    match layout:
        case "channels_last":
            x = x.to(memory_format=torch.channels_last)
        case "transposed":
            x = x.transpose(0, 3).contiguous().transpose(0, 3)
        case "strided":
            x = torch.stack([x, x + 1], dim=-1)[..., 0]
        case "expanded":
            x = x[:1].expand(2, 3, 4, 5)
    assert x.is_contiguous() == (layout == "contiguous")
    return x.requires_grad_()


@pytest.mark.parametrize("q_name", ["normal", "radial", "gamma"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed", "strided", "expanded"])
def test_all_methods_pair_weights_and_noise_alike_whatever_the_strides(q_name, layout):
    """channels_last, transposed, strided and expanded parameters: repar is direct and its eager twin."""
    learned = {name: laid_out(layout, low) for name, low in (("loc", -0.5), ("scale", 0.2))}
    learned = {name: x for name, x in learned.items() if name in POSTERIORS[q_name].learned}
    q, p = posterior(q_name, **learned), prior("normal", loc=0.3)
    expected = oracle(q, p)
    for method in ("direct", "stream", "regen"):
        assert_same(estimate(q, p, method), expected, 1e-11)
    assert_same(estimate(q, p, "repar", eager=True), expected, 1e-11)
    assert_same(estimate(q, p, "repar"), expected, 1e-11)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed", "strided"])
def test_weights_are_walked_as_they_lie_in_memory(layout):
    """One row of weights in the order of their addresses, without a copy, and back."""
    x = laid_out(layout).detach()
    order = weight_order(posterior("gamma", scale=x), prior("gamma"))
    row = flat(x, order)
    assert torch.equal(row, x.as_strided((120,), (2 if layout == "strided" else 1,)))
    assert row.data_ptr() == x.data_ptr()
    assert torch.equal(unflat(row, x.shape, order), x)
    fresh = empty_like(x, order)
    assert flat(fresh, order).data_ptr() == fresh.data_ptr()
    assert flat(fresh, order).is_contiguous()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
def test_the_gradient_is_no_view(layout):
    """Autograd adds other gradients into it only if it owns its memory and lies as the parameter does."""
    loc, scale = laid_out(layout, -0.5), laid_out(layout, 0.2)
    kl = kl_divergence(posterior("normal", loc=loc, scale=scale), prior("normal"), method="exact")
    for x, gradient in zip((loc, scale), torch.autograd.grad(kl, (loc, scale)), strict=True):
        assert gradient._base is None
        assert gradient.stride() == x.stride()


def test_weights_keep_their_logical_order_where_something_ties_them_to_their_places():
    x, y = laid_out("channels_last").detach(), laid_out("contiguous").detach()
    tied = [
        (posterior("gamma", scale=x), prior("gamma", rate=y)),
        (posterior("normal", loc=x, scale=x), prior("radial")),
        (posterior("normal", loc=x, scale=y), prior("normal")),
    ]
    assert [weight_order(q, p) for q, p in tied] == [None, None, None]
    assert torch.equal(flat(x, None), y.reshape(-1))


def test_parameters_of_different_strides():
    """loc and scale that lie differently in memory."""
    q = posterior("normal", loc=laid_out("channels_last", -0.5), scale=laid_out("contiguous"))
    p = prior("normal")
    assert_same(estimate(q, p, "repar"), estimate(q, p, "direct"), 1e-11)


def test_strides_and_shaped_priors():
    """A prior per weight on channels_last parameters pairs each weight with its own prior."""
    q = posterior("normal", loc=laid_out("channels_last", -0.5), scale=laid_out("channels_last"))
    p = prior("normal", scale=laid_out("contiguous", 0.5).detach())
    assert_same(estimate(q, p, "repar"), oracle(q, p), 1e-11)


# ---- the fused function


@over_pairs
def test_fused_is_eager(q_name, p_name, improper):
    """Value and gradient of the fused sums are those of plain autograd, also where t is a number (exact)."""
    for log_scale in (False, True):
        q = example_posterior(q_name, 4, requires_grad=True, seed=8, log_scale=log_scale)
        p = kernel(p_name, improper)
        for method in ("repar", "exact"):
            assert_same(estimate(q, p, method), estimate(q, p, method, eager=True), 1e-11)


@over_pairs
def test_double_backward_is_eager(q_name, p_name, improper):
    """Hessian-vector products over all parameters of both sides."""
    products = []
    for eager in (False, True):
        q = example_posterior(q_name, 3, requires_grad=True, seed=8)
        p = kernel(p_name, improper, learned=p_name not in ("error", "weibull", "pareto", "laplace"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mcrepar.InfiniteVarianceWarning)
            value = value_of(q, p, Estimator("repar", DRAWS, force=True), 5, eager)
        inputs = [x for x in (*q.learned, *p.tensors.values()) if x.requires_grad]
        slopes = torch.autograd.grad(value, inputs, create_graph=True, materialize_grads=True)
        rng = seeded(1)
        along = value * 0 + sum((s * torch.rand(s.shape, generator=rng, dtype=s.dtype)).sum() for s in slopes)
        products.append(torch.autograd.grad(along, inputs, materialize_grads=True))
    assert_same(*products, 1e-11)


@pytest.mark.parametrize("log_scale", [False, True])
@pytest.mark.parametrize(
    ("q_name", "p_name"),
    [
        ("normal", "normal"),
        ("radial", "normal"),
        ("gamma", "inverse_gaussian"),
        ("weibull", "lognormal"),
        ("lognormal", "lognormal"),
        ("loggamma", "normal"),
        ("error", "error"),
        ("laplace", "laplace"),
    ],
)
def test_first_and_second_derivatives_numerically(q_name, p_name, log_scale):
    """gradcheck and gradgradcheck of `exact`, one pair per form and statistic."""
    example = example_posterior(q_name, 3, requires_grad=True, seed=2, log_scale=log_scale)
    names = (["loc"] if "loc" in POSTERIORS[q_name].learned else []) + ["log_scale" if log_scale else "scale"]
    scaled = "scale" in [parameter.name for parameter in PRIORS[p_name].parameters]
    p = prior(p_name, **({"scale": 0.8} if scaled else {}))

    def value(*learned):
        return kl_divergence(posterior(q_name, **dict(zip(names, learned, strict=True))), p, "exact")

    inputs = example.learned
    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


def test_contract_by_hand():
    """Products with every kind of coefficient, centre and t against the formula written out."""
    rng = seeded(3)
    loc, scale, c, m, t = (torch.rand(6, generator=rng, dtype=torch.float64) + 0.2 for _ in range(5))
    loc, scale, c, m = (x.requires_grad_() for x in (loc, scale, c, m))
    q = posterior("normal", loc=loc, scale=scale)
    products = [
        Product(2.0, Entry(3.0, 2, 1.0, 0, Monomial(1.0)), 0.3, t),
        Product(c, Entry(1.0, 0, -1.5, 0, Monomial(2.0)), 0.0, t),
        Product(c[0], Entry(1.0, 1, 0.0, 0, Monomial()), m, 1.0),
        Product(-1.0, Entry(1.0, 0, 2.0, 3, Monomial()), 0.4, 0.5),
        Product(5.0, Entry(7.0, 0, 0.0, 0, Monomial()), 0.0, 2.0),
        Product(5.0, Entry(7.0, 1, 0.0, 0, Monomial(1.0)), 0.0, 0.0),
    ]
    expected = (
        (6 * (loc - 0.3) ** 2 * scale * t).sum()
        + (c * scale**-1.5 * t).sum()
        + (c[0] * (loc - m)).sum()
        - 0.5 * (scale**2 * (scale.log() - 0.4) ** 3).sum()
        + 6 * 70
    )
    inputs = (loc, scale, c, m)
    slopes = torch.autograd.grad(expected, inputs)
    for eager in (False, True):
        value = contract(q, products, eager=eager)
        torch.testing.assert_close(value, expected, rtol=1e-13, atol=0)
        torch.testing.assert_close(torch.autograd.grad(value, inputs), slopes, rtol=1e-12, atol=1e-13)


def test_only_what_is_asked_for_is_differentiated():
    """A loc or a scale that requires no grad gets none, and the other's gradient is unchanged."""
    full = example_posterior("normal", 4, requires_grad=True)
    p = prior("normal", loc=0.2)
    expected = torch.autograd.grad(kl_divergence(full, p), full.learned)
    for k in range(2):
        learned = [x.detach().requires_grad_(i == k) for i, x in enumerate(full.learned)]
        value = kl_divergence(posterior("normal", loc=learned[0], scale=learned[1]), p)
        value.backward()
        torch.testing.assert_close(learned[k].grad, expected[k], rtol=1e-13, atol=0)
        assert learned[1 - k].grad is None


@pytest.mark.parametrize("method", ["exact", "stats"])
def test_sums_are_the_same_on_any_number_of_cores(method, monkeypatch):
    """To the last bit, value and gradients, of a tensor of several blocks."""
    loc = (torch.arange(3 * CONTRACTED + 5) % 97 / 97).requires_grad_()
    log_scale = (loc.detach() - 3).requires_grad_()

    def on(cores):
        monkeypatch.setattr(sums, "_on_cores", lambda blocks, scale, work: on_cores(len(blocks), cores, work))
        given = {} if method == "exact" else {"n_mc_iter": 1000, "generator": seeded(1)}
        value = kl_divergence(posterior("normal", loc=loc, log_scale=log_scale), prior("normal"), method, **given)
        return [value, *torch.autograd.grad(value, [loc, log_scale])]

    for one, three in zip(on(1), on(3), strict=True):
        assert torch.equal(one, three)
