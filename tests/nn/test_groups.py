"""Small networks as rows: one draw and one KL for all tensors are those of the tensors one by one."""

import copy
import math
import pickle
import threading

import pytest
import torch
from scipy import stats
from torch import nn

import mcrepar
from mcrepar import POSTERIORS, bayesian, kl
from mcrepar.nn import groups
from mcrepar.nn.random_tensor import random_tensors
from tests.conftest import seeded


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def options(name):
    half_line = POSTERIORS[name].support.lower >= 0
    prior = {True: "gamma", False: "normal"}[half_line]
    return {"posterior": name, "prior": prior, **({"signs": "keep"} if half_line else {})}


def one_by_one(bnn, **options):
    return sum(t.divergence(**options) for tensor in random_tensors(bnn).values() for t in tensor.tensors)


def gradients(value, bnn):
    return torch.autograd.grad(value, list(bnn.parameters()), retain_graph=True, allow_unused=True)


@pytest.mark.parametrize("name", POSTERIORS)
def test_draws_have_the_distribution_of_the_posterior(name):
    """Kolmogorov-Smirnov, p > 1e-4 for two weights of the first tensor and the last tensor's only one."""
    torch.manual_seed(0)
    bnn = bayesian(mlp(), **options(name))
    (group,) = bnn.groups.of(bnn).drawn
    drawn = group.draw(seeded(1), draws=2000)
    for names, tensor in random_tensors(bnn).items():
        ours = drawn[names[0]].flatten(1)
        theirs = tensor.whole(tensor.posterior.draw(2000, seeded(2))).flatten(1)
        for k in {0, ours.shape[1] - 1}:
            assert stats.ks_2samp(ours[:, k].detach(), theirs[:, k].detach()).pvalue > 1e-4
        if tensor.posterior.noise.joint:  # its norm too, which is of the tensor and not of the row
            norms = [
                ((w - tensor.loc.flatten()) / tensor.log_scale.exp().flatten()).norm(dim=1) for w in (ours, theirs)
            ]
            assert stats.ks_2samp(*(n.detach() for n in norms)).pvalue > 1e-4


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_together_are_draws_one_after_the_other(name, dtype):
    bnn = bayesian(mlp(), **options(name)).to(dtype)
    (group,) = bnn.groups.of(bnn).drawn
    one, many = seeded(1), group.draw(seeded(1), draws=3)
    for k in range(3):
        for key, w in bnn.draw(one).items():
            torch.testing.assert_close(w, many[key][k])


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_gradient_of_a_draw_is_that_of_its_formula(name):
    """W = f(loc + exp(log_scale) xi), the noise taken from the draw itself; second derivatives too."""
    torch.manual_seed(0)
    bnn = bayesian(mlp(), **options(name))
    drawn = bnn.draw(seeded(1))
    for names, tensor in random_tensors(bnn).items():
        w, q, outer = drawn[names[0]], tensor.posterior, tensor.posterior.form.outer
        size = w.detach() * (1 if tensor.signs is None else tensor.signs)
        xi = ((outer.inverse(size) - q.loc) / q.scale).detach()
        wanted = tensor.whole(q.weights(xi))
        inputs = [p for p in (tensor.loc, tensor.log_scale) if p is not None]
        for ours, theirs in zip(
            *(torch.autograd.grad(t.pow(2).sum(), inputs, create_graph=True) for t in (w, wanted)), strict=True
        ):
            torch.testing.assert_close(ours, theirs)
            second = [torch.autograd.grad(g.pow(2).sum(), tensor.log_scale, retain_graph=True) for g in (ours, theirs)]
            torch.testing.assert_close(*second)


PRIORS = {
    "numbers": "normal",
    "a location": mcrepar.prior("normal", loc=0.3, scale=0.7),
    "relative": mcrepar.prior("normal", scale=1.0, relative="fan_in"),
    "hierarchical": mcrepar.prior("hierarchical", scale=0.1, loc_scale=0.5),
    "learned": mcrepar.prior("normal", scale="learned"),
    "no tuple": "laplace",
    "joint": "radial",
    "torch": torch.distributions.Normal(0.0, 2.0),
}


@pytest.mark.parametrize("posterior", ["normal", "radial", "laplace"])
@pytest.mark.parametrize("prior", PRIORS)
def test_the_kl_is_the_sum_over_the_tensors(posterior, prior):
    torch.manual_seed(0)
    bnn = bayesian(mlp(), posterior, PRIORS[prior])
    ours, theirs = kl(bnn, generator=seeded(1)), one_by_one(bnn, generator=seeded(1))  # which joint draws
    torch.testing.assert_close(ours, theirs)
    for one, two in zip(gradients(ours, bnn), gradients(theirs, bnn), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_kl_of_every_family(name):
    torch.manual_seed(0)
    bnn = bayesian(mlp(), **options(name))
    ours, theirs = kl(bnn), one_by_one(bnn)
    torch.testing.assert_close(ours, theirs)
    for one, two in zip(gradients(ours, bnn), gradients(theirs, bnn), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("method", ["stats", "repar", "stream", "regen", "direct"])
def test_a_sampled_kl_has_the_mean_of_the_exact_one(method):
    """|z| < 5 over 200 estimates: a false alarm in 1.7e6."""
    torch.manual_seed(0)
    bnn = bayesian(mlp(), "normal", kl_method=method, n_mc_iter=8)
    assert bnn.groups.of(bnn).summed
    generator = seeded(3)
    values = torch.stack([kl(bnn, generator=generator).detach() for _ in range(200)])
    z = (values.mean() - kl(bnn, "exact").detach()) / (values.std() / math.sqrt(200))
    assert abs(z) < 5
    assert values.std() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_halves_have_a_kl_in_single_precision(dtype):
    bnn = bayesian(mlp().to(dtype))
    value = kl(bnn)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, one_by_one(bnn).float())


def test_what_is_not_alike_is_apart():
    net = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2), nn.Embedding(4, 3, padding_idx=0), nn.Conv2d(2, 3, 2)])
    net[3].to(memory_format=torch.channels_last)
    bnn = bayesian(net, overrides={"1.*": {"posterior": "laplace"}})
    layout = bnn.groups.of(bnn)
    assert [group.names for group in layout.drawn] == [
        [("0.weight",), ("0.bias",), ("3.bias",)], [("1.weight",), ("1.bias",)]
    ]  # fmt: skip
    assert [names for names, _ in layout.drawn_apart] == [("2.weight",), ("3.weight",)]
    assert set(bnn.draw()) == {name for names in random_tensors(bnn) for name in names}
    torch.testing.assert_close(kl(bnn), one_by_one(bnn).float())


def test_large_networks_and_factors_have_no_rows(monkeypatch):
    monkeypatch.setattr(groups, "SMALL", 30)
    for bnn in (bayesian(mlp()), bayesian(mlp(), structure="rank1", members=2)):
        assert not any(isinstance(part, groups.Group) for part in bnn.groups.of(bnn).drawn)
        assert len(bnn.draw()) == (2 if bnn.members else 4)


def test_groups_follow_a_change_of_the_network():
    bnn = bayesian(mlp(), "normal")
    before = bnn.groups.of(bnn)
    assert bnn.groups.of(bnn) is before
    bnn.float()
    assert bnn.groups.of(bnn) is not before
    assert bnn.draw()["0.weight"].dtype == torch.float32
    wide = bayesian(mlp(), "normal", mcrepar.prior("normal", scale=3.0))
    bnn.double().load_state_dict(wide.state_dict())  # a state brings its priors
    torch.testing.assert_close(kl(bnn), kl(wide))
    bnn.latents["0/weight"].to(torch.float32)
    assert bnn.draw()["0.weight"].dtype == torch.float32
    assert bnn.draw()["0.bias"].dtype == torch.float64


def test_parameters_that_are_swapped_are_the_ones_that_are_read():
    """As torch.func.functional_call does; a row that was kept would not see it."""
    bnn = bayesian(nn.Linear(3, 2), "normal")
    bnn.draw()
    zeros = {name: torch.zeros_like(p) for name, p in bnn.named_parameters()}
    zeros |= {name: torch.full_like(p, -30.0) for name, p in zeros.items() if "log_scale" in name}
    out = torch.func.functional_call(bnn, zeros, torch.ones(1, 3))
    assert out.abs().max() < 1e-9
    bnn.latents["weight"].loc.data.fill_(7.0)  # which no version counter sees
    assert (bnn.draw()["weight"] - 7).abs().max() < 1


def test_copies_and_pickles_have_groups_of_their_own():
    bnn, x = bayesian(mlp(), "normal"), torch.ones(2, 4, dtype=torch.float64)
    bnn(x)
    for twin in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):  # noqa: S301
        with torch.no_grad():
            for p in twin.parameters():
                p.fill_(-20.0)
        assert bool((twin.draw()["0.weight"] + 20).abs().max() < 1e-3)
        assert twin.groups.kept.tensors[0] is twin.latents["0/weight"]


def test_the_error_names_the_tensor():
    bnn = bayesian(mlp(), "normal")
    bnn.latents["2/bias"].log_scale.data.fill_(float("nan"))
    with pytest.raises(mcrepar.ParameterError, match=r"2\.bias"):
        kl(bnn)


def test_threads_draw_from_one_network():
    bnn, found = bayesian(mlp(), "normal"), []

    def work(seed):
        for _ in range(20):
            found.append((seed, bnn.draw(seeded(seed))["0.weight"].detach()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(torch.equal(w, bnn.draw(seeded(seed))["0.weight"]) for seed, w in found)


def test_rows_are_read_once_where_they_are_shared():
    bnn, x, y = bayesian(mlp()), torch.ones(3, 4, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    (group,) = bnn.groups.of(bnn).drawn
    assert group.row()[1] is not group.row()[1]
    with groups.shared_rows():
        assert group.row()[1] is group.row()[1]
    torch.manual_seed(0)
    e = mcrepar.elbo(bnn, "normal", x, y, data_size=10, draws=3)
    torch.manual_seed(0)
    u = [bnn(x) for _ in range(3)]
    nll = torch.stack([-mcrepar.likelihoods.Normal().log_prob(one, y).mean() for one in u]).mean()
    for one, two in zip(gradients(e.loss, bnn), gradients(nll + kl(bnn) / 10, bnn), strict=True):
        torch.testing.assert_close(one, two)


def test_a_parameter_without_dimensions_is_drawn():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.gain = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.layer(x) * self.gain

    bnn = bayesian(Scaled())
    assert bnn.draw()["gain"].shape == ()
    mcrepar.elbo(bnn, "categorical", torch.ones(5, 4), torch.zeros(5).long(), 5, draws=3).loss.backward()
    assert all(p.grad is not None for p in bnn.parameters())
