"""Any network becomes Bayesian: one table of networks, each drawn, trained, frozen, copied and exported (float64).

Statistical tests fix their seeds; |z| > 5 by chance: 6e-7.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import mcrepar
from mcrepar import MethodError, ParameterError, bayesian, kl
from mcrepar.divergence.kl import apply_plan
from mcrepar.inspect.graph import saved_bytes
from mcrepar.nn.calibration import complete
from mcrepar.nn.random_tensor import each_named
from mcrepar.nn.swap import Guard, plain_copy
from tests.conftest import seeded
from tests.nn.networks import NETS


@pytest.fixture(params=NETS)
def named(request):
    """A network of the table, in float64, and a function that calls it."""
    build, given = NETS[request.param]
    torch.manual_seed(0)
    net = build().double()

    def call(module: nn.Module) -> Tensor:
        out = module(**given) if isinstance(given, dict) else module(*given)
        return torch.cat([leaf.flatten() for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)])

    return net, call


# ---- the table


def test_every_parameter_gets_a_gradient_from_the_first_forward(named):
    net, call = named
    bnn = bayesian(net)
    out = call(bnn)
    (out * torch.linspace(0.5, 2, len(out))).sum().backward()
    for name, p in bnn.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


def test_the_kl_has_a_gradient_for_every_random_tensor(named):
    bnn = bayesian(named[0])
    kl(bnn).backward()
    for _, latent in bnn.latents.items():
        assert latent.log_scale.grad.any()
        assert latent.loc.grad.isfinite().all()
        assert latent.loc.grad.any() or not latent.loc.any()  # zeros are the prior's own mean
    assert all(p.grad is None for p in bnn.net.parameters())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_it_is_random_unless_frozen(named, training, grad):
    net, call = named
    bnn = bayesian(net).train(training)
    ignoring = pytest.warns(UserWarning, match="BatchNorm") if _warns(bnn) else contextlib.nullcontext()
    with torch.set_grad_enabled(grad):
        assert not torch.equal(call(bnn), call(bnn))
        with ignoring, bnn.frozen("mean"):
            assert torch.equal(call(bnn), call(bnn))
        with bnn.frozen(bnn.draw()):
            assert torch.equal(call(bnn), call(bnn))
        assert not torch.equal(call(bnn), call(bnn))


def _warns(bnn: mcrepar.BayesianModule) -> bool:
    return bool(bnn.calibration.layers) and not bnn.training


def test_it_starts_as_the_network_it_was(named):
    """With next to no noise a draw is the network; the means are its weights, exactly."""
    net, call = named
    twin = copy.deepcopy(net).eval()
    weights = {n: p.detach().clone() for n, p in net.named_parameters(remove_duplicate=False)}
    bnn = bayesian(net, start_std=1e-9).eval()
    torch.testing.assert_close(call(bnn), call(twin), atol=1e-6, rtol=1e-6)
    assert all(torch.equal(w, weights[n]) for n, w in bnn.mean().items())
    assert all(w.stride() == weights[n].stride() for n, w in bnn.draw().items())


def test_an_export_is_an_ordinary_module(named):
    net, call = named
    twin = copy.deepcopy(net).eval()
    bnn = bayesian(net).eval()
    call(bnn)
    with pytest.warns(UserWarning, match="BatchNorm") if _warns(bnn) else contextlib.nullcontext():
        plain = bnn.to_module("mean")
    torch.testing.assert_close(call(plain), call(twin), atol=1e-12, rtol=1e-12)
    ours, theirs = dict(plain.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == theirs.keys()  # tied weights are listed once: they are still one
    assert all(p.shape == theirs[n].shape and type(p) is nn.Parameter for n, p in ours.items())
    assert not any(isinstance(hook, Guard) for m in plain.modules() for hook in m._forward_pre_hooks.values())
    assert not torch.equal(call(bnn.to_module("draw")), call(bnn.to_module("draw")))
    draw = bnn.draw()
    with bnn.frozen(draw):
        torch.testing.assert_close(call(bnn.to_module(draw)), call(bnn))


def test_copies_are_apart_and_the_same(named):
    net, call = named
    bnn = bayesian(net)
    call(bnn)  # a copy after a forward must not hold its draw
    buffer = io.BytesIO()
    torch.save(bnn.state_dict(), buffer)
    buffer.seek(0)
    fresh = copy.deepcopy(bnn)
    for p in fresh.parameters():
        p.data.add_(1.0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    twins, state = [copy.deepcopy(bnn), fresh], copy.deepcopy(bnn.state_dict())
    if not torch.nn.utils.parametrize.is_parametrized(bnn.net):  # which torch itself does not pickle
        twins.append(pickle.loads(pickle.dumps(bnn)))  # noqa: S301
    for twin in twins:
        bnn.load_state_dict(state)  # a call may count in a buffer
        assert all(torch.equal(t, state[n]) for n, t in twin.state_dict().items())
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in bnn.parameters()}
        torch.manual_seed(1)
        one = call(bnn)
        torch.manual_seed(1)
        assert torch.equal(call(twin), one)
        assert torch.equal(kl(twin, generator=seeded(2)), kl(bnn, generator=seeded(2)))


def test_no_parameter_is_stored_twice(named):
    """Two numbers for every random weight, one for every other, and nothing is left behind by a forward."""
    net, call = named
    chosen = bayesian(copy.deepcopy(net))
    random = sum(latent.log_scale.numel() for _, latent in chosen.latents.items())
    everything = sum(p.numel() for p in net.parameters())
    buffers = sum(b.numel() for b in net.buffers())
    fixed = sum(p.numel() for p in chosen.net.parameters())
    padding = sum(latent.held.numel() for _, latent in chosen.latents.items() if latent.held is not None)
    assert random + fixed + padding == everything
    call(chosen)
    tensors = [*chosen.parameters(), *chosen.buffers()]
    assert sum(t.numel() for t in tensors) == 2 * random + fixed + padding + buffers
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    assert len(set(storages)) == len(storages)
    for module in chosen.net.modules():
        assert not any(type(v) is Tensor for v in vars(module).values())
        assert all(w is None or isinstance(w, nn.Parameter) for w in vars(module).get("_flat_weights", []))


# ---- parts


def test_a_shared_part_counts_once_and_parts_of_a_larger_network_add_up():
    torch.manual_seed(0)
    part, other = bayesian(nn.Linear(3, 3)), bayesian(nn.Linear(3, 3))
    whole = nn.Sequential(part, nn.Tanh(), other, part)
    assert kl(whole).item() == pytest.approx((kl(part) + kl(other)).item(), rel=1e-6)
    assert whole(torch.zeros(2, 3)).shape == (2, 3)


def test_recurrent_options_are_kept():
    torch.manual_seed(0)
    bnn = bayesian(nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True))
    out, (h, _) = bnn(torch.zeros(2, 5, 4))
    assert out.shape == (2, 5, 6)
    assert h.shape == (4, 2, 3)
    assert len(bnn.latents) == 16
    assert kl(bnn).item() == pytest.approx(
        sum(latent.divergence().item() for _, latent in bnn.latents.items()), rel=1e-6
    )


# ---- one noise, one draw


@pytest.mark.parametrize("name", ["normal", "laplace", "logistic", "horseshoe", "radial", "error"])
def test_the_noise_of_the_forward_is_that_of_the_kl(name):
    """One object: the KL's posterior draws what the forward draws, from the same generator."""
    torch.manual_seed(0)
    bnn = bayesian(nn.Linear(4, 3).double(), name)
    first, generator = seeded(3), seeded(3)
    draw = each_named(bnn, lambda tensor: tensor.draw(first))
    for key, latent in bnn.latents.items():
        torch.testing.assert_close(draw[key], latent.posterior.draw(generator=generator))
        assert latent.posterior.noise == latent.options.posterior.row.noise(latent.posterior.fixed, draw[key].numel())


def test_a_generator_decides_the_draw_and_leaves_the_default_alone():
    bnn = bayesian(nn.Linear(4, 3))
    state = torch.get_rng_state()
    one, two = bnn.draw(seeded(1)), bnn.draw(seeded(1))
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(bnn.draw(seeded(2))["weight"], one["weight"])


def test_a_copy_of_a_frozen_network_is_frozen_for_as_long():
    bnn, x = bayesian(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), start_std=1.0), torch.ones(1, 3)
    before = copy.deepcopy(bnn)
    with bnn.frozen("draw"):
        twin = copy.deepcopy(bnn)
        whole = copy.deepcopy(nn.Sequential(bnn))
        assert all(torch.equal(net(x), bnn(x)) for net in (twin, whole) for _ in range(2))
        assert not torch.equal(before(x), before(x))  # it is another network
    for net in (bnn, twin, whole):
        assert not torch.equal(net(x), net(x))
    assert not torch.equal(*(copy.deepcopy(twin)(x) for _ in range(2)))


def test_a_copy_outlives_the_frozen_context_of_another_network():
    """The copy is frozen where its original is, whichever contexts of other networks begin and end meanwhile."""
    bnn, other, x = bayesian(nn.Linear(2, 1)), bayesian(nn.Linear(2, 1)), torch.ones(1, 2)
    with bnn.frozen("mean"):
        with other.frozen("draw"), bnn.frozen("draw"):
            twin = copy.deepcopy(bnn)
            assert torch.equal(twin(x), bnn(x))
        assert torch.equal(twin(x), bnn(x))
        assert torch.equal(twin(x), twin(x))
    assert not torch.equal(twin(x), twin(x))


def test_frozen_contexts_nest_and_belong_to_their_network():
    torch.manual_seed(0)
    bnn, other, x = bayesian(nn.Linear(4, 3)), bayesian(nn.Linear(4, 3)), torch.ones(1, 4)
    draw = bnn.draw()
    with bnn.frozen("mean"):
        mean = bnn(x)
        with bnn.frozen(draw):
            assert not torch.equal(bnn(x), mean)
        assert torch.equal(bnn(x), mean)
        assert not torch.equal(other(x), other(x))
        mean.sum().backward()  # the mean is differentiable
        assert bnn.latents["weight"].loc.grad is not None
    with pytest.raises(ZeroDivisionError), bnn.frozen("mean"):
        raise ZeroDivisionError
    assert not torch.equal(bnn(x), bnn(x))


def test_the_kl_saves_nothing_that_grows_with_m():
    bnn = bayesian(nn.Linear(40, 30), "radial", "normal")
    sizes = {saved_bytes(lambda m=m: kl(bnn, "stats", m)) for m in (100, 1000, 10**6)}
    assert len(sizes) == 1


# ---- refusals


@pytest.mark.parametrize("ask", ["median", "Mean"])
def test_a_frozen_word_is_mean_or_draw(ask):
    with pytest.raises(MethodError, match="neither"), bayesian(nn.Linear(2, 2)).frozen(ask):
        pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda draw: {"weight": draw["weight"]}, "it has no bias. Use"),
        (lambda draw: None, "a frozen NoneType: it names no weights. Use 'mean'"),
        (lambda draw: 3, "a frozen int"),
        (lambda draw: {**draw, "bias": torch.zeros(4)}, r"its bias has the shape \(4,\), not .* \(3,\)"),
        (lambda draw: {**draw, "weight": draw["weight"].T}, r"its weight has the shape \(4, 3\)"),
        (lambda draw: {**draw, "bias": 0.0}, "its bias has the type float"),
        (lambda draw: {**draw, "bias": draw["bias"].double()}, r"its bias is torch.float64, the weights torch.float32"),
        (lambda draw: {**draw, "wieght": draw["weight"]}, "'wieght' is no weight of the network. Use the names"),
        (lambda draw: {**draw, 3: draw["weight"]}, "3 is no weight of the network"),
    ],
)
def test_a_frozen_draw_is_one_of_the_network(change, words):
    bnn = bayesian(nn.Linear(4, 3))
    for use in (partial(complete, bnn), bnn.to_module):
        with pytest.raises(ParameterError, match=words):
            use(change(bnn.draw()))


def test_a_frozen_draw_may_hold_other_tensors_of_the_network():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))).calibrate(torch.randn(8, 4)).eval()
    whole = complete(bnn, "draw")
    assert {"1.running_mean", "0.weight"} < set(whole)
    with bnn.frozen({**whole, "1.bias": torch.full((3,), 100.0)}):
        assert bool((bnn(torch.zeros(2, 4)) > 50).all())


class Awkward(nn.Module):
    """Names that a ModuleDict has itself, and names that differ in a dot only."""

    NAMES = ("keys", "values", "items", "pop", "update", "clear", "clear_", "a/b", "weight")

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Module()
        self.a.b = nn.Parameter(torch.randn(3))
        for name in self.NAMES:
            self.register_parameter(name, nn.Parameter(torch.randn(3)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a.b * torch.stack([getattr(self, name) for name in self.NAMES]).prod(0)


def test_every_name_of_a_parameter_has_a_latent_of_its_own(tmp_path):
    torch.manual_seed(0)
    net = Awkward()
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    bnn = bayesian(net)
    assert {name for (name,) in bnn.names.values()} == set(weights)
    assert all(torch.equal(w, weights[name]) for name, w in bnn.mean().items())
    assert bnn.latents["weight"].name == "weight"  # others keep the name that a reader expects
    bnn(torch.ones(1, 3)).sum().backward()
    assert all(latent.loc.grad.any() for _, latent in bnn.latents.items())
    twin = bayesian(Awkward())
    twin.load_state_dict(bnn.state_dict())
    mcrepar.save(bnn, tmp_path)
    for other in (twin, mcrepar.load(tmp_path, Awkward())):
        assert all(torch.equal(w, weights[name]) for name, w in other.mean().items())


def test_an_export_keeps_the_mode_of_every_module():
    bnn = bayesian(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()))
    bnn.net[1].eval()
    modes = [m.training for m in bnn.to_module().modules()]
    assert modes == [True, True, False, True]
    assert not any(m.training for m in plain_copy(bnn.eval(), bnn.draw()).modules())
    assert not any(m.training for m in bayesian(nn.Sequential(nn.Linear(2, 2)).eval()).to_module().modules())


def test_nothing_bayesian_has_no_kl():
    with pytest.raises(ParameterError, match="nothing in it is Bayesian"):
        kl(nn.Linear(2, 2))


def test_a_kl_that_is_not_finite_names_its_tensor():
    bnn = bayesian(nn.Linear(2, 2))
    with torch.no_grad():
        bnn.latents["bias"].loc[0] = math.nan
    with pytest.raises(ParameterError, match=r"bias: KL\(normal \|\| hierarchical\).*loc must be"):
        kl(bnn)


# ---- other methods, noise and members than chosen


@pytest.mark.parametrize(
    ("own", "asked", "runs"),
    [
        (("direct", 7), {"n_mc_iter": 50}, ("direct", 50)),
        (("direct", 7), {"method": "regen"}, ("regen", 7)),
        (("stream", 7), {"method": "auto"}, ("auto", 7)),
        (("direct", 7), {"method": "closed"}, ("exact", None)),
        (("exact", None), {"method": "stream"}, ("stream", None)),
        (("direct", 7), {"method": "repar", "n_mc_iter": 3}, ("repar", 3)),
        (("direct", 7), {}, ("direct", 7)),
    ],
)
@pytest.mark.parametrize("structure", ["weights", "rank1"])
def test_a_method_and_its_draws_replace_only_themselves(own, asked, runs, structure, monkeypatch):
    bnn = bayesian(nn.Linear(3, 2), "normal", "normal", *own, structure=structure)
    seen, run = [], apply_plan
    for place in ("random_tensor", "row_divergence"):
        monkeypatch.setattr(
            f"mcrepar.nn.{place}.apply_plan",
            lambda plan, q, p, estimator, *rest: seen.append(estimator) or run(plan, q, p, estimator, *rest),
        )
    bnn.kl(**asked)
    kl(nn.Sequential(bnn), **asked)
    assert {(estimator.method, estimator.n_mc_iter) for estimator in seen} == {runs}


def test_a_number_of_draws_is_asked_of_every_tensors_own_method():
    bnn = bayesian(nn.Linear(3, 2), "normal", "normal", "exact", overrides={"bias": {"kl_method": "direct"}})
    with pytest.raises(MethodError, match="n_mc_iter=50 with method='exact'"):
        bnn.kl(n_mc_iter=50)


@pytest.mark.parametrize("options", [{}, {"structure": "rank1", "members": 2}])
def test_what_is_no_generator_is_refused(options):
    bnn = bayesian(nn.Linear(3, 2), "normal", **options)
    for ask in (bnn.draw, bnn.kl, partial(bnn.kl, "exact"), partial(kl, bnn, "exact")):
        with pytest.raises(ParameterError, match=r"generator=3: it is of type int.*manual_seed"):
            ask(generator=3)


@pytest.mark.parametrize(
    ("options", "member", "match"),
    [
        ({"structure": "rank1", "members": 2}, 4, r"draw\(member=4\): the network has no such member. Use 0 to 1"),
        ({"structure": "rank1", "members": 2}, -1, "member=-1: it is too small"),
        ({"structure": "rank1"}, 1, "no such member. Use 0, or None"),
        ({}, 1, "no such member. Use 0, or None"),
        ({}, "a", "member='a': it is a str"),
    ],
)
def test_a_member_that_does_not_exist_is_refused(options, member, match):
    bnn = bayesian(nn.Linear(3, 2), "normal", **options)
    assert bnn.draw(member=0)["weight"].shape == (2, 3)
    with pytest.raises(ParameterError, match=match):
        bnn.draw(member=member)
