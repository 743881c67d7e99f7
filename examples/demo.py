"""A Bayesian network on handwritten digits, in under a minute: make demo, or python examples/demo.py [--epochs N]."""

import argparse
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import mcrepar
from mcrepar.kl.graph import saved_bytes

try:
    import rich.table
except ImportError:
    rich = None


class Dense:
    """A dense layer whose weights have a Radial posterior, loc + scale * xi; the last row is the bias."""

    def __init__(self, inputs: int, outputs: int):
        self.loc = (torch.randn(inputs + 1, outputs) / inputs**0.5).requires_grad_()
        scale = 0.05 * outputs**0.5  # a weight of a Radial tensor with d weights deviates by scale / sqrt(d)
        self.log_scale = torch.full((inputs + 1, outputs), scale).log().requires_grad_()
        self.posterior = mcrepar.posterior("radial", loc=self.loc, log_scale=self.log_scale)

    def __call__(self, x):
        w = self.posterior.draw()  # fresh at every call, one draw for the whole batch
        return x @ w[:-1] + w[-1]


class Network:
    """64 pixels -> 128 hidden units -> 10 digits."""

    def __init__(self):
        self.layers = [Dense(64, 128), Dense(128, 10)]
        self.parameters = [t for layer in self.layers for t in (layer.loc, layer.log_scale)]
        self.prior = mcrepar.prior("normal", scale=0.5)

    def __call__(self, x):
        return self.layers[1](F.relu(self.layers[0](x)))

    def kl(self):
        """The KL of all weights, with the accuracy of 1,000 draws of them, in a time that does not depend on M."""
        posteriors = [layer.posterior for layer in self.layers]
        return sum(mcrepar.kl_divergence(q, self.prior, method="stats", n_mc_iter=1000) for q in posteriors)


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


def train(net: Network, x, y, epochs: int, beta: float) -> None:
    """Minimise negative log likelihood + beta * KL / number of images."""
    optimizer = torch.optim.Adam(net.parameters)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=epochs)
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(x)).split(128):
            nll, kl = F.cross_entropy(net(x[batch]), y[batch]), net.kl()
            optimizer.zero_grad()
            (nll + beta * kl / len(x)).backward()
            optimizer.step()
        schedule.step()
        if epoch % max(1, epochs // 10) == 0:
            print(f"epoch {epoch:4d} of {epochs}: nll {nll.item():.3f}, KL {kl.item():,.0f} nats", flush=True)


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
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    torch.manual_seed(0)
    compare_methods()

    digits = load_digits()
    data = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target), digits.images
    x_train, x_test, y_train, y_test, _, images = train_test_split(*data, test_size=0.25, random_state=0)
    print(f"\nTraining on {len(x_train):,} digits; the KL is estimated with M = 1,000 and weighted by beta = 0.1.")
    torch.set_num_threads(1)  # the tensors are small: a second thread would only wait
    net = Network()
    train(net, x_train, y_train, options.epochs, beta=0.1)

    with torch.no_grad():
        votes = torch.stack([net(x_test).argmax(-1) for _ in range(50)])  # (draws, images)
    confidence, label = F.one_hot(votes, 10).double().mean(0).max(-1)  # share of draws that vote for the winner
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
