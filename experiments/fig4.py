"""Figure 4 and the appendix graphs: what autograd builds for M draws, directly and reparameterized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from experiments.experiment import Bench, Experiment, Finding, Part, Results, Row, markdown
from mcrepar.distributions.priors import prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.divergence.plan import explain
from mcrepar.inspect.graph import count_nodes, saved_bytes
from mcrepar.inspect.picture import draw_graphs, single_weight

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "loop": "loop, as printed",
    "vectorised": "all draws in one tensor",
    "tuple": "(mu^2, 2 mu sigma, sigma^2) and the means",
    "library": "mcrepar, the whole KL by repar",
}
_ANY_M = ("nodes_tuple", "nodes_library", "bytes_tuple", "bytes_library")  # what must not depend on M


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
    first, last = (
        [row for row in results.rows if row["posterior"] == name]
        for name in (results.settings.posteriors[0], results.settings.posteriors[-1])
    )
    counts = ", ".join(f"{row['nodes_loop']} for M = {row['draws']}" for row in first)
    formula = line(first)
    sizes = {key: _values(results.rows, key) for key in _ANY_M}
    return [
        Finding(
            "For M = 3 the printed loop has d_P = 9, the right tuple d_P = 3.",
            f"{three['d_P_direct']} and {three['d_P']}, counted as the paper does: three products for each draw, "
            "one for each entry of the tuple (autograd's own nodes are in the next rows)",
            (three["d_P_direct"], three["d_P"]) == (9, 3),
        ),
        Finding(
            "The graph of the loop grows linearly with M.",
            f"autograd's nodes: {counts}{f', that is {formula}' if formula else ''}",
            bool(formula),
        ),
        Finding(
            "The graph of the tuple has one size for any M.",
            f"written out {sizes['nodes_tuple']} nodes and {sizes['bytes_tuple']} bytes saved, the library's whole KL "
            f"{sizes['nodes_library']} nodes and {sizes['bytes_library']} bytes, over every M and posterior",
            all(one_value(results.rows, key) for key in _ANY_M),
        ),
        Finding(
            "The same holds for a Radial posterior (appendix).",
            f"nodes of the loop {', '.join(str(row['nodes_loop']) for row in last)}, of the tuple "
            f"{_values(last, 'nodes_tuple')}",
            bool(line(last)) and one_value(last, "nodes_tuple"),
        ),
    ]


def line(rows: Sequence[Row]) -> str:
    """The nodes of the loop as a M + b with a > 0; nothing where they are not on a line."""
    few, more, *_ = rows
    slope = (more["nodes_loop"] - few["nodes_loop"]) / (more["draws"] - few["draws"])
    start = few["nodes_loop"] - slope * few["draws"]
    on_it = all(row["nodes_loop"] == slope * row["draws"] + start for row in rows)
    return f"{slope:g} M + {start:g}" if on_it and slope > 0 else ""


def one_value(rows: Sequence[Row], key: str) -> bool:
    """Whether a count is the same in all rows."""
    return len({row[key] for row in rows}) == 1


def _values(rows: Sequence[Row], key: str) -> str:
    return ", ".join(str(value) for value in sorted({row[key] for row in rows}))


def _comparisons(results: Results) -> list[Finding]:
    first, *_, most = sorted(results.rows, key=lambda row: int(row["draws"]))
    return [
        Finding(
            "Putting all draws into one tensor does not change the graph.",
            f"it has {_values(results.rows, 'nodes_vectorised')} nodes over every M, the loop "
            f"{first['nodes_loop']} to {most['nodes_loop']:,}",
            all(row["nodes_vectorised"] == row["nodes_loop"] for row in results.rows),
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
    claim="The Monte Carlo mean of w^2 with w = mu + sigma xi, written as a loop over M draws, makes a graph that "
    "grows linearly with M: d_P = 9 products for M = 3. Written with the tuple (mu^2, 2 mu sigma, sigma^2) it has d_P "
    "= 3 for any M; for M = 1 it may be the larger one. Vectorising the loop does not help the memory. The appendix "
    "shows the real graphs for a Radial posterior and M = 1, 3 and 100.",
    method="One weight. Nodes are counted by walking `grad_fn` from the result to the parameters, bytes by autograd's "
    "saved-tensor hooks; the bytes of the parameters themselves are not counted. The pictures are drawn from such "
    "nodes, of the cross-entropy alone. The one called reparameterized shows the library's tuple in plain autograd, a "
    "node for each operation and one for the sum over the weights, so that its count is neither that of the tuple "
    "written out nor that of the library's KL, which has the entropy too and makes one node of all products. d_P "
    "counts products per draw, as the paper's figure does; its Remark 2 counts factors instead (2 for M = 1).",
    version=2,
    settings={"tiny": Settings((1, 3, 10), (1, 3)), "cpu": Settings(), "paper": Settings()},
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
)
