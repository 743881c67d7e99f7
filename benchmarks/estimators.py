"""The default prior of the scikit-learn estimators: chosen on validation parts, then reported on test parts.

    python benchmarks/estimators.py --root DATA

The rule: the mean validation log predictive density over UCI regression (DATA/uci, the first three standard splits) and
data sets of scikit-learn (diabetes, wine, digits and breast cancer, a quarter of the training part). Test parts are
predicted once, by the prior that was chosen.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality_uci import parts
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mcrepar
from mcrepar.sklearn import BayesianClassifier, BayesianRegressor

RESULTS = Path(__file__).parent / "results"
SETTINGS = [(0.3, 3.0), (0.5, 3.0), (1.0, 3.0), (0.3, 1.0), (0.5, 1.0), (1.0, 1.0),
            (0.2, 3.0), (0.3, 6.0), (0.3, 2.0), (0.2, 6.0)]  # scale and loc_scale  # fmt: skip
SPLITS = 3
Arrays = dict[str, tuple[Any, Any]]


def regressions(root: Path) -> dict[str, Arrays]:
    """Training, validation and test part of every data set and split."""
    found = {f"diabetes-{split}": three_parts(*load_diabetes(return_X_y=True), split) for split in range(SPLITS)}
    for name in ("boston", "concrete", "energy", "yacht"):
        for split in range(SPLITS):
            data, _ = parts(root / "uci" / f"{name}.npz", split)
            found[f"{name}-{split}"] = {key: (p.x.numpy(), p.y.numpy()[:, 0]) for key, p in data.items()}
    return found


def classifications() -> dict[str, Arrays]:
    """The same for classes."""
    loaders = {"wine": load_wine, "digits": load_digits, "breast cancer": load_breast_cancer}
    return {
        f"{name}-{split}": three_parts(*load(return_X_y=True), split)
        for name, load in loaders.items()
        for split in range(SPLITS)
    }


def three_parts(x: Any, y: Any, split: int) -> Arrays:
    """30 % are the test part, a quarter of the rest the validation part; numbers are standardised."""
    x_rest, x_test, y_rest, y_test = train_test_split(x, y, test_size=0.3, random_state=100 + split)
    x_train, x_val, y_train, y_val = train_test_split(x_rest, y_rest, test_size=0.25, random_state=split)
    found = {"train": (x_train, y_train), "validation": (x_val, y_val), "test": (x_test, y_test)}
    if not np.issubdtype(y.dtype, np.floating):
        return found
    mean, std = y_train.mean(), y_train.std()
    return {key: (inputs, (targets - mean) / std) for key, (inputs, targets) in found.items()}


def fitted(data: Arrays, setting: tuple[float, float], seed: int = 0) -> Any:
    """An estimator with this prior, on the training part."""
    prior = mcrepar.prior("hierarchical", scale=setting[0], loc_scale=setting[1], relative="fan_in")
    x, y = data["train"]
    kind = BayesianRegressor if np.issubdtype(y.dtype, np.floating) else BayesianClassifier
    return kind(prior=prior, random_state=seed).fit(x, y)


def density(model: Any, part: tuple[Any, Any]) -> float:
    """The mean log predictive density."""
    x, y = part
    if isinstance(model, BayesianClassifier):
        return -mcrepar.metrics.nll(model.predict_proba(x), y)
    targets = torch.tensor(y, dtype=torch.float32)[:, None]
    return float(model.prediction(x).log_prob(targets).mean())


def reported(model: Any, data: Arrays) -> dict[str, float]:
    """What the test part says, and logistic regression beside a classifier."""
    x, y = data["test"]
    found = {"log_density": density(model, data["test"]), "score": float(model.score(x, y))}
    if isinstance(model, BayesianRegressor):
        low, high = model.predict_interval(x, level=0.9)
        return {**found, "coverage_90": float(((y >= low) & (y <= high)).mean())}
    found["ece"] = mcrepar.metrics.ece(model.predict_proba(x), y)
    other = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(*data["train"])
    probs = other.predict_proba(x)
    logistic = {"score": float(other.score(x, y)), "log_density": -mcrepar.metrics.nll(probs, y)}
    return {**found, **{f"logistic_{k}": v for k, v in logistic.items()}, "logistic_ece": mcrepar.metrics.ece(probs, y)}


def main() -> None:
    """Choose, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    given = parser.parse_args()
    every = {**regressions(given.root), **classifications()}
    validation = {}
    for setting in SETTINGS:
        rows = {name: density(fitted(data, setting), data["validation"]) for name, data in every.items()}
        sets = sorted({name.rpartition("-")[0] for name in rows})
        means = {s: float(np.mean([v for n, v in rows.items() if n.startswith(s)])) for s in sets}
        validation[f"{setting[0]:g}, {setting[1]:g}"] = {**means, "mean": float(np.mean(list(means.values())))}
        print(setting, validation[f"{setting[0]:g}, {setting[1]:g}"], flush=True)
    best = max(SETTINGS, key=lambda s: validation[f"{s[0]:g}, {s[1]:g}"]["mean"])
    test = {name: reported(fitted(data, best), data) for name, data in every.items()}
    content = {"rule": __doc__.split("\n\n")[2], "validation": validation, "chosen": best, "test": test}
    (RESULTS / "estimators.json").write_text(json.dumps(content, indent=1) + "\n")
    print(best, json.dumps(test))


if __name__ == "__main__":
    main()
