"""Bayesian neural networks as scikit-learn estimators: a classifier and a regressor for pipelines and searches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.kl_schedules import beta_number
from mcrepar.likelihoods import Categorical, Likelihood, Normal
from mcrepar.nn.module import bayesian
from mcrepar.nn.module import kl as total_kl
from mcrepar.objective import loss_of
from mcrepar.optim import groups
from mcrepar.prediction import Prediction, predict
from mcrepar.validation import real_number, whole_number

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("mcrepar.sklearn needs scikit-learn 1.6 or later: pip install mcrepar[sklearn]") from error

LEAST_STEPS, LEAST_EPOCHS = 1000, 20  # of a training whose length was not asked for
CYCLE_SCALE_RATE = 5.0  # the learning rate of log scales over that of means
WARMUP = 0.2  # the share of steps in which the learning rate rises


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: preparation of data, training by the ELBO at beta = 1, and draws."""

    def __init__(
        self,
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        *,
        hidden: Sequence[int] = (50,),
        posterior: str = "normal",
        prior: Any = None,
        forward: str = "auto",
        structure: str = "weights",
        beta: float = 1.0,
        steps: int | None = None,
        batch_size: int = 100,
        lr: float = 1e-2,
        draws: int | str = 100,
        standardize: bool = True,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.posterior = posterior
        self.prior = prior
        self.forward = forward
        self.structure = structure
        self.beta = beta
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr
        self.draws = draws
        self.standardize = standardize
        self.device = device
        self.random_state = random_state

    def _read(self, X: Any, **options: Any) -> Any:
        """The input as an array of real numbers, checked as scikit-learn does."""
        return validate_data(self, X, dtype=[np.float64, np.float32], allow_nd=self.module is not None, **options)

    def _learn(self, x: Any, y: Tensor, outputs: int, likelihood: Likelihood, weight: Any) -> Self:
        """Standardise, build and train; without an effect on the global random numbers."""
        self._check()
        weights = _counts(weight, x)
        used = weights > 0
        x, y, weights = x[used], y[torch.from_numpy(used)], weights[used]
        self.x_mean_, self.x_scale_ = self._standard(x, weights)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.likelihood_ = likelihood
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            net = self._network(x, outputs)
            self.bnn_ = bayesian(
                net, self.posterior, self.prior, forward=self.forward, structure=self.structure
            ).to(self.device)  # fmt: skip
            self.likelihood_.to(self.device)
            self._train(self._prepared(x), y.to(self.device), torch.tensor(weights, device=self.device))
        return self

    def _standard(self, values: Any, weights: Any) -> tuple[Any, Any]:
        """Weighted mean and standard deviation of columns, the latter 1 of a constant; 0 and 1 where none is wanted."""
        if not self.standardize:
            return np.zeros(values.shape[1:]), np.ones(values.shape[1:])
        mean = np.average(values, 0, weights)
        std = np.sqrt(np.average((values - mean) ** 2, 0, weights))
        rounding = len(values) * np.finfo(np.float64).eps * np.abs(mean)
        return mean, np.where(std > rounding, std, 1.0)

    def _check(self) -> None:
        """Refuse options that no training has, before it begins."""
        beta_number("beta", self.beta)
        whole_number("batch_size", self.batch_size)
        if self.draws != "moments":
            whole_number("draws", self.draws)
        if self.steps is not None:
            whole_number("steps", self.steps)
        real_number("lr", self.lr, 0, closed=True, instead="a number such as 0.01")
        hidden: Any = self.hidden
        if not isinstance(hidden, Sequence) and np.ndim(hidden) != 1:
            why = f"it is of type {type(hidden).__name__}, not a width for every hidden layer"
            raise ParameterError(f"hidden={hidden!r}", why, "a list such as (50,) or, for no hidden layer, ()")
        for width in hidden:
            whole_number("hidden", width)
        if self.module is not None and not callable(self.module):
            what = f"module of type {type(self.module).__name__}"
            raise ParameterError(what, "it is no network", "an nn.Module, or a function (inputs, outputs) -> nn.Module")

    def _network(self, x: Any, outputs: int) -> nn.Module:
        net = self._made(x, outputs)
        what = f"fit with the module {type(net).__name__}"
        if not isinstance(net, nn.Module):
            raise ParameterError(what, "it is no network", "a function (inputs, outputs) -> nn.Module")
        like = next((p for p in net.parameters() if p.is_floating_point()), None)
        if self.module is not None and like is not None:
            net.eval()
            example = torch.tensor(x[:1]).to(like)
            try:
                with torch.no_grad():
                    out = net(example)
            except (RuntimeError, TypeError, IndexError) as error:
                why = f"it cannot take an example of shape {x.shape[1:]} ({error})"
                raise ParameterError(what, why, "a network of one tensor, examples of this shape") from error
            net.train()
            if not isinstance(out, Tensor):
                raise ParameterError(what, f"it returns a {type(out).__name__}", "a network that returns one tensor")
            if out.shape != (1, outputs):
                why = f"it gives {tuple(out.shape)[1:]} numbers for an example, and {outputs} are needed"
                raise ParameterError(what, why, f"a network with {outputs} outputs")
        return net

    def _made(self, x: Any, outputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        inputs = math.prod(x.shape[1:])
        if self.module is not None:
            return self.module(inputs, outputs)
        widths = [inputs, *self.hidden]
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs)).double()

    def _prepared(self, x: Any) -> Tensor:
        like = next(p for p in self.bnn_.parameters() if p.is_floating_point())
        return torch.tensor((x - self.x_mean_) / self.x_scale_).to(like)

    def _train(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Adam with a one-cycle schedule on mean_i w_i nll_i / mean w + beta KL / sum w."""
        count, size = len(x), min(self.batch_size, len(x))
        steps = max(LEAST_STEPS, LEAST_EPOCHS * -(-count // size)) if self.steps is None else self.steps
        parts = [*groups(self.bnn_, self.lr, CYCLE_SCALE_RATE * self.lr)]
        parts += [{"params": list(self.likelihood_.parameters()), "lr": self.lr}] if any(
            True for _ in self.likelihood_.parameters()) else []  # fmt: skip
        optimizer = torch.optim.Adam(parts)
        rates = [part["lr"] for part in parts]
        rise = WARMUP if WARMUP * (steps + 1) > 1 else 0.0  # in so few steps there is none in which it could rise
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rates, steps + 1, pct_start=rise, cycle_momentum=False
        )  # fmt: skip
        total, relative = float(weight.sum()), (weight / weight.mean()).to(x.dtype)
        y = y.to(x.dtype) if y.is_floating_point() else y
        self.bnn_.train()
        order, first = torch.randperm(count, device=x.device), 0
        for _ in range(steps):
            if first + size > count:
                order, first = torch.randperm(count, device=x.device), 0
            index = order[first : first + size]
            first += size
            optimizer.zero_grad()
            log_prob = self.likelihood_.log_prob(self.bnn_(x[index]), y[index])
            loss = loss_of(-(relative[index] * log_prob).mean(), total_kl(self.bnn_), total, self.beta)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        self.bnn_.eval()
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.bnn_.modules()):
            self.bnn_.calibrate(x[order[:256]])

    def prediction(self, X: Any) -> Prediction:
        """The whole predictive distribution of some examples, to act upon: `conformal`, `plot`, `log_prob`, ...

        Args:
            X: (examples, features).
        """
        check_is_fitted(self)
        x = self._prepared(self._read(X, reset=False))
        rng = torch.Generator().manual_seed(self.seed_)  # the same draws every time
        return predict(self.bnn_, x, self.draws, likelihood=self.likelihood_, generator=rng)


def _counts(weight: Any, x: Any) -> Any:
    """How many examples each stands for, checked as scikit-learn does."""
    return _check_sample_weight(weight, x, dtype=np.float64, ensure_non_negative=True)


class BayesianClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A Bayesian neural network that predicts classes, with the interface of scikit-learn.

    Inputs are standardised; the network is trained by the ELBO at beta = 1 with a hierarchical prior relative to the
    number of inputs of a unit, and local reparameterization; probabilities are means over draws of the weights.

    Args:
        module: an nn.Module from (batch, features) to (batch, classes), which is copied, or a function
            (inputs, outputs) -> nn.Module; None is dense layers with ReLU.
        hidden: the widths of the hidden layers, where there is no module.
        posterior: as for `mcrepar.bayesian`.
        prior: likewise; None is the hierarchical one for weights, and "normal" around 1 for rank-1 factors.
        forward: likewise.
        structure: likewise, "weights" or "rank1".
        beta: the weight of the KL.
        steps: of the optimizer; None is 1,000, or 20 epochs where those are more.
        batch_size: examples of a step.
        lr: the peak of the one-cycle schedule for means; scales have five times that.
        draws: of the weights, in a prediction; "moments" is one pass without sampling.
        standardize: whether inputs (and the targets of a regression) are brought to mean 0 and standard deviation 1.
        device: where the network is.
        random_state: a seed, a numpy RandomState or None; global random numbers are left alone.

    Attributes:
        classes_: the classes.
        bnn_: the trained network, for `mcrepar.save`, `bnn_.diagnose()` and all else.
        likelihood_: of y given its output.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = BayesianClassifier(steps=50, draws=10, random_state=0).fit(X, X[:, 0] > 0)
    >>> model.predict_proba(X).shape, model.prediction(X).mutual_information.shape
    ((60, 2), torch.Size([60]))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train.

        Args:
            X: (examples, features).
            y: classes of any type, (examples,).
            sample_weight: how many examples each stands for.
        """
        X, y = self._read(X, y=y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ParameterError("fit(X, y)", "y has only one class", "examples of at least two classes")
        return self._learn(X, torch.from_numpy(labels), len(self.classes_), Categorical(), sample_weight)

    def predict_proba(self, X: Any) -> Any:
        """The probabilities of the classes, (examples, classes)."""
        return self.prediction(X).probs.double().numpy()

    def predict(self, X: Any) -> Any:
        """The most probable class, (examples,)."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]


class BayesianRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A Bayesian neural network that predicts numbers, with the interface of scikit-learn.

    As `BayesianClassifier`, whose arguments it has; targets are standardised too, and the noise of y is learned. A
    module returns (batch, targets).

    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 80)[:, None]
    >>> model = BayesianRegressor(steps=50, draws=10, random_state=0).fit(X, 3 * X[:, 0])
    >>> mean, std = model.predict(X, return_std=True)
    >>> lower, upper = model.predict_interval(X, level=0.9)
    >>> mean.shape, bool((lower < upper).all())
    ((80,), True)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train.

        Args:
            X: (examples, features).
            y: numbers, (examples,) or (examples, targets).
            sample_weight: how many examples each stands for.
        """
        X, y = self._read(X, y=y, multi_output=True, y_numeric=True)
        self.single_ = y.ndim == 1
        targets = np.asarray(y, np.float64).reshape(len(y), -1)
        weights = _counts(sample_weight, X)
        self.y_mean_, self.y_scale_ = self._standard(targets, weights)
        scaled = torch.from_numpy((targets - self.y_mean_) / self.y_scale_)
        return self._learn(X, scaled, targets.shape[1], Normal("learned"), weights)

    def prediction(self, X: Any) -> Prediction:
        """The whole predictive distribution, in the units of y, (examples, targets)."""
        p = super().prediction(X)
        mean, scale = (torch.tensor(a).to(p.mean) for a in (self.y_mean_, self.y_scale_))
        kept = None if p.kept is None else mean + scale * p.kept
        noise = None if p.noise is None else scale**2 * p.noise
        aleatoric, epistemic = scale**2 * p.aleatoric, scale**2 * p.epistemic
        moved = mean + scale * p.mean
        return replace(p, mean=moved, aleatoric=aleatoric, epistemic=epistemic, kept=kept, noise=noise)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of y, (examples,); with `return_std` also its standard deviation, noise included."""
        p = self.prediction(X)
        return (self._shaped(p.mean), self._shaped(p.std)) if return_std else self._shaped(p.mean)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Any, Any]:
        """The ends of the central interval that holds y with this probability, noise included."""
        lower, upper = self.prediction(X).interval(level)
        return self._shaped(lower), self._shaped(upper)

    def _shaped(self, values: Tensor) -> Any:
        array = values.double().numpy()
        return array[:, 0] if self.single_ else array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags
