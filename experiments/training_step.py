"""One training step of a Bayesian neural network, the memory that it needs, and the paper's loop over draws.

The app's `memory_budget` answers how many draws fit without running a step: it adds up what autograd saves, by the
library's own `direct`, whose entropy is exact. Here the peak of a whole step is measured (gradients and what the
backward needs for a moment included), by the loop that the paper prints, with log q sampled too, which saves twice as
much per draw. So PreActResNet-18 has 126 draws in 11 GiB there, and here 125 (entropy exact) or 62 (log q sampled).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import prior
from mcrepar.inspect.graph import peak_bytes, saved_bytes
from mcrepar.models import model
from mcrepar.nn.module import bayesian
from mcrepar.nn.random_tensor import RandomTensor

_DATA_SIZE = 50_000
LOOPS = {"exact": "entropy exact", "mc": "log q sampled too"}
GIB = 2**30
MANY = 10**6  # draws of ours
PROBE = 4  # draws with which a step is measured: at fewer, the network's own backward may be what needs most


def device() -> torch.device:
    """Where steps run: a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def size_text(size: float) -> str:
    """Bytes for readers.

    >>> size_text(11 * GIB), size_text(6 * 2**20)
    ('11 GiB', '6 MiB')
    """
    return f"{size / GIB:.3g} GiB" if size >= GIB / 10 else f"{size / 2**20:.3g} MiB"


def looped_kl(q: Posterior, p: Prior, draws: int, entropy: str = "exact") -> Tensor:
    """KL(q || p) as the paper prints it: a loop in which every draw joins the graph; up to a constant.

    Args:
        q: the posterior.
        p: an elementwise prior.
        draws: M.
        entropy: "exact", or "mc" where log q is sampled too.

    >>> from mcrepar import posterior, prior
    >>> q = posterior("normal", loc=torch.zeros(4), scale=torch.ones(4))
    >>> looped_kl(q, prior("normal"), draws=3).shape
    torch.Size([])
    """
    loc, scale, log_scale = q.loc, q.scale, q.log_scale
    total = torch.zeros((), dtype=q.dtype, device=q.device)
    for _ in range(draws):
        xi = q.noise.draw(1, q.numel, dtype=q.dtype, device=q.device, generator=None).reshape(q.shape)
        w = q.form.weights(loc, scale, xi)
        for term in p.density.terms:
            total = total - term(w).sum() / draws
        if entropy == "mc":
            standard = (w - loc) / scale
            total = total + (q.noise.log_density(standard.reshape(1, -1)).sum() - log_scale.sum()) / draws
    return total if entropy == "mc" else total - log_scale.sum()


def bytes_per_draw(entropy: str) -> float:
    """What a draw of the printed loop saves for backward per weight, from autograd's hooks.

    >>> bytes_per_draw("exact")  # the noise and the weight, 4 bytes each
    8.0
    """
    size = 1000
    loc, log_scale = torch.zeros(size, requires_grad=True), torch.full((size,), -3.0, requires_grad=True)
    q, p = posterior("radial", loc=loc, log_scale=log_scale), prior("normal")
    two, four = (saved_bytes(lambda m=m: looped_kl(q, p, m, entropy)) for m in (2, 4))  # type: ignore[misc]
    return round((four - two) / (2 * size), 2)


class TrainingStep:
    """A Bayesian neural network with Adam, whose averages exist.

    Args:
        network: its name.
        size: the sides of its data.
        channels: of its data.
        classes: of its data.
        **options: of the network.
    """

    def __init__(self, network: str, size: Sequence[int], channels: int = 3, classes: int = 10, **options: Any) -> None:
        self.shape, self.classes = (channels, *size), classes
        net = model(network, classes, channels, tuple(size), **options)
        self.device = device()
        self.bnn = bayesian(net, posterior="radial", prior="normal", forward="weights").to(self.device)
        self.optimizer = torch.optim.Adam(self.bnn.parameters(), lr=1e-4, foreach=False)
        self.run(2, lambda: self.kl("exact"))

    @property
    def latents(self) -> list[RandomTensor]:
        """The random tensors."""
        return [latent for latent in self.bnn.latents.values() if isinstance(latent, RandomTensor)]

    @property
    def weights(self) -> int:
        """The number of random weights."""
        return sum(latent.log_scale.numel() for latent in self.latents)

    @property
    def standing(self) -> int:
        """Bytes that exist between two steps: parameters, buffers, Adam's averages."""
        averages = [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
        tensors = [*self.bnn.parameters(), *self.bnn.buffers(), *averages]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def kl(self, method: str, draws: int | None = None) -> Tensor:
        """The KL of the network by one of the library's methods."""
        return self.bnn.kl(method, draws)

    def looped(self, draws: int, entropy: str = "exact") -> Tensor:
        """The KL of the network by the paper's loop."""
        posteriors = [(latent, latent.posterior) for latent in self.latents]
        return torch.stack([looped_kl(q, latent.prior(q), draws, entropy) for latent, q in posteriors]).sum()

    def data(self, batch: int) -> tuple[Tensor, Tensor]:
        """Made-up examples and their classes."""
        x, y = torch.randn(batch, *self.shape), torch.randint(self.classes, (batch,))
        return x.to(self.device), y.to(self.device)

    def loss(self, x: Tensor, y: Tensor, kl: Callable[[], Tensor]) -> Tensor:
        """Forward, then KL."""
        return F.cross_entropy(self.bnn(x), y) + kl() / _DATA_SIZE

    def run(self, batch: int, kl: Callable[[], Tensor]) -> None:
        """Forward, KL, backward, Adam."""
        self.loss(*self.data(batch), kl).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def accumulate(self, batch: int, draws: int) -> None:
        """A step by gradient accumulation: a forward, a KL of one draw and a backward for each of M iterations.

        The gradient is that of the mean over iterations of likelihood and KL both; only one graph is alive at a time.
        """
        x, y = self.data(batch)
        for _ in range(draws):
            (self.loss(x, y, lambda: self.looped(1)) / draws).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def one_draw(self, batch: int, entropy: str) -> float:
        """The memory of a step with M = 1 of the printed loop, by the line through M = PROBE, on which larger M are."""
        beyond = (PROBE - 1) * bytes_per_draw(entropy) * self.weights
        return self.peak(batch, lambda: self.looped(PROBE, entropy)) - beyond

    def peak(self, batch: int, kl: Callable[[], Tensor]) -> int:
        """The largest sum of the bytes of all tensors alive at once in a step, what stands between steps included.

        On a CPU, the blocks of noise that `repar` holds in worker threads (some MB) are not seen.
        """
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.run(batch, kl)
            return torch.cuda.max_memory_allocated()
        return self.standing + peak_bytes(lambda: self.run(batch, kl))
