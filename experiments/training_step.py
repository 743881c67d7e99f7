"""One training step of a Bayesian network, and the memory that it needs; the paper's loop over draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.inspect.graph import peak_bytes
from mcrepar.models import model
from mcrepar.nn.latent import Latent
from mcrepar.nn.module import bayesian

_DATA_SIZE = 50_000


def device() -> torch.device:
    """Where steps run: a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait() -> None:
    """Until a GPU has done what it was asked to do, so that it can be timed."""
    if device().type == "cuda":
        torch.cuda.synchronize()


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


class TrainingStep:
    """A Bayesian network with Adam, whose averages exist.

    Args:
        network: its name.
        size: the sides of its data.
        channels: of its data.
        classes: that it tells apart.
        **options: of the network.
    """

    def __init__(self, network: str, size: Sequence[int], channels: int = 3, classes: int = 10, **options: Any) -> None:
        self.shape, self.classes = (channels, *size), classes
        net = model(network, classes, channels, tuple(size), **options)
        self.device = device()
        self.bnn = bayesian(net, posterior="radial", prior="normal").to(self.device)
        self.optimizer = torch.optim.Adam(self.bnn.parameters(), lr=1e-4, foreach=False)
        self.run(2, lambda: self.kl("exact"))

    @property
    def latents(self) -> list[Latent]:
        """The random tensors."""
        return [latent for latent in self.bnn.latents.values() if isinstance(latent, Latent)]

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

    def peak(self, batch: int, kl: Callable[[], Tensor]) -> int:
        """The largest sum of the bytes of all tensors alive at once in a step, what stands between steps included.

        On a CPU, the blocks of noise that `repar` holds in worker threads (some MB) are not seen.
        """
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.run(batch, kl)
            return torch.cuda.max_memory_allocated()
        return self.standing + peak_bytes(lambda: self.run(batch, kl))
