"""The paper's Table 1, judged: every claimed pair with its verdict, from the two tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcrepar.distributions.posterior import PosteriorRow
from mcrepar.distributions.posteriors import POSTERIORS, posterior
from mcrepar.distributions.prior import PriorRow
from mcrepar.distributions.priors import PRIORS, prior
from mcrepar.divergence.plan import explain


@dataclass(frozen=True)
class Cell:
    """One pair of Table 1.

    Args:
        posterior: its name, with the value of a fixed parameter where that matters.
        prior: its name.
        group: the row of Table 1, "" for a pair that the paper does not list.
        claimed: whether the paper claims a tuple for it.
        verdict: ours.
        methods: those that apply.
        default: what auto takes.
        reason: one sentence.
        note: "infinite variance" or the kernel's verdict, where there is one.
        has_tuple: whether it has a tuple of a size independent of M, whether the KL is finite or not.
        finite: whether the KL is finite.
        otherwise: the verdict with default parameters, where another is given for the generic ones.
    """

    posterior: str
    prior: str
    group: str
    claimed: bool
    verdict: str
    methods: tuple[str, ...]
    default: str | None
    reason: str
    note: str
    has_tuple: bool
    finite: bool
    otherwise: str = ""


def table1(everything: bool = False) -> list[Cell]:
    """The 158 pairs that the paper claims; with `everything` all pairs of the two tables, defaults beside raw ones."""
    cells = []
    for q in POSTERIORS.values():
        for p in PRIORS.values():
            claimed = bool(q.group) and q.group in p.groups
            if claimed or everything:
                cells.append(_cell(q, q.generic, p, claimed))
                if everything and q.generic:
                    cells.append(_cell(q, {}, p, False))
    return cells


def _cell(q: PosteriorRow, fixed: Mapping[str, Any], p: PriorRow, claimed: bool) -> Cell:
    template = posterior(q.name, **fixed)
    plan = explain(template, prior(p.name, **dict(p.generic)))
    note = "infinite variance" if plan.infinite_variance else ""
    if p.kernel and not plan.finite:
        kernel = explain(template, prior(p.name, improper=True)).verdict
        note = f"kernel: {kernel}" if not kernel.startswith("INF") else ""
    details = ", ".join(f"{k}={v}" for k, v in fixed.items())
    name = f"{q.name}({details})" if details else q.name
    return Cell(
        name,
        p.name,
        q.group if claimed else "",
        claimed,
        plan.verdict,
        plan.methods,
        plan.method,
        plan.reason,
        note,
        plan.has_tuple,
        plan.finite,
        _otherwise(q, fixed, p, plan.verdict),
    )


def _otherwise(q: PosteriorRow, fixed: Mapping[str, Any], p: PriorRow, verdict: str) -> str:
    """The verdict on the defaults, where it differs from that on the values with which the table is judged."""
    usual = explain(q.name, p.name).verdict
    if usual == verdict or not (fixed or p.generic):
        return ""
    defaults = [(f"the {side}'s {x.name}", x.default) for side, parameters, judged in
                (("posterior", q.fixed, fixed), ("prior", p.parameters, p.generic)) for x in parameters
                if x.name in judged]  # fmt: skip
    return f"{usual} with {' and '.join(f'{name} = {value:.4g}' for name, value in defaults)}"
