"""Figure 4 and the appendix graphs: what autograd builds for M draws, directly and reparameterized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcrepar.experiments.experiment import Bench, Experiment, Finding, Part, Results, Row, markdown
from mcrepar.families.priors import prior
from mcrepar.kl.divergence import kl_divergence
from mcrepar.kl.graph import count_nodes, saved_bytes
from mcrepar.kl.picture import draw_graphs, single_weight
from mcrepar.kl.plan import explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "loop": "loop, as printed",
    "vectorised": "all draws in one tensor",
    "tuple": "(mu^2, 2 mu sigma, sigma^2) and the means",
    "library": "mcrepar, the whole KL by repar",
}


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment."""

    draws: tuple[int, ...] = (1, 3, 100, 1000)
    drawn: tuple[int, ...] = (1, 3, 100)
    posteriors: tuple[str, ...] = ("normal", "radial")


def parts(settings: Settings) -> list[Part]:
    """One for each posterior and M."""
    return [
        Part(f"{name}-{draws}", {"posterior": name, "draws": draws})
        for name in settings.posteriors
        for draws in settings.draws
    ]


def measure(part: Part, bench: Bench) -> Row:
    """Nodes and saved bytes of the same expression in four forms, and d_P."""
    torch.manual_seed(bench.seed)
    draws, q = part.given["draws"], single_weight(part.given["posterior"])
    p = prior("normal", scale=1.0)
    mu, sigma = q.learned

    def noise() -> Tensor:
        return q.noise.draw(draws, 1, dtype=q.dtype, device=q.device, generator=None).flatten()

    forms: dict[str, Callable[[], Tensor]] = {
        "loop": lambda: looped(mu, sigma, noise()),
        "vectorised": lambda: (mu + sigma * noise()).square().mean(),
        "tuple": lambda: tupled(mu, sigma, noise()),
        "library": lambda: kl_divergence(q, p, "repar", draws),
    }
    plan = explain(q, p)
    return {
        "d_P": plan.d_P,
        "d_P_direct": plan.d_P_direct(draws),
        "d_P_factored": plan.d_P_direct(draws, factored=True),
        **{f"nodes_{name}": count_nodes(form()) for name, form in forms.items()},
        **{f"bytes_{name}": saved_bytes(form) for name, form in forms.items()},
    }


def looped(mu: Tensor, sigma: Tensor, xi: Tensor) -> Tensor:
    """mean_i (mu + sigma xi_i)^2 as the paper's listing has it, its XOR read as a square."""
    loss = torch.zeros(())
    for sample in xi:
        w = mu * 1 + sigma * sample
        loss = loss + w**2 / len(xi)
    return loss


def tupled(mu: Tensor, sigma: Tensor, xi: Tensor) -> Tensor:
    """The same number, the draws entering by two means without a graph."""
    return mu**2 + 2 * (mu * sigma) * xi.mean() + sigma**2 * xi.square().mean()


def judge(results: Results) -> list[Finding]:
    """9 and 3, growth with M, and what vectorising does."""
    return [*_sizes(results), *_comparisons(results)]


def _sizes(results: Results) -> list[Finding]:
    three = next(row for row in results.rows if row["draws"] == 3)
    loops = [row for row in results.rows if row["posterior"] == results.settings.posteriors[0]]
    counts = ", ".join(f"{row['nodes_loop']} for M = {row['draws']}" for row in loops)
    constant = {row["nodes_tuple"] for row in results.rows} | {row["nodes_library"] for row in results.rows}
    saved = {row["bytes_tuple"] for row in results.rows}
    radial = [row for row in results.rows if row["posterior"] == results.settings.posteriors[-1]]
    return [
        Finding(
            "For M = 3 the printed loop has d_P = 9, the right tuple d_P = 3.",
            f"{three['d_P_direct']} and {three['d_P']}, from the plan of the pair",
            (three["d_P_direct"], three["d_P"]) == (9, 3),
        ),
        Finding(
            "The graph of the loop grows linearly with M.",
            f"autograd's nodes: {counts}, that is 6 M + 2",
            all(row["nodes_loop"] == 6 * row["draws"] + 2 for row in results.rows),
        ),
        Finding(
            "The graph of the tuple has one size for any M.",
            f"{sorted(constant)} nodes (written out, and the library's) and {sorted(saved)} bytes saved, for every M "
            "and both posteriors",
            len({row["nodes_tuple"] for row in results.rows}) == 1
            and len({row["nodes_library"] for row in results.rows}) == 1
            and len(saved) == 1,
        ),
        Finding(
            "The same holds for a Radial posterior (appendix).",
            f"nodes of the loop {[row['nodes_loop'] for row in radial]}, of the tuple "
            f"{sorted({row['nodes_tuple'] for row in radial})}",
            all(row["nodes_loop"] == 6 * row["draws"] + 2 for row in radial),
        ),
    ]


def _comparisons(results: Results) -> list[Finding]:
    vectors = {row["nodes_vectorised"] for row in results.rows}
    first, *_, most = sorted(results.rows, key=lambda row: int(row["draws"]))
    return [
        Finding(
            "Putting all draws into one tensor does not change the graph.",
            f"it shrinks to {sorted(vectors)} nodes for any M",
            len(vectors) > 1,
        ),
        Finding(
            "It exhausts the memory just the same.",
            f"the bytes saved are those of the loop: {first['bytes_vectorised']:,} for M = {first['draws']}, "
            f"{most['bytes_vectorised']:,} for M = {most['draws']:,}",
            all(row["bytes_vectorised"] == row["bytes_loop"] for row in results.rows),
        ),
        Finding(
            "For M = 1 the tuple's graph may be larger than the loop's.",
            f"{first['nodes_tuple']} against {first['nodes_loop']} nodes",
            first["nodes_tuple"] > first["nodes_loop"],
        ),
    ]


def draw(results: Results) -> Figure:
    """The real graphs of the direct estimate for some M, and of the reparameterized one."""
    name = results.settings.posteriors[-1]
    title = f"{name} posterior, normal prior: one weight"
    return draw_graphs(single_weight(name), prior("normal", scale=1.0), results.settings.drawn, title=title)


def tell(results: Results) -> str:
    """Nodes and bytes."""
    header = ["posterior", "M", "d_P direct", "d_P tuple", *(f"nodes: {text}" for text in KINDS.values()),
              *(f"bytes: {text}" for text in KINDS.values())]  # fmt: skip
    rows = [
        [row["posterior"], f"{row['draws']:,}", row["d_P_direct"], row["d_P"],
         *(row[f"nodes_{kind}"] for kind in KINDS), *(f"{row[f'bytes_{kind}']:,}" for kind in KINDS)]
        for row in results.rows
    ]  # fmt: skip
    return "Nodes of `grad_fn`, AccumulateGrad included, and bytes saved for the backward:\n\n" + markdown(header, rows)


EXPERIMENT = Experiment(
    title="The graphs that autograd builds",
    where="Figure 4, section 3, Remark 2 and appendix C",
    claim="The Monte Carlo mean of w^2 with w = mu + sigma xi, written as a loop over M draws, makes a graph "
    "that grows linearly with M: d_P = 9 products for M = 3. Written with the tuple (mu^2, 2 mu sigma, sigma^2) it has "
    "d_P = 3 for any M; for M = 1 it may be the larger one. Vectorising the loop does not help the memory. "
    "The appendix shows the real graphs for a Radial posterior and M = 1, 3 and 100.",
    method="One weight. Nodes are counted by walking `grad_fn` from the result to the parameters, bytes by autograd's "
    "saved-tensor hooks; parameters themselves are not counted. The pictures are drawn from the same nodes. d_P counts "
    "products per draw, as the paper's figure does; its Remark 2 counts factors instead (2 for M = 1).",
    version=1,
    settings={"tiny": Settings((1, 3, 10), (1, 3)), "cpu": Settings(), "paper": Settings()},
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
)
