import math

import pytest
import torch
from torch import nn

import mcrepar
from experiments.published_noise import PublishedNetwork, published_noise
from mcrepar.errors import MethodError
from mcrepar.nn.swap import run as run_on


def network(bias: bool = False) -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    with published_noise():
        return mcrepar.bayesian(nn.Linear(8, 5, bias=bias).double(), "radial", "normal", forward="published")


def noise(bnn: mcrepar.BayesianModule, batch: int, draws: int) -> torch.Tensor:
    """Output minus mean, in standard deviations, (draws, batch, 5)."""
    x = torch.ones(batch, 8, dtype=torch.float64)
    net = PublishedNetwork(bnn)
    latent = bnn.latents["weight"]
    std = (2 * latent.log_scale).exp().sum(1).sqrt()
    with torch.no_grad():
        return torch.stack([(net(x) - x @ latent.loc.T) / std for _ in range(draws)])


def test_it_cannot_be_had_by_mistake():
    with pytest.raises(MethodError, match="no such forward"):
        mcrepar.bayesian(nn.Linear(2, 2), forward="published")


def test_the_noise_shares_one_radius_over_the_whole_batch():
    """The norm over all numbers of a batch is |r|: mean square 1, variance 2; |z| < 5 by chance 6e-7."""
    torch.manual_seed(1)
    squares = noise(network(), batch=16, draws=1000).square().sum((1, 2))
    assert abs(float(squares.mean()) - 1) < 5 * math.sqrt(2 / 1000)
    assert float(squares.var()) == pytest.approx(2, rel=0.8)


def test_the_noise_falls_with_the_batch_and_true_draws_do_not():
    """A standard deviation over 500 radii has the error sqrt(2 / 500) / 2, a ratio 0.045; 5 of it by chance 6e-7."""
    torch.manual_seed(2)
    bnn = network()
    few, many = (float(noise(bnn, batch, 500).std()) for batch in (1, 64))
    assert few / many == pytest.approx(8, rel=0.225)
    with torch.no_grad():
        ones = [torch.ones(batch, 8, dtype=torch.float64) for batch in (1, 64)]
        true = [torch.stack([run_on(bnn, bnn.draw(), x) for _ in range(500)]) for x in ones]
    assert float(true[0].std(0).mean() / true[1].std(0).mean()) == pytest.approx(1, rel=0.225)


def test_it_learns_location_and_scale():
    bnn = network(bias=True)
    with published_noise():
        bnn(torch.randn(3, 8, dtype=torch.float64)).square().sum().backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in bnn.parameters())
