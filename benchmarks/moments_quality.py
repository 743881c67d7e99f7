"""Quality of predictions by moments beside 100 draws, on networks that quality.py has trained.

    python benchmarks/moments_quality.py TASK METHOD SEED --root DATA --work FOLDER
        [--examples N] [--calibration N] [--out FOLDER]

Nothing is chosen here, so that the test part is looked at: NLL, ECE, accuracy, AUROC of the out-of-distribution set by
entropy and by mutual information, and the rank correlations of both uncertainties, by 100 draws, by moments with
factors that are fitted on 256 training examples, and by 100 other draws, which say how much of a difference is chance.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from quality import checkpoint_name, scores_of, trained, uncertainties
from quality_learners import Answer, Bayesian
from quality_methods import METHODS
from quality_tasks import TASKS, Parts
from scipy.stats import spearmanr
from timing import machine
from torch import Tensor

import mcrepar
from mcrepar.metrics import auroc

DRAWS, FITTED, CALIBRATION = 100, 256, 1000


def answers(learner: Bayesian, parts: Parts, draws: int | str, count: int | None) -> tuple[Answer, Answer]:
    """Of the test part and of the out-of-distribution set, or of the first examples of both."""

    def ask(x: Tensor) -> Answer:
        found = mcrepar.predict(learner.model, parts.prepare(x), draws, 500, learner.likelihood)
        return Answer(found.probs, found.expected_entropy)

    (ood,) = parts.ood.values()
    return ask(parts.test.x[:count]), ask(ood[:count])


def figures(inside: Answer, outside: Answer, y: Tensor) -> dict[str, float]:
    found, u, v = scores_of(inside, y), uncertainties(inside), uncertainties(outside)
    kept = {name: found[name] for name in ("accuracy", "nll", "ece", "mutual_information")}
    return {**kept, **{f"OOD AUROC by {kind}": auroc(u[kind], v[kind]) for kind in u}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--examples", type=int, help="how many of the test part and of the other set; default: all")
    parser.add_argument(
        "--calibration", type=int, default=CALIBRATION, help="training images for norm layers, up to 1,000"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    _, parts, learner = trained(given.task, given.method, given.seed, given.root, given.work)
    assert isinstance(learner, Bayesian)
    name = checkpoint_name(given.task, given.method, given.seed)
    name += f" ({given.examples:,} images)" if given.examples else ""
    name += f" (norms of {given.calibration})" if given.calibration != CALIBRATION else ""
    learner.model.eval()
    learner.calibrate(parts, given.calibration)
    x, _ = parts.batch(torch.arange(CALIBRATION, CALIBRATION + FITTED), torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    mcrepar.calibrate_moments(learner.model, x, generator=generator, likelihood=learner.likelihood)
    ways: dict[str, int | str] = {"draws": DRAWS, "moments": "moments", "other draws": DRAWS}
    found = {way: answers(learner, parts, draws, given.examples) for way, draws in ways.items()}
    row: dict[str, Any] = {way: figures(*pair, parts.test.y[: given.examples]) for way, pair in found.items()}
    true = uncertainties(found["draws"][0])
    for way in ("moments", "other draws"):
        here = uncertainties(found[way][0])
        row[way] |= {f"rank correlation of {kind}": float(spearmanr(true[kind], here[kind])[0]) for kind in true}
    print(name, json.dumps(row, indent=1))
    target = given.out / "moments_quality.json"
    before = json.loads(target.read_text())["runs"] if target.exists() else {}
    content = {"machine": machine(), "draws": DRAWS, "fitted on": FITTED, "runs": {**before, name: row}}
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
