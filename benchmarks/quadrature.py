"""How far the deterministic KL is off: every posterior x prior pair against brute force, written to quadrature.json.

The oracle shares nothing with the library: densities from scipy, and in log |xi| thousands of panels of 24
Gauss-Legendre nodes, graded towards every feature of the prior, which must agree with half as many. A value is wrong
where it is off by more than 1e-6 relative and 1e-9 absolute; it must be warned of.

    python benchmarks/quadrature.py            # all settings
    python benchmarks/quadrature.py --quick    # three settings per pair
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from quadrature_oracle import DENSITIES, NOISES, PRIORS, SCALES, SETTINGS, SHAPES, brute_force

import mcrepar

RELATIVE, ABSOLUTE = 1e-6, 1e-9
RESULT = Path(__file__).parent / "results" / "quadrature.json"


def cases(quick: bool) -> Iterator[tuple[str, dict[str, Any], float, float, str, dict[str, float]]]:
    """Every pair with a finite KL, wide, narrow, shifted and extreme."""
    for q, p in itertools.product(NOISES, DENSITIES):
        chosen = itertools.product(SHAPES.get(q, [{}]), SETTINGS.get(q, SCALES), PRIORS[p])
        some = list(chosen)
        for shape, (loc, scale), values in some[:: max(1, len(some) // 3)][:3] if quick else some:
            yield q, shape, loc, scale, p, values


def judge(case: tuple[Any, ...]) -> list[dict[str, Any]]:
    """The methods without samples against brute force."""
    q_name, shape, loc, scale, p_name, values = case
    count = shape.get("size", 1)
    fixed = {**{n: x for n, x in shape.items() if n != "size"}, **({"loc": loc} if q_name == "error" else {})}
    learned = {"scale": torch.full((count,), scale, dtype=torch.float64)}
    if mcrepar.POSTERIORS[q_name].form.learned_loc:
        learned["loc"] = torch.full((count,), loc, dtype=torch.float64)
    q, p = mcrepar.posterior(q_name, **fixed, **learned), mcrepar.prior(p_name, **values)
    plan = mcrepar.explain(q, p)
    if not plan.finite:
        return []
    expected, doubt = brute_force(q_name, shape, loc, scale, p_name, values)
    rows = []
    for method in (m for m in ("exact", "quad") if m in plan.methods):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                found = float(mcrepar.kl_divergence(q, p, method))
            except mcrepar.McreparError:
                found = math.nan
        error = abs(found - expected)
        rows.append({
            "pair": f"{q_name} x {p_name}", "method": method, "default": method == plan.method,
            "posterior": {**shape, "loc": loc, "scale": scale}, "prior": values,
            "found": found, "expected": expected, "doubt": doubt, "error": error,
            "wrong": not error <= RELATIVE * abs(expected) + ABSOLUTE,
            "warned": bool(heard) or math.isnan(found), "refused": math.isnan(found),
        })  # fmt: skip
    return rows


def main() -> None:
    """Judge all cases, print those that are wrong, write what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for case in cases(options.quick):
        rows += judge(case)
    certain = [r for r in rows if r["doubt"] <= 0.1 * (RELATIVE * abs(r["expected"]) + ABSOLUTE)]
    wrong = [r for r in certain if r["wrong"]]
    result = {
        "quick": options.quick,
        "values": len(rows),
        "pairs": len({r["pair"] for r in rows}),
        "by method": {m: sum(r["method"] == m for r in rows) for m in ("exact", "quad")},
        "oracle unsure": len(rows) - len(certain),
        "wrong without a warning": sum(not r["warned"] for r in wrong),
        "wrong with a warning": sum(r["warned"] and not r["refused"] for r in wrong),
        "refused": sum(r["refused"] for r in certain),
        "right with a warning": sum(r["warned"] and not r["wrong"] for r in certain),
        "largest error without a warning": max(
            r["error"] / (abs(r["expected"]) + ABSOLUTE / RELATIVE) for r in certain if not r["warned"]
        ),
        "seconds": round(time.perf_counter() - began),
        "notable": [r for r in rows if r["wrong"] or r["warned"] or r not in certain],
    }
    for row in result["notable"]:
        print(row)
    print({k: v for k, v in result.items() if k != "notable"})
    out = options.out or (None if options.quick else RESULT)
    if out is not None:
        for row in result["notable"]:  # JSON has no nan
            row |= {key: None for key in ("found", "error") if row["refused"]}
        out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
