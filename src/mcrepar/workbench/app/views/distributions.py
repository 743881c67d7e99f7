"""Choose a posterior and a prior: the verdict, the formula, the methods, the densities, and the estimates against M."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import torch

from mcrepar.distributions.parameters import REAL, Parameter
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import POSTERIORS, posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import PRIORS, prior
from mcrepar.divergence.methods import METHODS
from mcrepar.divergence.plan import Plan, explain
from mcrepar.divergence.reasons import VERDICTS
from mcrepar.workbench.app.answer import Answer, Cell, Figure, Table, line
from mcrepar.workbench.app.controls import Choice, Control, Number, Switch
from mcrepar.workbench.app.pair_curves import MOST_DRAWS, Curve, Estimates, estimates, weight_densities
from mcrepar.workbench.app.view import View
from mcrepar.workbench.app.views.quality import nats

_LEARNED = {"loc": "0.4", "scale": "0.3"}  # the initial values of the fields
# a power is expanded into as many products, and extreme shapes overflow in every number that follows
_BOUNDS = {"power": (0.05, 20.0), "concentration": (0.01, 100.0), "df": (0.05, 1000.0)}
_REMARKS = {"taylor": "biased: a polynomial stands in for log p", "quad": "nodes instead of draws"}
_SYMBOLS = ("x", "triangle-up", "square", "diamond", "cross", "star", "triangle-down", "circle")
METHOD_SYMBOLS = dict(zip(METHODS, cycle(_SYMBOLS), strict=False))


def pair_of(values: Mapping[str, Any], weights: int) -> tuple[Posterior, Prior]:
    """The two objects of the fields: a tensor of equal weights, and a prior."""
    row = POSTERIORS[values["posterior"]]
    learned = {n: torch.full((weights,), values[f"q_{n}"], dtype=torch.float64) for n in row.learned}
    fixed = {p.name: values[f"q_{p.name}"] for p in row.fixed if values[f"q_{p.name}"] is not None}
    prior_row = PRIORS[values["prior"]]
    given = {p.name: values[f"p_{p.name}"] for p in prior_row.parameters if values[f"p_{p.name}"] is not None}
    improper = bool(prior_row.kernel and values["improper"])
    return posterior(row.name, **learned, **fixed), prior(prior_row.name, improper=improper, **given)


def _compute(values: Mapping[str, Any]) -> Answer:
    q, p = pair_of(values, values["weights"])
    plan = explain(q, p)
    found = estimates(q, p, values["iterations"], values["seed"])
    return Answer(
        _headline(plan, found, values),
        notes=_reasons(plan),
        figures=[_density_figure(q, p, values), *_convergence_figures(plan, found)],
        tables=[_methods_table(plan, found), _formula_table(plan, p), *_tuple_tables(plan), *_estimates_tables(found)],
        code=_code(plan, q, p),
    )


def _headline(plan: Plan, found: Mapping[str, Estimates], values: Mapping[str, Any]) -> str:
    verdict = f"{plan.verdict}: {VERDICTS[plan.verdict].meaning}."
    if not plan.finite:
        return f"{verdict} {plan.reason[:1].upper()}{plan.reason[1:]}."
    best = next((m for m, e in found.items() if e.values and not METHODS[m].samples), None)
    value = f" The KL of {values['weights']:,} weights is {nats(found[best].values[0])} nats." if best else ""
    size = f" d_P = {plan.d_P}." if plan.d_P is not None else ""
    apply = [method for method, e in found.items() if e.refusal is None]
    count = "All" if len(apply) == len(found) else f"{len(apply)} of the {len(found)}"
    return f"{verdict}{size} {count} methods apply.{value}"


def _reasons(plan: Plan) -> list[str]:
    """The prose of the plan; its formulas and tables are shown as tables."""
    wanted = ("Why:", "Instead:", "exact holds", "The KL is finite", "Monte")
    return [text for text in str(plan).splitlines() if text.startswith(wanted)]


def _formula_table(plan: Plan, p: Prior) -> Table:
    """The formula in the plan's words, and the numbers in it."""
    wanted = ("Posterior:", "Prior:", "Exponential family:")
    lines = [text.removesuffix(".").split(": ", 1) for text in str(plan).splitlines() if text.startswith(wanted)]
    numbers = {"constant": p.density.constant}
    numbers |= {f"c{place}": term.coefficient for place, term in enumerate(p.density.terms, start=1)}
    rows: list[tuple[Cell, ...]] = [("KL(q ‖ p)", "-H(q) - E log p(W), W drawn from q; H is the entropy")]
    rows += [(name, text) for name, text in lines]
    rows.append(("Its numbers", ", ".join(f"{name} = {float(value):.5g}" for name, value in numbers.items())))
    return Table("formula", "The formula", ("part", "formula"), rows)


def _density_figure(q: Posterior, p: Prior, values: Mapping[str, Any]) -> Figure:
    ours, theirs = weight_densities(q, p, values["seed"])
    alt = f"The densities of one weight: the {q.name} posterior, highest at {_peak(ours):.3g}, and the {p.name} prior."
    kernel = ", kernel" if p.improper else ""
    return Figure(
        "densities",
        "The densities of a weight",
        alt,
        [
            _density_line(f"posterior: {q.name}", ours, "@series1", "solid"),
            _density_line(f"prior: {p.name}{kernel}", theirs, "@series2", "dash"),
        ],
        "weight w",
        "density",
        layout={"yaxis": {"rangemode": "tozero"}},
    )


def _density_line(name: str, curve: Curve, colour: str, dash: str) -> dict[str, Any]:
    label = f"{name} (histogram)" if curve.drawn else name
    fill = {"fill": "tozeroy", "fillcolor": f"{colour}-soft"} if dash == "solid" else {}
    return line(label, curve.x, curve.y, colour, dash=dash, mode="lines", **fill)


def _peak(curve: Curve) -> float:
    return float(curve.x[curve.y.argmax()])


def _convergence_figures(plan: Plan, found: Mapping[str, Estimates]) -> list[Figure]:
    drawn = {method: e for method, e in found.items() if e.draws}
    if not plan.finite or not drawn:
        return []
    most = max(e.draws[-1] for e in drawn.values())
    fixed = {method: e for method, e in found.items() if e.values and not e.draws}
    traces = [
        *(line(m, [1, most], [e.values[0]] * 2, f"@{m}", mode="lines", dash="dash") for m, e in fixed.items()),
        *(line(m, e.draws, e.values, f"@{m}", symbol=METHOD_SYMBOLS[m]) for m, e in drawn.items()),
    ]
    ends = "; ".join(f"{m}: {e.values[-1]:.5g}" for m, e in {**fixed, **drawn}.items())
    alt = f"The estimates of the KL come together as M grows. The last ones: {ends}."
    title = "The estimate of every method against M"
    return [Figure("convergence", title, alt, traces, "number M of draws", "KL, nats", x_log=True)]


def _methods_table(plan: Plan, found: Mapping[str, Estimates]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method, e in found.items():
        if e.refusal is not None:
            why = f"{e.refusal.why}; use {e.refusal.instead}" if plan.finite else "the KL is infinite"
            rows.append((method, "no", None, why))
            continue
        why = _REMARKS.get(method, "") if method != plan.method else "the default"
        if e.draws and e.draws[-1] < max(f.draws[-1] for f in found.values() if f.draws):
            why = f"ends at M = {e.draws[-1]:,}: it draws M noises per weight, and the app at most {MOST_DRAWS:,}"
        rows.append((method, "yes", e.values[-1], why))
    return Table("methods", "Which methods apply", ("method", "applies", "KL at the largest M", "remark"), rows)


def _tuple_tables(plan: Plan) -> list[Table]:
    if not plan.statistics or not plan.right:
        return []
    sizes = f"d_P = {plan.d_P}; with the entropy {plan.d_P_total}, merged {plan.d_P_merged}"
    caption = f"The tuple: the KL is a sum of products n(θ) · t(ξ), and M is in t alone ({sizes})"
    return [Table("tuple", caption, ("n(θ), learned", "t(ξ), drawn"), plan.statistics)]


def _estimates_tables(found: Mapping[str, Estimates]) -> list[Table]:
    rows = [(m, draws, value) for m, e in found.items() for draws, value in zip(e.draws, e.values, strict=False)]
    return [Table("estimates", "Every estimate", ("method", "M", "KL, nats"), rows)] if rows else []


def _code(plan: Plan, q: Posterior, p: Prior) -> str:
    learned = ", ".join(f"{n}={'mu' if n == 'loc' else 'sigma'}" for n in q.row.learned)
    defaults = {parameter.name: parameter.default for parameter in q.row.fixed}
    fixed = "".join(f", {n}={v!r}" for n, v in q.fixed.items() if v != defaults[n])
    given = "".join(f", {n}={v!r}" for n, v in p.values.items()) + (", improper=True" if p.improper else "")
    code = f'q = mcrepar.posterior("{q.name}", {learned}{fixed})\np = mcrepar.prior("{p.name}"{given})\n'
    if not plan.finite:
        return f"import mcrepar\n\n{code}print(mcrepar.explain(q, p))  # why the KL is infinite"
    method = plan.method or "stream"
    given_by_you = "mu and sigma: your learned tensors" if len(q.row.learned) > 1 else "sigma: your learned tensor"
    return f'import mcrepar\n\n{code}kl = mcrepar.kl_divergence(q, p, method="{method}")  # {given_by_you}'


def _parameter_controls(
    prefix: str, side: str, rows: Mapping[str, Any], parameters: Callable[[Any], Sequence[Parameter]]
) -> list[Control]:
    """A field for every parameter that any family of a table has, shown with the families that have it."""
    families: dict[str, dict[str, Parameter]] = {}
    for name, row in rows.items():
        for parameter in parameters(row):
            families.setdefault(parameter.name, {})[name] = parameter
    controls: list[Control] = []
    for name, found in families.items():
        real = all(p.constraint is REAL for p in found.values())
        defaults = sorted({f"{p.default:g}" for p in found.values() if p.default is not None})
        hint = f"Empty: the default, {' or '.join(defaults)}." if len(defaults) < 4 else "Empty: the family's default."
        label = f"{side}: {name}"
        least, most = (-1e6, 1e6) if real else _BOUNDS.get(name, (1e-6, 1e6))
        controls.append(Number(f"{prefix}_{name}", label, "", hint, {side.lower(): tuple(found)},
                               least=least, most=most, blank=True))  # fmt: skip
    return controls


def pair_controls(needs: Mapping[str, Sequence[str]] | None = None) -> tuple[Control, Control]:
    """The menus of the two tables; `needs` says with which values of other controls they are shown."""
    return (
        Choice("posterior", "Posterior", "radial", needs=needs, choices={name: name for name in POSTERIORS}),
        Choice("prior", "Prior", "normal", needs=needs, choices={name: name for name in PRIORS}),
    )


def _controls() -> tuple[Control, ...]:
    with_loc = [n for n, row in POSTERIORS.items() if "loc" in (*row.learned, *(p.name for p in row.fixed))]
    return (
        *pair_controls(),
        Number("q_loc", "Posterior: location", _LEARNED["loc"], needs={"posterior": with_loc}, least=-1e6, most=1e6),
        Number("q_scale", "Posterior: scale", _LEARNED["scale"], least=1e-6, most=1e6),
        Number("weights", "Weights in the tensor", "50", least=1, most=1000, whole=True),
        Number("iterations", "Monte Carlo iterations, up to", "1000", least=1, most=1e6, whole=True),
    )


def _more() -> tuple[Control, ...]:
    kernels = tuple(name for name, row in PRIORS.items() if row.kernel)
    return (
        *_parameter_controls(
            "q", "Posterior", POSTERIORS, lambda row: [p for p in row.fixed if p.name not in _LEARNED]
        ),
        *_parameter_controls("p", "Prior", PRIORS, lambda row: row.parameters),
        Switch("improper", "Prior: take its kernel (improper)", "false", needs={"prior": kernels}),
        Number("seed", "Seed of the draws", "0", least=0, most=10**6, whole=True),
    )


DISTRIBUTIONS = View(
    "distributions",
    "Distributions",
    "Choose your distributions",
    (
        "Not every posterior goes with every prior: the KL may be infinite, or no estimate of a fixed size may exist. "
        "Choose two, and read what is possible, by which methods, and why the others do not apply.",
        "Every method estimates the same number. Those that draw come nearer as M grows; taylor is biased and says so.",
    ),
    _controls(),
    _compute,
    group="The paper",
    more=_more(),
    stored=lambda: {"posterior": [*dict.fromkeys(["radial", *POSTERIORS])], "prior": tuple(PRIORS)},
)
