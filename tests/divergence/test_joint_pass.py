"""One pass over several tensors against the general path, tensor by tensor."""

import pytest
import torch
from torch import Tensor

import mcrepar
from mcrepar.divergence import joint_pass
from mcrepar.divergence.joint_pass import Recipe, run
from mcrepar.divergence.kl import fixed_products, kl_of
from mcrepar.divergence.methods import Estimator
from mcrepar.divergence.plan import plan_pair
from tests.conftest import example_posterior, pairs_with, seeded

SHAPES = (10, 30), (7,), (4, 3, 5, 5)
EXACT, STATS = Estimator("exact"), Estimator("stats", 300)
FAMILIES = [("radial", "normal"), ("normal", "normal"), ("laplace", "normal"), ("gamma", "gamma"),
            ("lognormal", "lognormal"), ("error", "normal"), ("loggamma", "normal")]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(joint_pass, "BLOCK", 64)


def posteriors(name: str) -> list[mcrepar.Posterior]:
    return [example_posterior(name, s, requires_grad=True, seed=k, log_scale=True) for k, s in enumerate(SHAPES)]


def passed(qs, prior: str, request: Estimator, sample: bool = True, seed: int = 0) -> tuple[tuple[Tensor, ...], Tensor]:
    thetas, recipes = [], []
    for q in qs:
        p = mcrepar.prior(prior)
        recipes.append(Recipe(q.noise, q.form, fixed_products(plan_pair(q, p), q, p, request)))
        thetas.append((q.loc if isinstance(q.loc, Tensor) else None, q.free_log_scale))
    return run(thetas, recipes, sample, seeded(seed))


def again(q: mcrepar.Posterior, w: Tensor) -> Tensor:
    """The same weights by the general path, from the noise that made them."""
    return q.weights(((q.form.outer.inverse(w) - q.loc) / q.scale).detach())


def leaves(qs) -> list[Tensor]:
    return [tensor for q in qs for tensor in q.learned]


@pytest.mark.parametrize(("posterior", "prior"), FAMILIES)
def test_value_and_gradients_are_those_of_the_general_path(posterior, prior):
    qs = posteriors(posterior)
    weights, kl = passed(qs, prior, EXACT)
    expected = sum(kl_of(q, mcrepar.prior(prior), EXACT) for q in qs)
    torch.testing.assert_close(kl, expected, rtol=1e-12, atol=1e-10)
    slopes = [torch.randn(w.shape, generator=seeded(5), dtype=w.dtype) for w in weights]
    likelihood = sum((w * s).sum() for w, s in zip(weights, slopes, strict=True))
    general = sum((again(q, w) * s).sum() for q, w, s in zip(qs, weights, slopes, strict=True))
    found = torch.autograd.grad(likelihood + 0.3 * kl, leaves(qs))
    wanted = torch.autograd.grad(general + 0.3 * expected, leaves(qs))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("posterior", "prior"), FAMILIES[:5])
def test_stats_has_the_mean_and_the_variance_of_the_general_path(posterior, prior):
    """100 values each: |z| < 5 for the mean; F(99, 99) leaves (0.37, 2.7) in 1e6 runs."""
    qs = [q for q in posteriors(posterior) for q in [q.bind(validate=False, **detached(q))]]
    found = torch.stack([passed(qs, prior, STATS, sample=False, seed=k)[1] for k in range(100)])
    p, source = mcrepar.prior(prior), seeded(1)
    wanted = torch.stack([sum(kl_of(q, p, STATS, source) for q in qs) for _ in range(100)])
    exact = sum(kl_of(q, p, EXACT) for q in qs)
    assert abs((found.mean() - exact) / (found.std() / 10)) < 5
    assert 0.37 < (found.var() / wanted.var()) < 2.7


def detached(q: mcrepar.Posterior) -> dict[str, Tensor]:
    names = ["loc", "log_scale"] if q.free_loc is not None else ["log_scale"]
    return dict(zip(names, (t.detach() for t in q.learned), strict=True))


@pytest.mark.parametrize("request_", [EXACT, STATS])
@pytest.mark.parametrize("posterior", ["radial", "normal"])
def test_gradients_of_the_pass_are_right_at_fixed_noise(posterior, request_):
    qs = posteriors(posterior)

    def value(*tensors: Tensor) -> Tensor:
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        again = [q.bind(validate=False, loc=a, log_scale=b) for q, (a, b) in zip(qs, pairs, strict=True)]
        weights, kl = passed(again, "normal", request_)
        return sum((w**3).sum() for w in weights) + kl

    point = [tensor.detach().requires_grad_() for tensor in leaves(qs)]
    torch.autograd.gradcheck(value, point, fast_mode=True)
    torch.autograd.gradgradcheck(value, point, fast_mode=True)


def test_one_seed_gives_the_same_on_any_number_of_threads():
    qs, before = posteriors("radial"), torch.get_num_threads()
    first = passed(qs, "normal", STATS, seed=3)
    try:
        torch.set_num_threads(3)
        second = passed(qs, "normal", STATS, seed=3)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[1] == second[1]
    assert not torch.equal(first[0][0], passed(qs, "normal", STATS, seed=4)[0][0])


def test_blocks_of_radial_noise_are_one_draw():
    """E |xi|^2 = 1 and Var |xi|^2 = 2 over 300 draws: |z| < 5, a false alarm in 1e6."""
    q = mcrepar.posterior("radial", loc=torch.zeros(300).double(), log_scale=torch.zeros(300).double())
    squares = torch.stack([passed([q], "normal", EXACT, seed=k)[0][0].square().sum() for k in range(300)])
    assert abs(squares.mean() - 1) < 5 * (2 / 300) ** 0.5
    assert abs((squares - 1).square().mean() - 2) < 5 * (56 / 300) ** 0.5


def test_a_gradient_that_others_hold_is_not_changed():
    qs = posteriors("normal")[:1] * 1 + [
        example_posterior("normal", SHAPES[0], requires_grad=True, seed=9, log_scale=True)
    ]
    weights, kl = passed(qs, "normal", EXACT)
    kept = []
    weights[0].register_hook(kept.append)
    out = weights[0] + weights[1]  # both get one tensor as their gradient
    (out.square().sum() + kl).backward()
    torch.testing.assert_close(kept[0], 2 * out.detach())
    likelihood = [2 * out.detach(), 2 * out.detach() * (weights[1] - qs[1].loc).detach()]
    own = torch.autograd.grad(kl_of(qs[1], mcrepar.prior("normal"), EXACT), qs[1].learned)
    torch.testing.assert_close([t.grad for t in qs[1].learned], [a + b for a, b in zip(likelihood, own, strict=True)])


def test_memory_in_another_order_makes_no_difference():
    loc = torch.randn(2, 8, 3, 3, generator=seeded(0)).to(memory_format=torch.channels_last).requires_grad_()
    log_scale = torch.full_like(loc, -1.0).detach().requires_grad_()
    q = mcrepar.posterior("normal", loc=loc, log_scale=log_scale)
    (w,), kl = passed([q], "normal", EXACT)
    assert w.stride() == loc.stride()
    (w.sin().sum() + kl).backward()
    expected = torch.autograd.grad(
        again(q, w.detach()).sin().sum() + kl_of(q, mcrepar.prior("normal"), EXACT), q.learned
    )
    torch.testing.assert_close([loc.grad, log_scale.grad], list(expected))


def test_what_has_no_fixed_contraction_is_left_out():
    p = mcrepar.prior("laplace")
    assert ("normal", "laplace") in pairs_with("exact")
    q = posteriors("normal")[0]
    assert fixed_products(plan_pair(q, p), q, p, EXACT) is None
    normal = mcrepar.prior("normal")
    assert fixed_products(plan_pair(q, normal), q, normal, Estimator("repar", 10)) is None
    assert fixed_products(plan_pair(q, normal), q, normal, Estimator("quad")) is None
