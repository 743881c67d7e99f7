"""A Bayesian network on handwritten digits, in under a minute: make demo, or python examples/demo.py [--epochs N]."""

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import mcrepar
from mcrepar.kl.graph import saved_bytes

try:
    import rich.table
except ImportError:
    rich = None


def network() -> nn.Module:
    """An ordinary convolutional network for 8 x 8 images: 38 thousand weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def compare_methods() -> None:
    """The problem and the answer, on one layer."""
    print("The KL of a Bayesian layer by M draws: autograd keeps every draw, unless the estimate is reparameterized.")
    loc, scale = torch.zeros(512, 512, requires_grad=True), torch.full((512, 512), 0.1, requires_grad=True)
    q, p = mcrepar.posterior("radial", loc=loc, scale=scale), mcrepar.prior("normal", scale=0.5)
    rows = []
    for method, draws in [("direct", 100), ("repar", 100), ("stats", 100), ("stats", 10**6), ("exact", None)]:
        estimate = partial(mcrepar.kl_divergence, q, p, method=method, n_mc_iter=draws)
        kept = saved_bytes(estimate)
        start = time.perf_counter()
        estimate().backward()
        seconds = time.perf_counter() - start
        m = f"{draws:,}" if draws else "infinite"
        rows.append([method, m, f"{1000 * seconds:.1f} ms", f"{kept / 1e6:.1f} MB"])
    table("KL(radial || normal) of 262,144 weights", ["method", "M", "value and backward", "kept between"], rows)


def train(bnn: mcrepar.BayesianModule, x, y, epochs: int, beta: float) -> None:
    """Minimise negative log likelihood + beta * KL / number of images."""
    likelihood = mcrepar.likelihoods.Categorical()
    optimizer = torch.optim.Adam(bnn.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=epochs)
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(x)).split(128):
            e = mcrepar.elbo(bnn, likelihood, x[batch], y[batch], data_size=len(x), beta=beta)
            optimizer.zero_grad()
            e.loss.backward()
            optimizer.step()
        schedule.step()
        if epoch % max(1, epochs // 10) == 0:
            print(f"epoch {epoch:4d} of {epochs}: nll {e.nll.item():.3f}, KL {e.kl.item():,.0f} nats", flush=True)


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """A table on the terminal, with rich where it is installed."""
    if rich is None:
        print("\n".join([title, *("  ".join(cell.ljust(18) for cell in row) for row in [head, *rows])]))
        return
    drawn = rich.table.Table(*head, title=title, title_justify="left")
    for row in rows:
        drawn.add_row(*row)
    rich.print(drawn)


def plot(taus, accuracy, share, file: Path) -> None:
    axes = (figure := Figure(figsize=(6, 3.6), layout="constrained")).subplots()
    axes.plot(taus, accuracy, color="#0072B2", marker="o", label="accuracy where it answers")
    axes.plot(taus, share, color="#D55E00", marker="s", label="share of digits it answers")
    axes.set(xlabel="tau: share of the draws that must agree")
    axes.legend(loc="lower left", frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"\nwrote {file}")


def show(images, captions: list[str]) -> None:
    """Digits side by side, in characters."""
    for row in range(8):
        print("   ".join("".join(2 * " .:-=+*#@"[int(v / 2)] for v in image[row]) for image in images))
    print("   ".join(caption.ljust(16) for caption in captions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    torch.manual_seed(0)
    compare_methods()

    digits = load_digits()
    data = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target), digits.images
    x_train, x_test, y_train, y_test, _, images = train_test_split(*data, test_size=0.25, random_state=0)
    print(f"\nTraining on {len(x_train):,} digits; the KL is estimated with M = 1,000 and weighted by beta = 0.1.")
    torch.set_num_threads(1)  # the tensors are small: a second thread would only wait
    prior = mcrepar.prior("normal", scale=0.5)
    bnn = mcrepar.bayesian(network(), posterior="radial", prior=prior, kl_method="stats", n_mc_iter=1000)
    train(bnn, x_train, y_train, options.epochs, beta=0.1)

    p = mcrepar.predict(bnn, x_test, draws=50, likelihood=mcrepar.likelihoods.Categorical())
    label, confidence = p.label, p.confidence  # the winner of the vote, and the share of draws that voted for it
    right = label == y_test
    print(f"\naccuracy on {len(y_test)} test digits, majority of 50 draws: {right.double().mean():.3f}\n")
    taus = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]  # the paper's rule: answer only where confidence >= tau
    accuracy = [right[confidence >= tau].double().mean().item() for tau in taus]
    share = [(confidence >= tau).double().mean().item() for tau in taus]
    rows = [[f"{t:.1f}", f"{a:.3f}", f"{s:.3f}"] for t, a, s in zip(taus, accuracy, share, strict=True)]
    table("It answers where the votes reach tau", ["tau", "accuracy", "share of data"], rows)
    order = confidence.argsort(stable=True)
    for words, chosen in (("least", order[:4]), ("most", order[-4:])):
        print(f"\n{words} sure of:")
        show([images[i] for i in chosen], [f"{label[i]} by {confidence[i]:.0%}, is {y_test[i]}" for i in chosen])
    plot(taus, accuracy, share, options.out / "confidence.png")


if __name__ == "__main__":
    main()
