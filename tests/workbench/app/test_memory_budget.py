"""What is saved, against what autograd really saves; and what follows from it by hand."""

import pytest
import torch

import mcrepar
from mcrepar.errors import ParameterError
from mcrepar.inspect.graph import saved_bytes
from mcrepar.models import MODELS, model
from mcrepar.workbench.app.memory_budget import (
    Step,
    example_bytes,
    random_weights,
    saved_by,
    scaled_seconds,
    step_bytes,
)


@pytest.mark.parametrize("name", ["small_conv", "resnet20", "densenet_bc100_12", "alexnet"])
def test_a_forward_without_values_keeps_what_a_real_one_keeps(name):
    net, x = model(name), torch.randn(2, 3, 32, 32)
    real = saved_bytes(lambda: net(x).sum())  # with the statistics of the norm layers, a few numbers per channel
    assert example_bytes(name) * 2 == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("name", ["small_conv", "resnet20", "unet3d_encoder", "alexnet"])
def test_random_weights_are_those_that_become_bayesian(name):
    bnn = mcrepar.bayesian(model(name), posterior="normal", prior="normal")
    assert random_weights(name) == sum(weights.numel() for weights in bnn.draw().values())


def test_every_network_of_the_zoo_has_its_numbers():
    for name in MODELS:
        assert random_weights(name) > 0
    assert random_weights("preact_resnet18") == 11_164_362  # as the benchmarks count it


@pytest.mark.parametrize("method", ["direct", "repar", "stats", "stream", "regen", "quad", "taylor", "exact"])
def test_what_a_method_keeps_is_linear_in_weights_and_draws(method):
    weights, draws = 3000, 7
    loc, log_scale = (torch.zeros(weights, requires_grad=True) for _ in range(2))
    q, p = mcrepar.posterior("normal", loc=loc, log_scale=log_scale), mcrepar.prior("normal")
    count = None if method in ("exact", "quad") else draws

    def kl():
        if method == "taylor":
            with pytest.warns(mcrepar.TaylorWarning):
                return mcrepar.kl_divergence(q, p, method, count)
        return mcrepar.kl_divergence(q, p, method, count)

    real = saved_bytes(kl)
    ours = saved_by("normal", "normal", method).total(weights, draws)
    assert ours == pytest.approx(real, abs=0.2 * weights)  # beside the tensors each keeps a few numbers
    assert (saved_by("normal", "normal", method).per_draw > 0) == (method == "direct")


def test_a_step_by_hand():
    # loc and log_scale with gradient and two averages: 32 bytes; the noise, the scale and the weight of one draw: 12
    assert step_bytes("normal") == 44.0
    assert step_bytes("gamma") == 28.0
    step = Step(weights=1000, per_example=50, batch=10, posterior="normal", prior="normal")
    assert step.rest == 44_000 + 500
    assert step.needed("direct", 3) == pytest.approx(step.rest + 1000 * (4 + 3 * 8), rel=1e-3)


def test_the_largest_number_of_draws_fits_and_one_more_does_not():
    step, memory = Step(10**6, 4 * 10**6, 64, "radial", "normal"), 2e9
    most = step.most_draws(memory)
    assert step.needed("direct", most) <= memory < step.needed("direct", most + 1)
    assert step.most_draws(memory, "stats") is None
    assert step.most_draws(1e6) == 0
    assert step.most_draws(1e6, "stats") == 0


@pytest.mark.parametrize("wrong", [{"weights": 0}, {"batch": 0}, {"per_example": -1}], ids=str)
def test_a_wrong_step_is_refused(wrong):
    sizes = {"weights": 1, "per_example": 0, "batch": 1, "posterior": "normal", "prior": "normal"} | wrong
    with pytest.raises(ParameterError, match="too small"):
        Step(**sizes)


def test_seconds_do_not_fall_with_more_draws():
    noisy = [{"M": 1, "seconds": 2.0}, {"M": 10, "seconds": 1.0}]
    assert scaled_seconds(noisy, measured=5, weights=5, draws=100) == 2.0
    assert scaled_seconds([{"M": 1, "seconds": 2.0}], measured=5, weights=10, draws=100) == 4.0
