"""Section 4.2: the noise of the likelihood term against the batch size and the draws of the last layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.experiment import CHANCE, Bench, Experiment, Finding, Part, Results, Row, markdown
from experiments.panels import panels
from experiments.significance import power, spread_error
from mcrepar.likelihoods import Bernoulli, Categorical, Likelihood, Normal
from mcrepar.nn.module import BayesianModule, bayesian
from mcrepar.objective import elbo
from mcrepar.plots.style import coloured, legend, light

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORWARDS = {
    "per_example": "a draw for every example",
    "local": "local reparameterization",
    "flipout": "flipout",
    "weights": "one draw for the batch",
}
FEATURES = 8
DATA = 1000  # examples in all, of which a batch is seen

Array = NDArray[np.float64]
PARAMETERS = {"loc": "loc", "log_scale": "log scale"}
SMALL = 0.01  # of a variance: a tenth of the standard deviation


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        batches: sizes B, each a divisor of the largest.
        draws: numbers M of last-layer draws, the first being 1.
        estimates: of every one.
        width: of the network's two hidden layers.
        last_batch: B of the last-layer draws.
        endless: last-layer draws that stand for M -> infinity where that has no closed form.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    draws: tuple[int, ...] = (1, 3, 10, 30, 100)
    estimates: int = 1000
    width: int = 32
    last_batch: int = 16
    endless: int = 10_000


def parts(settings: Settings) -> list[Part]:
    """Batches for every forward; last-layer draws for both tasks; the printed formulas; the gradients' noise."""
    found = [Part(f"batch-{forward}", {"kind": "batch", "forward": forward}) for forward in FORWARDS]
    found += [Part(f"last-{task}", {"kind": "last", "task": task}) for task in ("regression", "classification")]
    return [*found, *(Part(kind, {"kind": kind}) for kind in ("product", "printed", "gradient"))]


def measure(part: Part, bench: Bench) -> Row:
    """Variances over draws of the weights, the data being fixed."""
    torch.manual_seed(bench.seed)
    return _KINDS[part.given["kind"]](part, bench)


def _data(count: int) -> tuple[Tensor, Tensor]:
    """Made-up regression data."""
    x = torch.randn(count, FEATURES)
    return x, (x[:, :1] * x[:, 1:2]).tanh() + 0.1 * torch.randn(count, 1)


def _network(width: int, outputs: int, forward: str, **options: Any) -> BayesianModule:
    net = nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )
    return bayesian(net, posterior="normal", prior="normal", initial_std=0.5, forward=forward, **options)


def _batches(part: Part, bench: Bench) -> Row:
    """The variance of the mean log likelihood over disjoint batches of every size."""
    settings: Settings = bench.settings
    torch.manual_seed(settings.width)  # the same data and network for every forward
    x, y = _data(max(settings.batches))
    bnn, likelihood = _network(settings.width, 1, part.given["forward"]), Normal(scale=1.0)
    torch.manual_seed(bench.seed)
    with torch.no_grad():
        rows = [likelihood.log_prob(bnn(x), y).double().numpy() for _ in range(settings.estimates)]
    terms = np.stack(rows)  # (estimates, data)
    means = (terms.reshape(len(terms), -1, batch).mean(2) for batch in settings.batches)  # (estimates, batches)
    variances = [float(each.var(0, ddof=1).mean()) for each in means]
    own = float(terms.var(0, ddof=1).mean())
    return {"variance": variances, "own": own, "shared": float(terms.mean(1).var(ddof=1)) / own}


def _last_layer(part: Part, bench: Bench) -> Row:
    """The variance of the nll for every number of last-layer draws, and of its limit."""
    settings: Settings = bench.settings
    regression = part.given["task"] == "regression"
    x, y = _data(settings.last_batch)
    likelihood: Likelihood = Normal(scale=1.0) if regression else Categorical()
    target = y if regression else (y[:, 0] > 0).long() + (y[:, 0] > 0.5).long()
    bnn = _network(settings.width, 1 if regression else 3, "weights")

    def sample(draws: int | str) -> Array:
        with torch.no_grad():
            found = [elbo(bnn, likelihood, x, target, data_size=DATA, last_layer_draws=draws).nll.item()
                     for _ in range(settings.estimates)]  # fmt: skip
        return np.asarray(found)

    limit = sample("exact" if regression else settings.endless)
    samples = [sample(draws) for draws in settings.draws]
    return {
        "variance": [float(s.var(ddof=1)) for s in samples],
        "error": [_variance_error(s) for s in samples],
        "limit": float(limit.var(ddof=1)),
        "limit_error": _variance_error(limit),
    }


def _variance_error(sample: Array) -> float:
    """The standard error of a sample's variance."""
    squares = (sample - sample.mean()) ** 2
    return float(squares.std(ddof=1) / math.sqrt(len(sample)))


def _product(part: Part, bench: Bench) -> Row:
    """The printed variance of a mean of products u w, with M draws of w for every u, beside the measured one."""
    rng, cases = np.random.default_rng(bench.seed), []
    mean_u, std_u, mean_w, std_w = 0.7, 0.5, 0.4, 0.8
    for batch, draws in ((1, 1), (8, 1), (8, 10), (64, 10)):
        u = rng.normal(mean_u, std_u, (bench.settings.estimates, batch))
        w = rng.normal(mean_w, std_w, (bench.settings.estimates, batch, draws)).mean(2)
        sample = (u * w).mean(1)
        formula = (std_w**2 * (mean_u**2 + std_u**2) / draws + std_u**2 * mean_w**2) / batch
        measured = float(sample.var(ddof=1))
        z = (measured - formula) / _variance_error(sample)
        cases.append({"batch": batch, "draws": draws, "measured": measured, "formula": formula, "z": z})
    return {"cases": cases}


def _printed(part: Part, bench: Bench) -> Row:
    """The formulas of Observation 1, as printed and corrected, against the likelihoods."""
    u = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64).unsqueeze(1)
    y = torch.full_like(u, 0.8)
    gauss, constant = Normal(scale=1.0).log_prob(u, y), -0.5 * math.log(2 * math.pi)
    bernoulli = Bernoulli().log_prob(u, torch.ones_like(u))

    def largest(printed: Tensor, true: Tensor) -> float:
        return float((printed.squeeze(1) - true).abs().max())

    return {
        "gauss_printed": largest(constant - y**2 / 2 - y * u + u**2 / 2, gauss),
        "gauss_right": largest(constant - y**2 / 2 + y * u - u**2 / 2, gauss),
        "bernoulli_printed": largest(-math.log(2) + u / 2 - u**2 / 4, bernoulli),
        "bernoulli_right": largest(-math.log(2) + u / 2 - u**2 / 8, bernoulli),
    }


def _gradients(part: Part, bench: Bench) -> Row:
    """The variance of the gradients of the nll and of the KL estimated with M = 1, unscaled: means over the weights."""
    settings: Settings = bench.settings
    torch.manual_seed(settings.width)
    x, y = _data(settings.last_batch)
    bnn = _network(settings.width, 1, "weights", kl_method="repar", n_mc_iter=1)
    likelihood, names = Normal(scale=1.0), [name.rpartition(".")[2] for name, _ in bnn.named_parameters()]
    torch.manual_seed(bench.seed)
    drawn: dict[str, list[list[Tensor]]] = {"nll": [], "kl": []}
    for _ in range(settings.estimates):
        one = elbo(bnn, likelihood, x, y, data_size=DATA)
        drawn["nll"].append(list(torch.autograd.grad(one.nll, list(bnn.parameters()))))
        drawn["kl"].append(list(torch.autograd.grad(one.kl, list(bnn.parameters()))))
    out: Row = {}
    for term, gradients in drawn.items():
        each = [torch.stack(same).double().var(0).flatten() for same in zip(*gradients, strict=True)]
        for level in dict.fromkeys(names):
            whole = torch.cat([v for name, v in zip(names, each, strict=True) if name == level])
            out[f"{term}_{level}"] = float(whole.mean())
    return out


_KINDS: dict[str, Callable[[Part, Bench], Row]] = {
    "batch": _batches, "last": _last_layer, "product": _product, "printed": _printed, "gradient": _gradients,
}  # fmt: skip

# ---- what is judged


def split(row: Row, draws: Sequence[int]) -> list[float]:
    """The variance that `limit + (V(1) - limit) / M` predicts."""
    return [row["limit"] + (row["variance"][0] - row["limit"]) / m for m in draws]


def z_scores(row: Row, draws: Sequence[int]) -> list[float]:
    """How many standard errors the measured variances are from `split`, without the first, which is on it."""
    measured = zip(draws, row["variance"], row["error"], split(row, draws), strict=True)
    return [
        (variance - expected) / math.hypot(error, row["error"][0] / m, row["limit_error"] * (1 - 1 / m))
        for m, variance, error, expected in [*measured][1:]
    ]


def judge(results: Results) -> list[Finding]:
    """The batch, the last layer, and the printed formulas."""
    settings = results.settings
    batches = {row["forward"]: row for row in results.of("batch")}
    error = spread_error(settings.estimates)  # as if the batches of one draw were no more than one of them
    powers = {f: power(settings.batches, row["variance"], error) for f, row in batches.items()}
    last, (product,) = results.of("last"), results.of("product")
    z = [abs(z) for row in last for z in z_scores(row, settings.draws)]
    gains = ", ".join(f"{row['task']} {row['limit'] / row['variance'][0]:.0%}" for row in last)
    formula = max(abs(case["z"]) for case in product["cases"])
    return [
        Finding(
            "With a draw of the weights for every example, the variance falls as 1/B.",
            f"as B to the power of {powers['per_example']} (local reparameterization {powers['local']}, "
            f"flipout {powers['flipout']})",
            powers["per_example"].agrees(-1),
        ),
        Finding(
            "With one draw for the whole batch, as weights are usually drawn, it does not.",
            f"as B to the power of {powers['weights']}; {batches['weights']['shared']:.0%} of the variance of a "
            f"single example is left at B = {settings.batches[-1]}",
            powers["weights"].exceeds(-1),
            ours=True,
        ),
        Finding(
            "V(u w) = V(w) E[u^2] + V(u) E[w]^2, divided by B; M draws of w divide the first term by M.",
            f"simulated products agree to {formula:.1f} standard errors",
            formula < CHANCE,
        ),
        Finding(
            "M draws of the last layer reduce only its own part of the variance, by M.",
            f"limit + (V(1) - limit)/M agrees to {max(z):.1f} standard errors; what no number of last-layer draws "
            f"removes is {gains} of V(1)",
            max(z) < CHANCE,
        ),
        *_formulas(results),
        _beside_the_kl(results),
    ]


def _formulas(results: Results) -> list[Finding]:
    (printed,) = results.of("printed")
    return [
        Finding(
            "For regression log p(y | u) is -log(2 pi) / 2 - y^2 / 2 - y u + u^2 / 2.",
            f"off by up to {printed['gauss_printed']:.2g} nats for |u| <= 0.5; with the signs of y u and u^2 changed "
            f"by {printed['gauss_right']:.0e}",
            printed["gauss_printed"] < 1e-6,
        ),
        Finding(
            "For binary classification log p(1 | u) is -log 2 + u / 2 - u^2 / 4, up to a cubic term.",
            f"off by up to {printed['bernoulli_printed']:.2g} nats for |u| <= 0.5; with u^2 / 8 by "
            f"{printed['bernoulli_right']:.1g}",
            printed["bernoulli_printed"] < 2 * printed["bernoulli_right"],
        ),
    ]


def _beside_the_kl(results: Results) -> Finding:
    (row,) = results.of("gradient")
    shares = {level: row[f"kl_{level}"] / DATA**2 / row[f"nll_{level}"] for level in PARAMETERS}
    listed = ", ".join(f"{share:.1g} in {PARAMETERS[level]}" for level, share in shares.items())
    return Finding(
        "Already at M = 1 the noise of the KL's gradient is small beside that of the likelihood's (an untrained "
        f"network of two tanh layers, a batch of {results.settings.last_batch} of {DATA:,} examples).",
        f"the variance of KL / {DATA:,}, relative to that of the mean log likelihood, per weight: {listed}; "
        "with more data it is smaller still, as 1 / N^2",
        all(share < SMALL for share in shares.values()),
        ours=True,
    )


def draw(results: Results) -> Figure:
    """Variance against the batch for every forward, and against last-layer draws."""
    settings = results.settings
    heads = [
        ("Against the batch", "batch size B", "variance of the mean log likelihood"),
        (f"Against last-layer draws (B = {settings.last_batch})", "number M of last-layer draws", "relative to M = 1"),
    ]
    figure, (left, right) = panels(heads, (9.6, 4.1))
    rows = results.of("batch")
    for row, (label, colour) in zip(rows, coloured([FORWARDS[r["forward"]] for r in rows]), strict=True):
        left.plot(settings.batches, row["variance"], "o-", color=colour, label=label)
    own = rows[0]["own"]
    left.plot(settings.batches, [own / b for b in settings.batches], "--", color=light("muted"), label="1/B")
    for row, colour in zip(results.of("last"), ("blue", "orange"), strict=True):
        first = row["variance"][0]
        right.plot(settings.draws, [v / first for v in split(row, settings.draws)], color=light(colour))
        right.errorbar(settings.draws, [v / first for v in row["variance"]], [e / first for e in row["error"]], fmt="o",
                       color=light(colour), markersize=4, label=row["task"])  # fmt: skip
        right.axhline(row["limit"] / first, color=light(colour), linestyle=":", linewidth=1.2)
    right.plot([], [], color=light("muted"), label="limit + (V(1) - limit) / M")
    right.plot([], [], color=light("muted"), linestyle=":", linewidth=1.2, label="limit, M -> infinity")
    for axes in (left, right):
        axes.set_xscale("log")
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3 if axes is left else 2)
    left.set_yscale("log")
    right.set_ylim(0, None)
    return figure


def tell(results: Results) -> str:
    """The variances."""
    settings, (row,) = results.settings, results.of("gradient")
    batches = [[FORWARDS[row["forward"]], *(f"{v:.3g}" for v in row["variance"])] for row in results.of("batch")]
    last = [[r["task"], *(f"{v:.3g}" for v in (*r["variance"], r["limit"]))] for r in results.of("last")]
    gradients = [
        ["mean log likelihood", *(f"{row[f'nll_{level}']:.3g}" for level in PARAMETERS)],
        [f"KL / {DATA:,}, M = 1", *(f"{row[f'kl_{level}'] / DATA**2:.3g}" for level in PARAMETERS)],
    ]
    return "\n\n".join([
        "Variance of the mean log likelihood:",
        markdown(["forward", *(f"B = {b}" for b in settings.batches)], batches),
        "The same against last-layer draws:",
        markdown(["task", *(f"M = {m}" for m in settings.draws), "M -> infinity"], last),
        f"Variance of a weight's gradient, B = {settings.last_batch}, one draw for the batch:",
        markdown(["gradient of", *PARAMETERS.values()], gradients),
    ])  # fmt: skip


EXPERIMENT = Experiment(
    title="The variance of the likelihood term",
    where="section 4.2 and Observation 1",
    claim="With one draw of the weights for every example the variance of the likelihood term falls as 1/B with the "
    "batch size B, so that the memory saved on the KL may be spent on a larger batch; where B is limited, M draws of "
    "the last layer reduce the first term of V(w) E[u^2] + V(u) E[w]^2 by a factor of M. Observation 1 writes the log "
    "likelihoods of regression and binary classification as polynomials of the last output.",
    method="A network of two hidden tanh layers, untrained, with Normal posteriors (standard deviation half the spread "
    f"of each tensor), on made-up data of {FEATURES} features; variances are over draws of the weights for fixed data. "
    "Batches are disjoint parts of one large batch. Last-layer draws are `elbo(..., last_layer_draws=M)`; their limit "
    "is exact for regression and a very large M (`endless` in the settings) for three classes. Powers have the "
    "standard error of variances of as many independent estimates. The gradients are those of the loss per example, "
    "-log p / B + KL / N, over the same draws of the weights and of the KL's noise (M = 1, entropy exact).",
    version=2,
    settings={
        "tiny": Settings((1, 4, 16), (1, 4, 16), 40, 8, 4, 1000),
        "cpu": Settings(),
        "paper": Settings((1, 4, 16, 64, 256), estimates=20_000, width=256),
    },
    parts=parts, measure=measure, judge=judge, draw=draw, tell=tell,
)  # fmt: skip
