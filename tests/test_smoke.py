"""The fast tier of `make check`: a dozen pairs against scipy's integrals, and one journey through every package."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

import mcrepar
from mcrepar.inspect.graph import count_nodes
from mcrepar.inspect.table1 import table1
from mcrepar.workbench.cli import main
from tests.experiments.tiny import tiny
from tests.workbench.training.tiny import words, write_images

# posterior: scipy's distribution of it at loc 0.3 and scale 0.5
POSTERIORS = {
    "normal": stats.norm(0.3, 0.5),
    "laplace": stats.laplace(0.3, 0.5),
    "logistic": stats.logistic(0.3, 0.5),
    "lognormal": stats.lognorm(0.5, scale=math.exp(0.3)),
    "exponential": stats.expon(scale=0.5),
    "rayleigh": stats.rayleigh(scale=0.5),
}
# prior: scipy's distribution of it with default parameters
PRIORS = {
    "normal": stats.norm(),
    "laplace": stats.laplace(),
    "cauchy": stats.cauchy(),
    "student_t": stats.t(4),
    "logistic": stats.logistic(),
    "gamma": stats.gamma(2),
    "exponential": stats.expon(),
    "lognormal": stats.lognorm(1),
}
LINE = [("normal", p) for p in ("normal", "laplace", "cauchy", "student_t")]
LINE += [("laplace", "laplace"), ("laplace", "normal"), ("logistic", "logistic"), ("logistic", "student_t")]
HALF_LINE = [("lognormal", "gamma"), ("lognormal", "lognormal"), ("exponential", "exponential"), ("rayleigh", "gamma")]


@pytest.mark.parametrize(("q_name", "p_name"), [*LINE, *HALF_LINE])
def test_a_dozen_pairs_against_scipy(q_name, p_name):
    learned = {"loc": 0.3, "scale": 0.5}
    tensors = {
        name: torch.tensor([learned[name]], dtype=torch.float64, requires_grad=True)
        for name in mcrepar.POSTERIORS[q_name].learned
    }
    value = mcrepar.kl_divergence(mcrepar.posterior(q_name, **tensors), mcrepar.prior(p_name))
    q, p = POSTERIORS[q_name], PRIORS[p_name]
    low, high = (0 if q.support()[0] == 0 else -60), 60
    expected, _ = integrate.quad(
        lambda w: q.pdf(w) * (q.logpdf(w) - p.logpdf(w)), low, high, points=(0.3, 0.0, 2.0), limit=200
    )
    assert value.item() == pytest.approx(expected, rel=1e-5, abs=1e-8)
    value.backward()
    assert all(tensor.grad is not None and bool(tensor.grad.isfinite().all()) for tensor in tensors.values())


def test_a_network_learns_and_knows_what_it_does_not_know():
    """Regression on [-1, 1]: a small error there, and a larger spread of the draws outside."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 128).reshape(-1, 1)
    y = torch.sin(3 * x) + 0.1 * torch.randn(128, 1)
    bnn = mcrepar.bayesian(nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1)), forward="local")
    likelihood = mcrepar.likelihoods.Normal(scale=0.1)
    optimizer = torch.optim.Adam(mcrepar.optim.groups(bnn, lr=1e-2))
    for _ in range(300):
        optimizer.zero_grad()
        mcrepar.elbo(bnn, likelihood, x, y, data_size=128).loss.backward()
        optimizer.step()
    inside, outside = (mcrepar.predict(bnn, x, 50, likelihood=likelihood) for x in (x, 3 + x))
    assert (inside.mean - y).square().mean().sqrt() < 0.2
    assert outside.epistemic.mean() > 2 * inside.epistemic.mean()
    assert mcrepar.kl(bnn).isfinite()


def test_a_network_is_saved_and_loaded(tmp_path):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    mcrepar.save(mcrepar.bayesian(net, "radial"), tmp_path / "model")
    again = mcrepar.load(
        tmp_path / "model", nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    )
    assert "log_scale" in str(again.state_dict().keys())


def test_networks_data_metrics_and_plots():
    assert len(mcrepar.data.load("digits").train) > 1000
    net = mcrepar.models.model("resnet20", classes=10)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert mcrepar.metrics.accuracy(np.array([0, 1, 0]), np.array([0, 1, 1])) == pytest.approx(2 / 3)
    assert (
        mcrepar.plots.png(mcrepar.plots.training_curve([1, 2], {"train": [2.0, 1.0]}, "Loss", "nats"))[:4] == b"\x89PNG"
    )


def test_the_table_and_a_graph():
    assert len(table1()) == 158
    mu = torch.tensor(0.4, requires_grad=True)
    assert count_nodes(mu.square()) == 2


def test_a_run_from_the_command_line(tmp_path):
    write_images(tmp_path)
    assert main(words(tmp_path, epochs=1)) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--draws", "3"]) == 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_an_experiment(tmp_path):
    assert tiny("fig4", tmp_path)["findings"]


def test_the_app_answers_its_help():
    done = subprocess.run([sys.executable, "-m", "mcrepar", "app", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--port" in done.stdout
