"""Large networks, whose tensors are drawn and summed in one pass; tiny ones are taken for large here."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call

import mcrepar
from mcrepar.nn import groups
from mcrepar.nn.groups import NetworkPass, shared_rows
from mcrepar.nn.random_tensor import random_tensors
from tests.conftest import seeded
from tests.nn.networks import Tied

FAMILIES = [("radial", "normal"), ("normal", "normal"), ("laplace", "normal"), ("gamma", "gamma"),
            ("lognormal", "lognormal")]  # fmt: skip


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch):
    monkeypatch.setattr(groups, "SMALL", 0)


def network(posterior: str = "radial", prior: object = "normal", **options) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return mcrepar.bayesian(net, posterior, prior, signs="keep", **{"forward": "weights", **options})


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4, generator=seeded(1), dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])


def general_step(bnn, weights, x, y) -> list[torch.Tensor]:
    """The gradients of the objective at these weights, tensor by tensor."""
    again, kl = {}, 0.0
    for names, tensor in random_tensors(bnn).items():
        q, w = tensor.posterior, weights[names[0]].detach()
        w = w if tensor.signs is None else w * tensor.signs
        xi = ((q.form.outer.inverse(w) - q.loc) / q.scale).detach()
        again |= dict.fromkeys(names, tensor.whole(q.weights(xi)))
        kl = kl + tensor.divergence()
    loss = F.cross_entropy(functional_call(bnn.net, again, (x,), tie_weights=False), y) + kl / 100
    return list(torch.autograd.grad(loss, list(bnn.parameters())))


@pytest.mark.parametrize(("posterior", "prior"), FAMILIES)
def test_a_step_has_the_gradients_of_the_general_path(posterior, prior):
    bnn, (x, y) = network(posterior, prior), data()
    assert isinstance(bnn.groups.of(bnn).drawn[0], NetworkPass)
    torch.manual_seed(3)
    mcrepar.elbo(bnn, "categorical", x, y, data_size=100).loss.backward()
    torch.manual_seed(3)
    with shared_rows():
        weights = bnn.draw()
    found = [p.grad for p in bnn.parameters()]
    torch.testing.assert_close(found, general_step(bnn, weights, x, y), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("posterior", "prior"), FAMILIES)
def test_a_seed_gives_the_same_weights_in_a_step_outside_of_it_and_without_gradients(posterior, prior):
    bnn = network(posterior, prior)
    found = {"outside": bnn.draw(seeded(3))}
    with shared_rows():
        found["step"] = bnn.draw(seeded(3))
    with torch.no_grad():
        found["prediction"] = bnn.draw(seeded(3))
    for name in ("step", "prediction"):
        torch.testing.assert_close(found[name], found["outside"], rtol=1e-12, atol=1e-14)
    parameters = list(bnn.parameters())
    gradients = {
        name: torch.autograd.grad(sum(w.pow(3).sum() for w in found[name].values()), parameters, allow_unused=True)
        for name in ("outside", "step")
    }
    torch.testing.assert_close(gradients["outside"], gradients["step"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("small", [0, 2**16])
def test_what_a_step_computed_without_a_graph_serves_no_gradient(small, monkeypatch):
    monkeypatch.setattr(groups, "SMALL", small)
    bnn = network("normal", "normal")
    with shared_rows():
        with torch.no_grad():
            bnn.draw()
        weights, kl = bnn.draw(), mcrepar.kl(bnn)
        (sum(w.sum() for w in weights.values()) + kl).backward()
    assert all(p.grad is not None for p in bnn.parameters())


@pytest.mark.parametrize("small", [0, 2**16])
def test_the_first_step_has_its_gradients_under_hooks_of_saved_tensors(small, monkeypatch):
    monkeypatch.setattr(groups, "SMALL", small)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    bnn = mcrepar.bayesian(net)
    with torch.autograd.graph.save_on_cpu():
        loss = mcrepar.elbo(bnn, "categorical", torch.randn(6, 1, 5, 5), torch.arange(6) % 3, data_size=60).loss
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in bnn.parameters())
    slopes = torch.cat([tensor.log_scale.grad.abs().flatten() for tensor in bnn.latents.values()])
    assert slopes.min() > 1e-3  # of the KL, which has 1 / 60 for every weight whose noise is narrow


def test_tied_weights_are_drawn_once():
    bnn = mcrepar.bayesian(Tied().double(), "normal")
    with shared_rows():
        weights = bnn.draw()
    assert weights["embedding.weight"] is weights["head.weight"]
    x = torch.tensor([[1, 2], [3, 4]])
    loss = mcrepar.elbo(bnn, "categorical", x, x, data_size=10, output=lambda u: u.transpose(1, 2)).loss
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in bnn.parameters())


@pytest.mark.parametrize("prior", [mcrepar.prior("normal", scale="learned"), mcrepar.prior("laplace")])
def test_a_kl_that_the_pass_does_not_cover_is_added_tensor_by_tensor(prior):
    bnn, (x, y) = network("normal", prior), data()
    layout = bnn.groups.of(bnn)
    assert layout.drawn[0].tensors
    assert not layout.summed
    mcrepar.elbo(bnn, "categorical", x, y, data_size=100).loss.backward()
    assert all(bool(p.grad.any()) for p in bnn.parameters())


def test_families_of_several_kinds_share_the_pass():
    bnn, (x, y) = network(overrides={"2.*": {"posterior": "normal"}}), data()
    torch.manual_seed(3)
    e = mcrepar.elbo(bnn, "categorical", x, y, data_size=100)
    torch.testing.assert_close(e.kl, sum(t.divergence() for t in random_tensors(bnn).values()))
    e.loss.backward()
    torch.manual_seed(3)
    with shared_rows():
        found = general_step(bnn, bnn.draw(), x, y)
    torch.testing.assert_close([p.grad for p in bnn.parameters()], found, rtol=1e-8, atol=1e-10)


def test_buckets_of_a_group_of_processes_change_nothing_but_the_noise(monkeypatch):
    bnn, (x, y) = network(), data()
    monkeypatch.setattr(groups, "BUCKET", 10)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    once = bnn.groups.of(bnn).drawn[0]
    assert len(list(once._buckets())) > 2
    torch.manual_seed(3)
    e = mcrepar.elbo(bnn, "categorical", x, y, data_size=100)
    e.loss.backward()
    torch.manual_seed(3)
    with shared_rows():
        found = general_step(bnn, bnn.draw(), x, y)
    torch.testing.assert_close([p.grad for p in bnn.parameters()], found, rtol=1e-8, atol=1e-10)


def test_a_generator_decides_and_several_draws_share_one_kl():
    bnn, (x, y) = network(n_mc_iter=100), data()
    twin = copy.deepcopy(bnn)
    first, second = (
        mcrepar.elbo(net, "categorical", x, y, data_size=100, draws=3, generator=seeded(4)) for net in (bnn, twin)
    )
    assert torch.equal(first.loss, second.loss)
    first.loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in bnn.parameters())


def test_outside_of_a_step_draws_and_kl_are_apart_and_without_gradients_draws_are_a_pass():
    bnn = network()
    drawn = bnn.draw()
    assert "_Moved" in str(drawn["0.weight"].grad_fn)
    with torch.no_grad():
        assert torch.equal(bnn.draw(seeded(1))["0.weight"], bnn.draw(seeded(1))["0.weight"])
    torch.testing.assert_close(bnn.kl(), sum(t.divergence() for t in random_tensors(bnn).values()))


def test_second_derivatives_of_a_step():
    bnn, (x, y) = network("normal"), data()
    loss = mcrepar.elbo(bnn, "categorical", x, y, data_size=100).loss
    parameters = list(bnn.parameters())
    slopes = torch.autograd.grad(loss, parameters, create_graph=True)
    torch.autograd.grad(sum((s**2).sum() for s in slopes), parameters)


def test_memory_is_used_again_only_where_nobody_looks_at_it():
    bnn = network()
    with torch.no_grad():
        first = bnn.draw(seeded(1))
        kept = {name: w.clone() for name, w in first.items()}
        place = bnn.draw(seeded(2))["0.weight"].data_ptr()
        assert place != first["0.weight"].data_ptr()
        assert bnn.draw(seeded(3))["0.weight"].data_ptr() == place
    assert all(torch.equal(w, kept[name]) for name, w in first.items())


def test_two_steps_before_their_backwards_keep_their_samples():
    bnn, (x, y) = network(), data()
    torch.manual_seed(3)
    losses = [mcrepar.elbo(bnn, "categorical", x, y, data_size=100).loss for _ in range(2)]
    found = torch.autograd.grad(losses[0], list(bnn.parameters()))
    torch.manual_seed(3)
    twin = copy.deepcopy(bnn)
    alone = mcrepar.elbo(twin, "categorical", x, y, data_size=100).loss
    torch.testing.assert_close(found, torch.autograd.grad(alone, list(twin.parameters())))


def test_a_backward_that_may_be_repeated_leaves_the_weights_as_they_are():
    bnn, (x, y) = network(), data()
    loss, parameters = mcrepar.elbo(bnn, "categorical", x, y, data_size=100).loss, list(bnn.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    kept = [slope.clone() for slope in first]
    second = torch.autograd.grad(loss, parameters)
    torch.testing.assert_close(first, second)
    mcrepar.elbo(bnn, "categorical", x, y, data_size=100).loss.backward()
    torch.testing.assert_close(list(second), kept)  # a gradient on the memory of weights is not overwritten


def test_gradients_add_up_over_steps():
    bnn, (x, y) = network(), data()
    twin = copy.deepcopy(bnn)
    for net, count in ((bnn, 2), (twin, 1)):
        for seed in range(2):
            torch.manual_seed(seed)
            mcrepar.elbo(net, "categorical", x, y, data_size=100).loss.backward()
            if count == 1 and seed == 0:
                before = [p.grad.clone() for p in net.parameters()]
                net.zero_grad()
    found = [p.grad for p in bnn.parameters()]
    torch.testing.assert_close(found, [a + p.grad for a, p in zip(before, twin.parameters(), strict=True)])


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_has_the_same_gradients(one_process, monkeypatch):
    monkeypatch.setattr(groups, "BUCKET", 10)
    bnn, (x, y) = network(), data()
    twin = copy.deepcopy(bnn)
    for net in (bnn, nn.parallel.DistributedDataParallel(twin)):
        torch.manual_seed(3)
        mcrepar.elbo(net, "categorical", x, y, data_size=100).loss.backward()
    torch.testing.assert_close([p.grad for p in twin.parameters()], [p.grad for p in bnn.parameters()])


def test_a_network_that_is_sharded_as_one_trains_and_another_is_refused(one_process):
    (x, y), mesh = data(), init_device_mesh("cpu", (1,))
    bnn, parts = network(), network()
    twin = copy.deepcopy(bnn)
    fully_shard(bnn, mesh=mesh)
    for net in (twin, bnn):
        torch.manual_seed(3)
        mcrepar.elbo(net, "categorical", x, y, data_size=100).loss.backward()
    found = [p.grad.full_tensor() for p in bnn.parameters()]
    torch.testing.assert_close(found, [p.grad for p in twin.parameters()])
    for tensor in parts.latents.values():
        fully_shard(tensor, mesh=mesh)
    with pytest.raises(mcrepar.MethodError, match="sharded among processes"):
        parts(x)
