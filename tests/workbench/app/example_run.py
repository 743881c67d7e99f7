"""A small run folder, as `mcrepar train` and `mcrepar evaluate` write it, with predictions that are known."""

import csv
import json
from pathlib import Path

import numpy as np

DRAWS, DATA, KEPT = 20, 400, 60
CLASSES = ("circle", "square", "triangle")


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Votes of 20 draws on 400 images of three shapes; the surer an answer, the more often it is right."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, DATA)
    sharp = rng.uniform(0, 1, DATA)
    likely = np.where(rng.uniform(size=DATA) < 0.55 + 0.45 * sharp, y, rng.integers(0, 3, DATA))
    probs = np.full((DATA, 3), 1 / 3) * (1 - sharp)[:, None] + np.eye(3)[likely] * sharp[:, None]
    votes = np.array([rng.multinomial(DRAWS, p) for p in probs])
    label, confidence = votes.argmax(1), votes.max(1) / DRAWS
    entropy = -(probs * np.log(probs + 1e-12)).sum(1)
    found = {"y": y, "probs": probs.astype(np.float32), "votes": votes, "label": label, "confidence": confidence}
    found |= {"entropy": entropy, "expected_entropy": 0.6 * entropy, "mutual_information": 0.4 * entropy}
    found |= {"draws": np.array(DRAWS), "classes": np.array(CLASSES)}
    found |= {"thumbnails": np.stack([image(k, rng) for k in y[:KEPT]]), "thumbnail_indices": np.arange(KEPT)}
    outside = rng.multinomial(DRAWS, [1 / 3] * 3, size=100)
    return found | {"ood_noise_confidence": outside.max(1) / DRAWS}


def image(kind: int, rng: np.random.Generator) -> np.ndarray:
    """One of the three shapes, (16, 16, 3)."""
    rows, columns = np.mgrid[-8:8, -8:8]
    shape = (
        (rows**2 + columns**2) < 40,
        (abs(rows) < 6) & (abs(columns) < 6),
        (columns < 6) & (abs(rows) < (columns + 7) / 2),
    )
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[shape[kind]] = rng.integers(90, 256, 3)
    return pixels


def write_run(folder: Path, seed: int = 0, simulated: bool = False) -> Path:
    """Write the folder."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("data:\n  name: shapes\n")
    (folder / "run.json").write_text(json.dumps({"status": "finished", "simulated": simulated, "seed": seed}))
    with (folder / "log.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["epoch", "step", "loss", "nll", "kl", "val_loss", "val_nll", "seconds"])
        for epoch in range(1, 13):
            nll = 1.1 * 0.8**epoch
            writer.writerow([epoch, 10 * epoch, nll + 0.1, nll, 100 + epoch, "", "", 0.5])
    np.savez_compressed(folder / "predictions.npz", **arrays(seed))
    return folder
