"""elbo = nll + beta KL / N: its parts, its gradients, its refusals, a known answer; and the schedules of beta."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mcrepar
from mcrepar.errors import McreparError, ParameterError
from mcrepar.kl_schedules import kl_weight
from mcrepar.likelihoods import Bernoulli, Categorical, NoisyDirichlet, Normal, PerVoxel
from mcrepar.objective import elbo
from tests.conftest import seeded


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def net(outputs: int = 2, **options: Any) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    return mcrepar.bayesian(plain, **({"posterior": "normal", "start_std": 0.5} | options))


def gradients(bnn: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(bnn.parameters())))


# ---- the parts


def test_the_parts_add_up():
    bnn, x, y = net(), randn(4, 3), randn(4, 2, seed=1)
    torch.manual_seed(7)
    e = elbo(bnn, Normal(0.5), x, y, data_size=100, beta=0.25)
    torch.manual_seed(7)
    output = bnn(x)
    expected = -torch.distributions.Normal(output, 0.5).log_prob(y).sum(1).mean()
    torch.testing.assert_close(e.nll, expected)
    torch.testing.assert_close(e.kl, mcrepar.kl(bnn))
    torch.testing.assert_close(e.loss, e.nll + 0.25 * e.kl / 100)


def test_the_paper_divides_by_the_number_of_batches():
    bnn, x, y = net(), randn(4, 3), randn(4, 2)
    e = elbo(bnn, Normal(), x, y, data_size=12, beta=kl_weight("paper", batch_size=4)(0))
    torch.testing.assert_close(e.loss, e.nll + e.kl / 3)


@pytest.mark.parametrize("last_layer_draws", [None, 1, 50])
def test_k_draws_have_the_mean_gradient_of_single_ones(last_layer_draws):
    bnn, x, y = net(), randn(4, 3), randn(4, 2, seed=1)
    options: dict[str, Any] = {"data_size": 10, "last_layer_draws": last_layer_draws}
    together = gradients(bnn, elbo(bnn, Normal(), x, y, draws=3, generator=seeded(5), **options).loss)
    generator = seeded(5)
    single = [gradients(bnn, elbo(bnn, Normal(), x, y, generator=generator, **options).loss) for _ in range(3)]
    for whole, *parts in zip(together, *single, strict=True):
        torch.testing.assert_close(whole, sum(parts) / 3, atol=1e-13, rtol=1e-11)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Normal(0.5), randn(8, 2, seed=1)), (Normal("learned"), randn(8, 2, seed=1)),
        (Normal("heteroscedastic"), randn(8, 1, seed=1)), (Bernoulli(), (randn(8, 2, seed=1) > 0).double()),
        (NoisyDirichlet(), torch.arange(8) % 2), (Categorical(), torch.arange(8) % 2),
    ],
)  # fmt: skip
def test_moments_are_the_limit_of_many_draws(likelihood, y):
    """The expected nll within 3 % of 200 draws (10 % for classes, where it is a bound); its gradient is exact."""
    rank1 = isinstance(likelihood, NoisyDirichlet)
    bnn, x = net(start_std=0.2, **({"structure": "rank1", "members": 2} if rank1 else {})).eval(), randn(8, 3)
    found = elbo(bnn, likelihood, x, y, data_size=100, draws="moments")
    assert torch.equal(found.loss, elbo(bnn, likelihood, x, y, data_size=100, draws="moments").loss)  # nothing is drawn
    torch.testing.assert_close(found.loss, found.nll + found.kl / 100)
    torch.manual_seed(0)
    with torch.no_grad():
        nll = torch.stack([-likelihood.log_prob(bnn(x), y).mean() for _ in range(200)])
    slack = 5 * float(nll.std()) / 200**0.5
    least = 0.1 if isinstance(likelihood, Categorical) else 0.03
    assert abs(float(found.nll.detach() - nll.mean())) < slack + least * abs(float(nll.mean()))
    p = next(bnn.parameters())
    (slope,) = torch.autograd.grad(found.nll, p)
    ends = []
    with torch.no_grad():
        for change in (1e-5, -2e-5):
            p.view(-1)[0] += change
            ends.append(float(elbo(bnn, likelihood, x, y, data_size=100, draws="moments").nll))
    assert float(slope.view(-1)[0]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-6)


def test_moments_train():
    bnn, x = net(outputs=1), randn(64, 3)
    y = x.sum(1, keepdim=True).tanh()
    optimizer = torch.optim.Adam(bnn.parameters(), lr=0.05)
    first = None
    for _ in range(60):
        optimizer.zero_grad()
        e = elbo(bnn, Normal(0.1), x, y, data_size=64, draws="moments")
        e.loss.backward()
        optimizer.step()
        first = first or float(e.loss.detach())
    assert float(e.loss.detach()) < 0.3 * first


def test_moments_and_draws_of_the_last_layer_exclude_each_other():
    with pytest.raises(McreparError, match="either of them"):
        elbo(net(), Normal(), randn(4, 3), randn(4, 2), 4, draws="moments", last_layer_draws=10)
    with net().frozen() as bnn, pytest.raises(McreparError, match="frozen"):
        elbo(bnn, Normal(), randn(4, 3), randn(4, 2), 4, draws="moments")


def test_two_forwards_and_one_backward_are_the_sum_of_two():
    bnn, x, y = net(), randn(4, 3), randn(4, 2, seed=1)
    losses = [elbo(bnn, Normal(), x, y, data_size=10, generator=seeded(k)).loss for k in (1, 2)]
    both = gradients(bnn, losses[0] + losses[1])
    again = [gradients(bnn, elbo(bnn, Normal(), x, y, data_size=10, generator=seeded(k)).loss) for k in (1, 2)]
    for whole, first, second in zip(both, *again, strict=True):
        torch.testing.assert_close(whole, first + second)


def parts_by_hand(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    layers = [mcrepar.nn.Linear(3, 3, posterior="normal", **options) for _ in range(2)]
    return nn.Sequential(layers[0], nn.Dropout(0.5), layers[1], nn.Linear(3, 2)).double()


@pytest.mark.parametrize("forward", ["weights", "local", "flipout", "per_example"])
@pytest.mark.parametrize("build", [net, parts_by_hand])
def test_a_generator_decides_everything_and_leaves_the_default_alone(build, forward):
    bnn, x, y = build(forward=forward, kl_method="repar", n_mc_iter=10), randn(4, 3), randn(4, 2)
    generator, found = seeded(1), []
    for seed, source in enumerate((generator, seeded(1), generator)):
        torch.manual_seed(seed)
        state = torch.random.get_rng_state()
        e = elbo(bnn, Normal(), x, y, data_size=10, generator=source)
        found.append((e.nll, e.kl, *gradients(bnn, e.loss)))
        assert torch.equal(torch.random.get_rng_state(), state)
    assert all(map(torch.equal, found[0], found[1]))
    assert found[0][0] != found[2][0]  # the generator has moved on
    assert found[0][1] != found[2][1]


def test_a_generator_decides_draws_of_the_last_layer_and_checkpointed_parts():
    bnn, x, y = net(), randn(4, 3), randn(4, 2)
    values = []
    for seed in (1, 1, 2):
        torch.rand(1)  # the default RNG moves on
        values.append(elbo(bnn, Normal(), x, y, data_size=10, generator=seeded(seed), last_layer_draws=5).nll)
    assert values[0] == values[1] != values[2]
    parts = parts_by_hand()

    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.parts, self.reentrant = parts, reentrant

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.parts, x, use_reentrant=self.reentrant)

    wanted = gradients(parts, elbo(parts, Normal(), x, y, data_size=10, generator=seeded(3)).loss)
    for reentrant in (True, False):
        parts.zero_grad()
        given = x.clone().requires_grad_()
        elbo(Checkpointed(reentrant), Normal(), given, y, data_size=10, generator=seeded(3)).loss.backward()
        for p, grad in zip(parts.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, grad)


def test_a_generator_seeds_no_device_that_is_not_restored(monkeypatch):
    """torch.manual_seed would seed every device of the machine, also those whose state is not brought back."""
    bnn, seeded_all = net(), []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded_all.append)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    elbo(bnn, Normal(), randn(4, 3), randn(4, 2), data_size=10, generator=seeded(1))
    assert seeded_all == []


def test_a_generator_in_several_threads():
    nets, x, y = [net() for _ in range(3)], randn(4, 3), randn(4, 2)
    wanted = [elbo(bnn, Normal(), x, y, data_size=10, draws=20, generator=seeded(k)).nll for k, bnn in enumerate(nets)]
    state, got = torch.random.get_rng_state(), [torch.empty(())] * 3

    def work(k: int) -> None:
        got[k] = elbo(nets[k], Normal(), x, y, data_size=10, draws=20, generator=seeded(k)).nll

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == wanted
    assert torch.equal(torch.random.get_rng_state(), state)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.layer(a * b)


@pytest.mark.parametrize("form", [tuple, list, lambda pair: dict(zip("ab", pair, strict=True))])
def test_an_input_is_a_tensor_arguments_or_keywords(form):
    bnn, pair, y = mcrepar.bayesian(TwoInputs().double()), (randn(4, 3), randn(4, 3, seed=1)), randn(4, 2)
    with bnn.frozen("mean"):
        e = elbo(bnn, Normal(), form(pair), y, data_size=4)
        expected = -Normal().log_prob(bnn(*pair), y).mean()
    assert e.nll == expected


class Returns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": x, "logits": self.layer(x)}


@pytest.mark.parametrize("options", [{}, {"last_layer_draws": 20}])
def test_a_part_of_the_output_is_taken(options):
    torch.manual_seed(0)
    bnn, x, y = mcrepar.bayesian(Returns().double()), randn(4, 3), torch.tensor([0, 1, 1, 0])
    options |= {"data_size": 4, "generator": seeded(1)}
    plain = bayesian_twin(bnn)
    expected = elbo(plain, Categorical(), x, y, **options).nll
    for output in ("logits", lambda out: out["logits"]):
        options["generator"] = seeded(1)
        assert elbo(bnn, "categorical", x, y, output=output, **options).nll == expected
    with pytest.raises(ParameterError, match="output='features' or output='logits'"):
        elbo(bnn, "categorical", x, y, **options)


def bayesian_twin(bnn: mcrepar.BayesianModule) -> mcrepar.BayesianModule:
    """The layer of `Returns` alone, with the same weights."""
    plain = mcrepar.bayesian(nn.Linear(3, 2).double())
    plain.load_state_dict({k.replace("layer/", ""): v for k, v in bnn.state_dict().items()}, strict=False)
    return plain


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "normal"])
def test_likelihoods_by_name_and_numpy_data(name):
    bnn, x = net(), randn(4, 3)
    y = torch.tensor([0, 1, 1, 0]) if name == "categorical" else torch.ones(4, 2).double()
    own = {"categorical": Categorical(), "bernoulli": Bernoulli(), "normal": Normal()}[name]
    found = [
        elbo(bnn, *given, data_size=4, generator=seeded(1)).nll
        for given in ((own, x, y), (name, x.numpy(), y.numpy()), (name, (x.float().numpy().astype("f8"),), y))
    ]
    assert found[0] == found[1]
    torch.testing.assert_close(found[2], found[0], rtol=1e-6, atol=1e-6)


def test_soft_labels_have_the_gradient_of_their_mixture():
    """Mixup: the nll is linear in the label, with and without draws of the last layer."""
    bnn, x, hard = net(), randn(4, 3), torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]])
    mixed = 0.3 * nn.functional.one_hot(hard[0], 2).double() + 0.7 * nn.functional.one_hot(hard[1], 2).double()
    for options in ({}, {"last_layer_draws": 10}):
        nll = [elbo(bnn, Categorical(), x, y, 4, generator=seeded(1), **options).nll for y in (*hard, mixed)]
        torch.testing.assert_close(nll[2], 0.3 * nll[0] + 0.7 * nll[1])


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 2)

    def forward(self, x: Any) -> Tensor:
        return self.rnn(x)[1][0]


def test_a_packed_sequence_is_one_argument():
    bnn, rows = mcrepar.bayesian(Packed().double()), [randn(4, 3), randn(2, 3)]
    packed = nn.utils.rnn.pack_sequence(rows)
    for x in (packed, (packed,)):
        with bnn.frozen("mean"):
            expected = -Normal().log_prob(torch.cat([bnn(row[:, None]) for row in rows]), randn(2, 2)).mean()
            torch.testing.assert_close(elbo(bnn, Normal(), x, randn(2, 2), data_size=4).nll, expected)
    with pytest.raises(ParameterError, match=r"x\S* is NaN"):
        elbo(bnn, Normal(), nn.utils.rnn.pack_sequence([torch.nan * rows[0]]), randn(1, 2), data_size=4)


@pytest.mark.parametrize("forward", ["weights", "local", "flipout", "per_example"])
@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Normal(), torch.zeros(4, 2).double()),
        (Normal("heteroscedastic"), torch.zeros(4, 1).double()),
        (Bernoulli(), torch.ones(4, 2)),
        (Categorical(), torch.tensor([0, 1, 1, 0])),
    ],
    ids=["normal", "heteroscedastic", "bernoulli", "categorical"],
)
def test_every_likelihood_under_every_forward(forward, likelihood, y):
    bnn = net(forward=forward)
    for grad in gradients(bnn, elbo(bnn, likelihood, randn(4, 3), y, data_size=4, draws=2).loss):
        assert grad.isfinite().all()
        assert (grad != 0).any()


def test_half_precision_outputs_have_a_precise_nll():
    torch.manual_seed(0)
    bnn, x, y = mcrepar.bayesian(nn.Linear(3, 5)), torch.randn(8, 3), torch.randint(5, (8,))
    for options in ({}, {"last_layer_draws": 4}):
        with torch.autocast("cpu", torch.bfloat16):
            e = elbo(bnn, Categorical(), x, y, data_size=8, **options)
        assert e.nll.dtype == e.loss.dtype == torch.float32
        assert all(g.isfinite().all() for g in gradients(bnn, e.loss))


def test_segmentation_and_autoencoders():
    torch.manual_seed(0)
    x = torch.rand(2, 1, 6, 6)
    segmenter = mcrepar.bayesian(nn.Conv2d(1, 3, 3, padding=1))
    assert elbo(segmenter, Categorical(), x, torch.randint(3, (2, 6, 6)), data_size=2).loss.isfinite()
    coder = mcrepar.bayesian(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 1)))
    for likelihood in (Bernoulli(), Normal("learned")):
        e = elbo(coder, likelihood, x, x, data_size=2)
        e.loss.backward()
        assert all(p.grad is not None for p in likelihood.parameters())


def test_layers_put_together_by_hand():
    first, second = (mcrepar.bayesian(nn.Linear(3, 3).double(), posterior="normal") for _ in range(2))
    model, x, y = nn.Sequential(first, nn.ReLU(), second), randn(4, 3), randn(4, 3, seed=1)
    e = elbo(model, Normal(), x, y, data_size=4, last_layer_draws="exact")
    torch.testing.assert_close(e.kl, first.kl() + second.kl())
    assert all((g != 0).any() for g in gradients(model, e.loss))


def test_distributed_data_parallel(tmp_path):
    bnn, x, y = net(), randn(4, 3), randn(4, 2, seed=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(bnn)
        for options in ({"draws": 2}, {"last_layer_draws": 100}):
            elbo(wrapped, Normal(), x, y, data_size=4, generator=seeded(1), **options).loss.backward()
            found = [p.grad.clone() for p in bnn.parameters()]
            expected = gradients(bnn, elbo(bnn, Normal(), x, y, data_size=4, generator=seeded(1), **options).loss)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b)
            bnn.zero_grad()
        losses = [elbo(model, Normal(), x, y, data_size=4, generator=seeded(0)).loss for model in (wrapped, bnn)]
        assert losses[0] == losses[1]
    finally:
        torch.distributed.destroy_process_group()


# ---- refusals


class Overflow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * math.inf


def refused(message: str, error: type[McreparError] = ParameterError, **changes: Any) -> None:
    given: dict[str, Any] = {
        "bnn": net(),
        "likelihood": Normal(),
        "x": randn(4, 3),
        "y": randn(4, 2),
        "data_size": 100,
    }
    with pytest.raises(error, match=message):
        elbo(**(given | changes))


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("elbo without data_size: .*. Use data_size=len", {"data_size": None}),
        ("data_size=3: the batch alone has 4 examples", {"data_size": 3}),
        (
            "data_size=255: the batch alone has 256 examples. Use .*voxels",
            {"likelihood": PerVoxel(), "y": torch.zeros(4, 8, 8, dtype=torch.int64), "data_size": 255},
        ),
        ("data_size=100.0: it is a float. Use a whole number", {"data_size": 100.0}),
        ("data_size=True", {"data_size": True}),
        ("draws=0: it is too small", {"draws": 0}),
        ("beta=-1: it is not a finite number", {"beta": -1}),
        ("beta=nan", {"beta": math.nan}),
        ("it is a schedule. Use its value at a step", {"beta": kl_weight("graves")}),
        ("nothing in it is Bayesian", {"bnn": nn.Linear(3, 2)}),
        ("nothing in it is Bayesian", {"bnn": print}),
        ("likelihood of type MSELoss: it is no Likelihood", {"likelihood": nn.MSELoss()}),
        ("x is NaN at \\(0, 1\\)", {"x": torch.tensor([[0.0, math.nan, 0.0]])}),
        ("x\\[1\\] is NaN", {"x": [torch.zeros(1), torch.tensor([math.nan])]}),
        ("x\\['mask'\\] is NaN", {"x": {"mask": torch.tensor([math.nan])}}),
        ("y has the shape \\(4,\\)", {"y": randn(4)}),
        ("generator=1: it is of type int, not a torch.Generator. Use torch.Generator", {"generator": 1}),
        ("last_layer_draws=0", {"last_layer_draws": 0}),
        ("last_layer_draws='all'", {"last_layer_draws": "all"}),
    ],
)
def test_refused(message, changes):
    refused(message, **changes)


def test_a_loss_that_is_not_finite_names_the_tensor():
    bnn = net()
    before = [p.detach().clone() for p in bnn.parameters()]
    huge, infinite = 1e200 * torch.ones(4, 2).double(), math.inf * torch.ones(4, 3).double()
    refused("the nll is inf; the first tensor that is not finite: log p", bnn=bnn, y=huge)
    refused("the first tensor that is not finite: x. Use finite data", bnn=bnn, x=infinite)
    refused(r"that is not finite: x\[0\]. Use finite data", bnn=bnn, x=(infinite,))
    overflow = mcrepar.bayesian(nn.Sequential(nn.Linear(3, 2), Overflow()).double())
    refused("tensor that is not finite: the network's output", bnn=overflow, likelihood=Bernoulli(), y=huge / huge)
    assert all(torch.equal(a, b) for a, b in zip(before, bnn.parameters(), strict=True))
    likelihood = Normal("learned")
    nn.init.constant_(likelihood.log_scale, math.nan)
    refused("the nll is nan; .*: likelihood.log_scale", likelihood=likelihood)
    with torch.no_grad():
        bnn.latents["2/weight"].log_scale[0, 0] = math.nan
    refused("the nll is nan; .*: latents.2/weight.log_scale", bnn=bnn)


@pytest.mark.parametrize("forward", ["weights", "local", "flipout", "per_example"])
@pytest.mark.parametrize("draws", [1, 3])
def test_examples_of_a_wrong_shape_are_refused_with_it(forward, draws):
    bnn = mcrepar.bayesian(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), "normal", forward=forward)
    with pytest.raises(mcrepar.ParameterError, match=r"cannot take x of shape \(8, 5\).*Use examples of the shape"):
        mcrepar.elbo(bnn, "normal", torch.zeros(8, 5), torch.zeros(8, 1), data_size=100, draws=draws)


def test_channels_that_are_wrong_are_refused_and_other_errors_stay_as_they_are():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(2))
    net(torch.zeros(2, 1, 6, 6))
    bnn, y = mcrepar.bayesian(net), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(mcrepar.ParameterError, match=r"cannot take x of shape \(2, 3, 6, 6\) .*3 channels"):
        mcrepar.elbo(bnn, "categorical", torch.zeros(2, 3, 6, 6), y, data_size=100)

    class Broken(nn.Linear):
        def forward(self, x):
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        mcrepar.elbo(mcrepar.bayesian(Broken(3, 2)), "categorical", torch.zeros(2, 3), y, data_size=100)


@pytest.mark.parametrize("draws", [1, 3, "moments"])
def test_a_batch_whose_voxels_are_all_left_out_has_no_nll(draws):
    bnn = mcrepar.bayesian(nn.Conv2d(1, 3, 3, padding=1))
    y = torch.full((2, 4, 4), 255, dtype=torch.uint8)
    e = elbo(bnn, PerVoxel(), torch.randn(2, 1, 4, 4), y, data_size=100, draws=draws)
    assert e.nll == 0
    assert e.loss.item() == pytest.approx(e.kl.item() / 100)


@pytest.mark.parametrize("use", [lambda b, x: mcrepar.predict(b, x, 2), lambda b, x: b.draw(), lambda b, x: b.kl()])
def test_a_network_that_was_used_in_inference_mode_can_be_trained(use):
    bnn = mcrepar.bayesian(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    x, y = torch.randn(4, 3), torch.randint(2, (4,))
    with torch.inference_mode():
        use(bnn, x)
    elbo(bnn, "categorical", x, y, data_size=4).loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in bnn.parameters())
