"""Section 4.2: the noise of the likelihood term against the batch size and the draws of the last layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.experiment import CHANCE, Experiment, Finding, Results, Row, markdown
from experiments.likelihood_noise import DATA, FEATURES, FORWARDS, Settings, measure, parts
from experiments.panels import panels
from experiments.power_law import power, spread_error
from mcrepar.plots.style import coloured, legend, light

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARAMETERS = {"loc": "loc", "log_scale": "log scale"}
SMALL = 0.01  # of a variance: a tenth of the deviation


def split(row: Row, draws: Sequence[int]) -> list[float]:
    """The variance that `limit + (V(1) - limit) / M` predicts."""
    return [row["limit"] + (row["variance"][0] - row["limit"]) / m for m in draws]


def deviations(row: Row, draws: Sequence[int]) -> list[float]:
    """How many standard errors the measured variances are from `split`, without the first, which is on it."""
    out = []
    for k, m in enumerate(draws):
        if k:
            errors = row["error"][k], row["error"][0] / m, row["limit_error"] * (1 - 1 / m)
            out.append((row["variance"][k] - split(row, draws)[k]) / math.hypot(*errors))
    return out


def judge(results: Results) -> list[Finding]:
    """The batch, the last layer, and the printed formulas."""
    settings = results.settings
    batches = {row["forward"]: row for row in results.of("batch")}
    error = spread_error(settings.estimates)  # as if the batches of one draw told no more than one of them
    powers = {f: power(settings.batches, row["variance"], error) for f, row in batches.items()}
    last, (product,) = results.of("last"), results.of("product")
    z = [abs(d) for row in last for d in deviations(row, settings.draws)]
    gains = ", ".join(f"{row['task']} {row['limit'] / row['variance'][0]:.0%}" for row in last)
    formula = max(abs(case["z"]) for case in product["cases"])
    return [
        Finding(
            "With a draw of the weights for every datum, the variance falls as 1/B.",
            f"as B to the power of {powers['per_example']} (local reparameterization {powers['local']}, "
            f"flipout {powers['flipout']})",
            powers["per_example"].agrees(-1),
        ),
        Finding(
            "With one draw for the whole batch, as weights are usually drawn, it does not.",
            f"as B to the power of {powers['weights']}; {batches['weights']['shared']:.0%} of the variance of a "
            f"single datum is left at B = {settings.batches[-1]}",
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
        f"network of two tanh layers, a batch of {results.settings.last_batch} of {DATA:,} data).",
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
    settings = results.settings
    first = markdown(
        ["forward", *(f"B = {b}" for b in settings.batches)],
        [[FORWARDS[row["forward"]], *(f"{v:.3g}" for v in row["variance"])] for row in results.of("batch")],
    )
    second = markdown(
        ["task", *(f"M = {m}" for m in settings.draws), "M -> infinity"],
        [[row["task"], *(f"{v:.3g}" for v in row["variance"]), f"{row['limit']:.3g}"] for row in results.of("last")],
    )
    (row,) = results.of("gradient")
    third = markdown(
        ["gradient of", *PARAMETERS.values()],
        [
            ["mean log likelihood", *(f"{row[f'nll_{level}']:.3g}" for level in PARAMETERS)],
            [f"KL / {DATA:,}, M = 1", *(f"{row[f'kl_{level}'] / DATA**2:.3g}" for level in PARAMETERS)],
        ],
    )
    return "\n\n".join([
        "Variance of the mean log likelihood:", first,
        "The same against last-layer draws:", second,
        f"Variance of a weight's gradient, B = {settings.last_batch}, one draw for the batch:", third,
    ])  # fmt: skip


EXPERIMENT = Experiment(
    title="The variance of the likelihood term",
    where="section 4.2 and Observation 1",
    claim="With one draw of the weights for every datum the variance of the likelihood term falls as 1/B with the "
    "batch size B, so that the memory saved on the KL may be spent on a larger batch; where B is limited, M draws of "
    "the last layer reduce the first term of V(w) E[u^2] + V(u) E[w]^2 by a factor of M. Observation 1 writes the log "
    "likelihoods of regression and binary classification as polynomials of the last output.",
    method="A network of two hidden tanh layers, untrained, with Normal posteriors (deviation half the spread of each "
    f"tensor), on made-up data of {FEATURES} features; variances are over draws of the weights for fixed data. "
    "Batches are disjoint parts of one large batch. Last-layer draws are `elbo(..., last_layer_draws=M)`; their limit "
    "is exact for regression and a very large M (`endless` in the settings) for three classes. Powers have the "
    "standard error of variances of as many independent estimates. The gradients are those of the loss per datum, "
    "-log p / B + KL / N, over the same draws of the weights and of the KL's noise (M = 1, entropy exact).",
    version=2,
    settings={
        "tiny": Settings((1, 4, 16), (1, 4, 16), 40, 8, 4, 1000),
        "cpu": Settings(),
        "paper": Settings((1, 4, 16, 64, 256), estimates=20_000, width=256),
    },
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
)
