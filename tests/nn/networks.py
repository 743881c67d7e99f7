"""Networks of every kind of layer, each with what it is called on. Import with `from tests.nn.networks import ...`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.conftest import seeded


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.embedding(x)).tanh())


class Shared(nn.Module):
    """One layer under two names, inside a nested module, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Tanh(), nn.Sequential(self.first, nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(self.first(x)))


class Keywords(nn.Module):
    """Keyword arguments, a dict as output, buffers, a parameter of its own, and lists of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.shift = nn.Parameter(torch.linspace(-1, 1, 3))
        self.factors = nn.ParameterList([nn.Parameter(torch.linspace(0.5, 1.5, 3))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.linspace(1, 2, 3))})
        self.register_buffer("offset", torch.full((3,), 0.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, *, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        self.calls += 1
        out = scale * self.layer(x) + self.offset + self.shift
        return {"a": out * self.factors[0], "b": (out * self.named["a"]).tanh()}


class Bag(nn.Module):
    """Layers that are neither dense nor convolutional."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.bilinear, self.cell = nn.EmbeddingBag(7, 4), nn.Bilinear(4, 4, 3), nn.GRUCell(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bag(x)
        return self.cell(self.bilinear(h, h.tanh()), h[:, :3])


def randn(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 7, shape, generator=seeded(6))


IMAGE, SERIES, VOLUME = (2, 4, 6, 6), (2, 4, 7), (2, 4, 4, 4, 4)
NETS = {
    "linear": (lambda: nn.Linear(4, 3), (randn(5, 4),)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (randn(5, 4),)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=2, padding_mode="circular", dilation=2, groups=2), (randn(*SERIES),)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", stride=2, groups=2), (randn(*IMAGE),)),
    "conv3d": (lambda: nn.Conv3d(4, 2, 3, padding=1, padding_mode="replicate", dilation=1), (randn(*VOLUME),)),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2), (randn(*SERIES),)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 2, 3, 2, output_padding=1, dilation=2), (randn(*IMAGE),)),
    "transposed3d": (lambda: nn.ConvTranspose3d(4, 2, 2, stride=2, padding=1), (randn(*VOLUME),)),
    "embedding": (lambda: nn.Embedding(7, 3), (tokens(4, 5),)),
    "padded embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), (tokens(4, 5),)),
    "lstm": (lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True), (randn(2, 5, 4),)),
    "gru": (lambda: nn.GRU(4, 3, num_layers=2, bidirectional=True, batch_first=True), (randn(2, 5, 4),)),
    "attention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (randn(2, 3, 4),) * 3),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (randn(2, 3, 4),)),
    "tied": (Tied, (tokens(4, 5),)),
    "shared": (Shared, (randn(5, 4),)),
    "keywords": (Keywords, {"x": randn(5, 4), "scale": 2.0}),
    "bag": (Bag, (tokens(4, 5),)),
    "norm": (lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2)),
             (randn(*IMAGE),)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (randn(5, 4),)),
}  # fmt: skip
