"""Lightning: a module that trains any network by the ELBO, and a callback that logs what the posterior does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.likelihoods import Likelihood, likelihood_of
from mcrepar.nn.batches import Output
from mcrepar.nn.diagnose import Diagnosis
from mcrepar.nn.module import BayesianModule, bayesian, random_parts
from mcrepar.objective import Elbo, elbo
from mcrepar.optim import groups
from mcrepar.prediction import Prediction, predict
from mcrepar.validation import whole_number

try:
    from lightning.pytorch import Callback, LightningModule
except ImportError as error:
    raise ImportError("mcrepar.lightning needs lightning: pip install mcrepar[lightning]") from error


class BayesianLightningModule(LightningModule):  # type: ignore[misc]
    """A network, its likelihood and the ELBO as a LightningModule; batches are pairs (x, y) as `elbo` takes them.

    loss = nll + beta * KL(q || p) / data_size

    Validation and test log the negative log predictive density of y (`val_nll`, `test_nll`), which averages over draws
    of the weights, and the accuracy of classes.

    Args:
        net: a Bayesian neural network, or a plain one, which `bayesian` makes one with `options`.
        likelihood: of y: an object, or "categorical", "bernoulli", "normal"; a learned scale is trained too.
        data_size: the number of examples in the whole training set.
        beta: the weight of the KL, or a schedule of it by step, such as `kl_weight("linear", steps=1000)`.
        lr: of means; scales have ten times that (`mcrepar.optim.groups`).
        draws: of the weights, in a training step.
        eval_draws: of the weights, in validation, test and prediction.
        output: what to take of a network that returns more than a tensor.
        optimizer: from groups of parameters to an optimizer; None is Adam.
        options: of `bayesian`, where `net` is a plain network.

    >>> module = BayesianLightningModule(nn.Linear(2, 3), "categorical", data_size=100, posterior="normal")
    >>> loss = module.training_step((torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])), 0)
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | str,
        *,
        data_size: int,
        beta: float | Callable[[int], float] = 1.0,
        lr: float = 1e-3,
        draws: int = 1,
        eval_draws: int = 20,
        output: Output = None,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] = torch.optim.Adam,
        **options: Any,
    ) -> None:
        super().__init__()
        plain = not any(isinstance(part, BayesianModule) for part in net.modules())
        self.bnn = bayesian(net, **options) if plain or options else net
        self.likelihood = likelihood_of(likelihood)
        self.data_size, self.beta, self.lr = whole_number("data_size", data_size), beta, lr
        self.draws, self.eval_draws = whole_number("draws", draws), whole_number("eval_draws", eval_draws)
        self.output, self.optimizer = output, optimizer
        self.last: Elbo | None = None
        self.last_beta = math.nan  # of that step, after which global_step moves on

    def forward(self, x: Any) -> Any:
        """The network's output for one draw of the weights."""
        return self.bnn(x)

    @property
    def present_beta(self) -> float:
        """The weight of the KL at the present step."""
        return self.beta(self.global_step) if callable(self.beta) else self.beta

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """The loss of a batch."""
        assert self.likelihood is not None
        x, y = batch
        self.last_beta = self.present_beta
        self.last = elbo(
            self.bnn,
            self.likelihood,
            x,
            y,
            self.data_size,
            beta=self.last_beta,
            draws=self.draws,
            output=self.output,
        )
        self._note("train_loss", self.last.loss.detach(), len(y))
        return self.last.loss

    def validation_step(self, batch: Any, batch_idx: int = 0) -> None:
        """Log val_nll and, for classes, val_accuracy."""
        self._score("val", batch)

    def test_step(self, batch: Any, batch_idx: int = 0) -> None:
        """Log test_nll and, for classes, test_accuracy."""
        self._score("test", batch)

    def predict_step(self, batch: Any, batch_idx: int = 0) -> dict[str, Tensor]:
        """Of a batch, with or without its y: mean and std; of classes label, entropy and mutual_information too."""
        p = self.prediction(batch[0] if isinstance(batch, tuple | list) else batch)
        words = ("label", "entropy", "mutual_information") if p.classes is not None else ()
        return {name: getattr(p, name) for name in ("mean", "std", *words)}

    def prediction(self, x: Any) -> Prediction:
        """The whole predictive distribution, as `mcrepar.predict` gives it."""
        return predict(self.bnn, x, self.eval_draws, likelihood=self.likelihood, output=self.output)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer, with a learning rate of their own for scales."""
        assert self.likelihood is not None
        noise = list(self.likelihood.parameters())
        return self.optimizer([*groups(self.bnn, self.lr), *([{"params": noise, "lr": self.lr}] if noise else [])])

    def _score(self, stage: str, batch: Any) -> None:
        p, y = self.prediction(batch[0]), batch[1].cpu()
        log_prob = p.log_prob(y)
        told = ~log_prob.isnan()  # of voxels that y leaves out there is nothing to say
        self._note(f"{stage}_nll", -log_prob[told].mean(), len(y))
        if p.classes is not None and not (y.is_floating_point() and y.dim() == p.probs.dim()):  # no soft labels
            self._note(f"{stage}_accuracy", (p.label == y)[told].double().mean(), len(y))

    def _note(self, name: str, value: Tensor, size: int) -> None:
        if self._trainer is not None:  # there is none where a step is called by hand
            self.log(name, value.float(), prog_bar=True, batch_size=size, sync_dist=name != "train_loss")


class PosteriorMonitor(Callback):  # type: ignore[misc]
    """Logs nll, kl and beta of every step, and of every epoch what `diagnose` finds.

    diagnose/effective: the effective number of random weights; diagnose/moved: the mean change of log scales;
    diagnose/at_prior: the share of weights that say what their prior says.

    Args:
        every_n_epochs: how often the diagnosis is made.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        super().__init__()
        self.every_n_epochs = whole_number("every_n_epochs", every_n_epochs)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log nll, kl and beta."""
        if not isinstance(pl_module, BayesianLightningModule):
            kind = type(pl_module).__name__
            raise ParameterError(f"PosteriorMonitor with a {kind}", "it has no ELBO", "a BayesianLightningModule")
        assert pl_module.last is not None
        last = pl_module.last
        pl_module.log_dict({"nll": last.nll.detach(), "kl": last.kl.detach(), "beta": pl_module.last_beta})

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the diagnosis."""
        if (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        parts = random_parts(pl_module.bnn)
        found = Diagnosis(tuple(tensor for part in parts for tensor in part.diagnose().tensors))
        told = {name: getattr(found, name) for name in ("effective", "moved", "at_prior")}
        known = {f"diagnose/{name}": float(value) for name, value in told.items() if value is not None}
        pl_module.log_dict(known)
