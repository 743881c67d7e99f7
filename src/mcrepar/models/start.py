"""Start values for networks of ReLUs."""

from __future__ import annotations

from torch import nn


def he_normal(net: nn.Module) -> None:
    """Weights of convolutions and dense layers ~ N(0, 2 / inputs of a unit), biases 0 (He et al. 2015).

    torch's own start values have a sixth of this variance, and fade out over the layers where there is no norm.

    >>> layer = nn.Linear(800, 500)
    >>> he_normal(layer)
    >>> round(layer.weight.std().item(), 2), layer.bias.abs().max().item()
    (0.05, 0.0)
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
