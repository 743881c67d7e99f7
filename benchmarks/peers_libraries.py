"""The libraries that are compared, each behind the same few functions: convert, forward, KL, loss with M draws.

A peer is imported when it is asked for, so that one that is absent or broken costs nobody else anything.
"""

from __future__ import annotations

import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mcrepar

DATA = 50_000  # what every loss divides the KL by
Learned = list[tuple[nn.Parameter, nn.Parameter]]


def softplus_inverse(scale: float) -> float:
    return torch.tensor(scale, dtype=torch.float64).expm1().log().item()


class Library(ABC):
    """A library that makes a network Bayesian, with a Normal posterior and a Normal prior.

    Args:
        package: what pip calls it.
        words: what it calls a location and the free parameter of a scale.
        free: from a scale to that parameter.
        scale: the way back.
        converts: whether it converts a network; else its layers were put in by hand.
    """

    package: str
    words: tuple[str, str] = ("mu", "rho")
    free: Callable[[float], float] = staticmethod(softplus_inverse)
    scale: Callable[[Tensor], Tensor] = staticmethod(F.softplus)
    converts = True

    @abstractmethod
    def convert(self, net: nn.Module, prior_scale: float) -> nn.Module:
        """The network, made Bayesian around its weights."""

    @abstractmethod
    def kl(self, bnn: nn.Module, x: Tensor) -> Tensor:
        """The KL that the library reports; x for those that need a forward."""

    @abstractmethod
    def loss(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        """The loss with M draws, in the way the library documents."""

    @abstractmethod
    def prior_argument(self) -> tuple[Callable[..., Any], str]:
        """Who takes the prior's width, and under which name."""

    def closed(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        """The loss with one draw of the weights and the closed form of the KL, where the library has one."""
        raise NotImplementedError

    def forward(self, bnn: nn.Module, x: Tensor) -> Any:
        """The output for one draw."""
        return bnn(x)

    def learned(self, bnn: nn.Module) -> Learned:
        """All pairs of a location and the free parameter of its scale."""
        loc, free = self.words
        named = dict(bnn.named_parameters())
        partner = {name: ".".join([*name.split(".")[:-1], name.split(".")[-1].replace(loc, free)]) for name in named}
        return [(named[a], named[b]) for a, b in partner.items() if a != b and b in named]

    def set_posterior(self, bnn: nn.Module, scale: float, loc: float | None = None) -> nn.Module:
        """Give every weight this standard deviation (and this mean)."""
        with torch.no_grad():
            for centre, free in self.learned(bnn):
                free.fill_(self.free(scale))
                if loc is not None:
                    centre.fill_(loc)
        return bnn

    def flipout(self, net: nn.Module) -> nn.Module | None:
        """The network with flipout; None where there is none."""
        return None

    def radial_norms(self, draws: int) -> Tensor | None:
        """Norms of the noise of a tensor of 20 x 30 weights with a radial posterior; None where there is none."""
        return None

    def saved_and_loaded(self, bnn: nn.Module, net: Callable[[], nn.Module]) -> nn.Module:
        """The network's state_dict in a network that was built with another prior."""
        other = self.convert(net(), 1.0)
        other.load_state_dict(bnn.state_dict())
        return other


class Mcrepar(Library):
    """Ours."""

    package = "mcrepar"
    words = ("loc", "log_scale")
    free = staticmethod(lambda scale: torch.tensor(scale, dtype=torch.float64).log().item())
    scale = staticmethod(torch.exp)

    def convert(self, net: nn.Module, prior_scale: float) -> nn.Module:
        return mcrepar.bayesian(net, "normal", mcrepar.prior("normal", scale=prior_scale), forward="weights")

    def kl(self, bnn: nn.Module, x: Tensor) -> Tensor:
        return mcrepar.kl(bnn)

    def loss(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        return F.cross_entropy(bnn(x), y) + mcrepar.kl(bnn, "stats", draws) / DATA

    def prior_argument(self) -> tuple[Callable[..., Any], str]:
        return mcrepar.prior, "scale"

    def flipout(self, net: nn.Module) -> nn.Module | None:
        return mcrepar.bayesian(net, "normal", forward="flipout")

    def radial_norms(self, draws: int) -> Tensor | None:
        bnn = mcrepar.bayesian(nn.Linear(30, 20, bias=False), "radial", "normal", forward="weights")
        ((loc, free),) = self.learned(bnn)
        return torch.stack([((bnn.draw()["weight"] - loc) / self.scale(free)).norm() for _ in range(draws)])


class BayesianTorch(Library):
    """Layers for layers; M is a loop of forwards, as in its examples."""

    package = "bayesian-torch"

    def _convert(self, net: nn.Module, prior_scale: float, kind: str) -> nn.Module:
        convert = importlib.import_module("bayesian_torch.models.dnn_to_bnn").dnn_to_bnn
        options = {"prior_mu": 0.0, "prior_sigma": prior_scale, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        convert(net, {**options, "type": kind, "moped_enable": True, "moped_delta": 0.1})
        return net

    def convert(self, net: nn.Module, prior_scale: float) -> nn.Module:
        return self._convert(net, prior_scale, "Reparameterization")

    def kl(self, bnn: nn.Module, x: Tensor) -> Tensor:
        kl: Tensor = importlib.import_module("bayesian_torch.models.dnn_to_bnn").get_kl_loss(bnn)
        return kl

    def loss(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        outputs, divergences = zip(*((bnn(x), self.kl(bnn, x)) for _ in range(draws)), strict=True)
        return F.cross_entropy(torch.stack(outputs).mean(0), y) + torch.stack(divergences).mean() / DATA

    def closed(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        return self.loss(bnn, x, y, 1)

    def prior_argument(self) -> tuple[Callable[..., Any], str]:
        return importlib.import_module("bayesian_torch.layers").LinearReparameterization, "prior_variance"

    def flipout(self, net: nn.Module) -> nn.Module | None:
        return self._convert(net, 0.5, "Flipout")


class Blitz(Library):
    """Layers written by hand; M is `sample_nbr`, a loop of forwards."""

    package = "blitz-bayesian-pytorch"
    converts = False

    def convert(self, net: nn.Module, prior_scale: float) -> nn.Module:
        estimator = importlib.import_module("blitz.utils").variational_estimator

        class Whole(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Tensor) -> Tensor:
                return self.net(x)

        self._replace(net, prior_scale, lambda layer: layer)
        return estimator(Whole)()

    def _replace(self, net: nn.Module, prior_scale: float, wrap: Callable[[Any], Any]) -> None:
        layers = importlib.import_module("blitz.modules")
        prior = {"prior_sigma_1": prior_scale, "prior_pi": 1}
        for name, layer in list(net.named_children()):
            if isinstance(layer, nn.Linear):
                new = wrap(layers.BayesianLinear)(
                    layer.in_features, layer.out_features, layer.bias is not None, **prior
                )
            elif isinstance(layer, nn.Conv2d):
                options = {key: getattr(layer, key) for key in ("groups", "stride", "padding", "dilation")}
                new = wrap(layers.BayesianConv2d)(
                    layer.in_channels,
                    layer.out_channels,
                    layer.kernel_size,
                    bias=layer.bias is not None,
                    **options,
                    **prior,
                )
            else:
                self._replace(layer, prior_scale, wrap)
                continue
            new.weight_mu.data.copy_(layer.weight.data)
            if layer.bias is not None:
                new.bias_mu.data.copy_(layer.bias.data)
            setattr(net, name, new)

    def kl(self, bnn: nn.Module, x: Tensor) -> Tensor:
        bnn(x)
        kl: Tensor = bnn.nn_kl_divergence()
        return kl

    def loss(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        loss: Tensor = bnn.sample_elbo(x, y, F.cross_entropy, sample_nbr=draws, complexity_cost_weight=1 / DATA)
        return loss

    def prior_argument(self) -> tuple[Callable[..., Any], str]:
        return importlib.import_module("blitz.modules").BayesianLinear, "prior_sigma_1"

    def learned(self, bnn: nn.Module) -> Learned:
        """Those of its samplers: second parameters over the memory of the layer's own, which get no gradient."""
        layers = [m for m in bnn.modules() if hasattr(m, "weight_sampler")]
        samplers = [m.weight_sampler for m in layers] + [m.bias_sampler for m in layers if m.bias]
        return [(sampler.mu, sampler.rho) for sampler in samplers]

    def flipout(self, net: nn.Module) -> nn.Module | None:
        self._replace(net, 0.5, importlib.import_module("blitz.utils").Flipout)
        return net

    def radial_norms(self, draws: int) -> Tensor | None:
        radial = importlib.import_module("blitz.utils").Radial(importlib.import_module("blitz.modules").BayesianLinear)
        layer = radial(30, 20, bias=False)
        scale = F.softplus(layer.weight_rho)
        with torch.no_grad():
            moved = [layer(torch.eye(30)).T - layer.weight_mu for _ in range(draws)]
            return torch.stack([(w / scale).norm() for w in moved])


class TorchBayesian(Library):
    """Every parameter of a module; M is `approx_num_samples` of its KL."""

    package = "torchbayesian"

    def convert(self, net: nn.Module, prior_scale: float) -> nn.Module:
        bnn = importlib.import_module("torchbayesian.bnn")
        whole: nn.Module = bnn.BayesianModule(net, "PRETRAINED_NORMAL", ("NORMAL", {"mu": 0.0, "sigma": prior_scale}))
        return whole

    def kl(self, bnn: Any, x: Tensor) -> Tensor:
        kl: Tensor = bnn.kl_divergence()
        return kl

    def loss(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would rather take the closed form
            return F.cross_entropy(bnn(x), y) + bnn.kl_divergence(approx_num_samples=draws) / DATA

    def closed(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        return F.cross_entropy(bnn(x), y) + bnn.kl_divergence() / DATA

    def prior_argument(self) -> tuple[Callable[..., Any], str]:
        return importlib.import_module("torchbayesian.bnn.priors").GaussianPrior, "sigma"


class TorchBlue(Library):
    """Modules whose attributes are draws; M is `samples`, a vectorised forward."""

    package = "torch-blue"
    words = ("mean", "log_std")
    free = staticmethod(lambda scale: torch.tensor(scale, dtype=torch.float64).log().item())
    scale = staticmethod(torch.exp)

    def convert(self, net: nn.Module, prior_scale: float) -> nn.Module:
        vi = importlib.import_module("torch_blue.vi")
        convert = importlib.import_module("torch_blue.vi.utils.convert").convert_to_vimodule
        prior = importlib.import_module("torch_blue.vi.distributions").MeanFieldNormal(0.0, prior_scale)
        convert(net, keep_weights=True, prior=prior)
        assert isinstance(net, vi.VIModule)
        return net

    def forward(self, bnn: Any, x: Tensor) -> Any:
        out = bnn(x, samples=1)
        return tuple(part[0] for part in out) if isinstance(out, tuple) else out.as_subclass(Tensor)[0]

    def kl(self, bnn: Any, x: Tensor) -> Tensor:
        log_prior, log_posterior = bnn(x, samples=1).log_probs.reshape(-1, 2).mean(0)
        return log_posterior - log_prior

    def loss(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        vi = importlib.import_module("torch_blue.vi")
        categorical = importlib.import_module("torch_blue.vi.distributions").Categorical()
        loss: Tensor = vi.KullbackLeiblerLoss(categorical, DATA)(self._norms_fixed(bnn)(x, samples=draws), y)
        return loss / DATA

    def closed(self, bnn: Any, x: Tensor, y: Tensor, draws: int) -> Tensor:
        vi = importlib.import_module("torch_blue.vi")
        categorical = importlib.import_module("torch_blue.vi.distributions").Categorical()
        loss = vi.AnalyticalKullbackLeiblerLoss(self._norms_fixed(bnn), categorical, DATA)  # turns log probs off
        total: Tensor = loss(bnn(x, samples=1), y)
        return total / DATA

    def _norms_fixed(self, bnn: nn.Module) -> nn.Module:
        """Its vectorised forward cannot update running statistics: the norm layers are put in eval for the timing."""
        for layer in bnn.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        return bnn

    def prior_argument(self) -> tuple[Callable[..., Any], str]:
        return importlib.import_module("torch_blue.vi.distributions").MeanFieldNormal, "std"


LIBRARIES: dict[str, Library] = {
    "mcrepar": Mcrepar(),
    "bayesian-torch": BayesianTorch(),
    "blitz": Blitz(),
    "torchbayesian": TorchBayesian(),
    "torch_blue": TorchBlue(),
}
