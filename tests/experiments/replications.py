"""Made-up rows of replicated trainings, for tests of what is judged."""

from experiments.training_runs import TAUS


def made_up(study: str, draws: int | None, replication: int, accuracy: float, share: float = 0.8) -> dict:
    """A run of 1,000 test examples, whose sets from 0.9 on hold a share of them and are right 5 points more often."""
    sets = [
        {"tau": tau, "count": round(1000 * (share if tau >= 0.9 else 1)), "share": share if tau >= 0.9 else 1.0,
         "accuracy": accuracy + (0.05 if tau >= 0.9 else 0.0)}
        for tau in TAUS
    ]  # fmt: skip
    scores = {"accuracy": accuracy, "nll": 1 - accuracy, "ece": 0.01, "mutual_information": 0.1, "auc": accuracy}
    curves = {"epoch": [1, 2], "loss": [2.0, 1.0], "nll": [2.0, 2 - accuracy], "kl": [100.0, 90.0],
              "accuracy": [0.1, accuracy]}  # fmt: skip
    variant = "exact" if draws is None else f"M = {draws}"
    return {"study": study, "variant": variant, "replication": replication, "failed": None, "count": 1000,
            "right": round(1000 * accuracy), "sets": sets, "scores": scores, "curves": curves}  # fmt: skip
