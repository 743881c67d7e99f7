"""A Bayesian neural network on handwritten digits: make demo, or python examples/demo.py.

It compares the estimators on one layer, does what these two commands do, and shows the most and least certain digits:

    mcrepar train --recipe digits --twin --out runs/demo
    mcrepar evaluate runs/demo --ood arrays,root=runs/demo/photographs.npz,as=photographs
"""

import argparse
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import rich
import torch
from rich.table import Table
from sklearn.datasets import load_sample_images

import mcrepar
from mcrepar.inspect.graph import saved_bytes
from mcrepar.workbench.cli import main as mcrepar_command


def compare_methods() -> None:
    """The problem and the answer, on one layer."""
    print("The KL of a Bayesian layer by M draws: autograd stores every draw, unless the estimate is reparameterized.")
    loc, scale = torch.zeros(512, 512, requires_grad=True), torch.full((512, 512), 0.1, requires_grad=True)
    q, p = mcrepar.posterior("radial", loc=loc, scale=scale), mcrepar.prior("normal", scale=0.5)
    table = Table(
        "method", "M", "value and backward", "saved for backward", title="KL(radial || normal) of 262,144 weights"
    )
    for method, draws in [("direct", 100), ("repar", 100), ("stats", 100), ("stats", 10**6), ("exact", None)]:
        estimate = partial(mcrepar.kl_divergence, q, p, method=method, n_mc_iter=draws)
        saved = saved_bytes(estimate)
        start = time.perf_counter()
        estimate().backward()
        seconds = time.perf_counter() - start
        table.add_row(
            method, f"{draws:,}" if draws else "infinite", f"{1000 * seconds:.1f} ms", f"{saved / 1e6:.1f} MB"
        )
    rich.print(table)


def remove_earlier(folder: Path) -> None:
    """Remove what an earlier demo left; another run in that folder is left alone, and training will refuse it."""
    config = folder / "config.yaml"
    if config.exists() and {"data: digits", "model: small_conv"} <= set(config.read_text().splitlines()):
        shutil.rmtree(folder)


def photographs(count: int = 450) -> np.ndarray:
    """Patches of two photographs, 8 x 8 and grey: something that is no digit."""
    rng, patches = np.random.default_rng(0), []
    images = [image.mean(2) for image in load_sample_images().images]
    for k in range(count):
        image = images[k % len(images)]
        row, column = (rng.integers(side - 64) for side in image.shape)
        patch = image[row : row + 64, column : column + 64].reshape(8, 8, 8, 8).mean((1, 3))
        patches.append(255 * (patch - patch.min()) / max(np.ptp(patch), 1))
    return np.stack(patches).astype(np.uint8)


def show(folder: Path, count: int = 4) -> None:
    """The digits of which it is least and most confident, in characters."""
    with np.load(folder / "predictions.npz") as found:
        for words, group in (("least", "uncertain"), ("most", "certain")):
            shown = np.flatnonzero(found["thumbnail_groups"] == group)[:count]
            print(f"\n{words} certain:")
            for row in range(8):
                lines = found["thumbnails"][shown, row, :, 0]  # (count, 8), from 0 to 255
                print("   ".join("".join(2 * " .:-=+*#@"[v // 29] for v in line) for line in lines))
            places = found["thumbnail_indices"][shown]
            columns = (found[name][places] for name in ("label", "confidence", "y"))
            print(
                "   ".join(f"{label} by {sure:.0%}, is {y}".ljust(16) for label, sure, y in zip(*columns, strict=True))
            )


def command(*words: str) -> None:
    print("\n$ mcrepar", *words, flush=True)
    if code := mcrepar_command(words):
        sys.exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, help="fewer, for a quick look")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    compare_methods()
    remove_earlier(options.out)
    shorter = ["--epochs", str(options.epochs)] if options.epochs else []
    command("train", "--recipe", "digits", "--twin", "--out", str(options.out), *shorter)
    photos = options.out / "photographs.npz"
    np.savez(photos, images=photographs())
    command("evaluate", str(options.out), "--ood", f"arrays,root={photos},as=photographs")
    show(options.out)


if __name__ == "__main__":
    main()
