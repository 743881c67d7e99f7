"""Likelihoods of classes: one of many, yes or no, and Normal logits in the place of one of many."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mcrepar.distributions.quadrature import normal_nodes
from mcrepar.likelihoods.likelihood import Likelihood, log_prob_of_square, summed, wide
from mcrepar.validation import real_number

TILTS = 3
LEFT_OUT = 255  # in a y of uint8, a voxel that does not count


def expected_normaliser(mean: Tensor, variance: Tensor) -> Tensor:
    """An upper bound of E log sum_c exp(u_c) for independent Normal u_c, with the classes in dimension 1.

    1/2 sum_c a_c^2 v_c + log sum_c exp(m_c + (1/2 - a_c) v_c), for any a (Knowles and Minka 2011)

    a = 0 is Jensen's inequality. The best a solves a = softmax(m + (1/2 - a) v), towards which TILTS steps go. Other
    symmetric u have the bound with v = 2 K(1), where K(t) = log E exp(t (u - m)) has a K(t) / t^2 that does not fall in
    t <= 1: sums of Laplace and of Logistic variables.
    """
    a = mean.softmax(1)
    for _ in range(TILTS):
        a = 0.5 * (a + torch.softmax(mean + (0.5 - a) * variance, 1))
    bound = 0.5 * (a.square() * variance).sum(1) + torch.logsumexp(mean + (0.5 - a) * variance, 1)
    return torch.minimum(bound, torch.logsumexp(mean + 0.5 * variance, 1))  # large variances need more steps


class Categorical(Likelihood):
    """One of C classes, with the class dimension 1 as in F.cross_entropy: (batch, C, ...) for a y of (batch, ...).

    log p(y | u) = u_y - log sum_c exp(u_c), its mean over a soft label: a y of floats, (batch, C, ...), which sum to 1
    over the classes (mixup, label smoothing)

    >>> Categorical().log_prob(torch.zeros(2, 4), torch.tensor([0, 3])).exp()
    tensor([0.2500, 0.2500])
    """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        target = y.to(output.dtype) if y.is_floating_point() else y.long()
        return -summed(F.cross_entropy(output, target, reduction="none"))

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """m_y - E log sum_c exp(u_c), the latter by a bound for Normal outputs; of a network it is an approximation."""
        picked = (y.to(mean.dtype) * mean).sum(1) if y.is_floating_point() else mean.gather(1, y.long()[:, None])[:, 0]
        return summed(picked - expected_normaliser(mean, variance))

    def probs(self, output: Tensor) -> Tensor:
        logits = wide(output)
        if logits.dim() > 2:
            return logits.softmax(1)
        return logits.t().contiguous().softmax(0).t()  # rows of ten numbers take a CPU 20 times as long as columns

    def _check_output(self, output: Tensor) -> None:
        if output.dim() < 2:
            self._refuse(f"output has the shape {tuple(output.shape)}", "an output of (batch, classes, ...)")

    def _check(self, output: Tensor, y: Tensor) -> None:
        if y.is_floating_point() and y.dim() == output.dim():
            return self._check_soft(output, y)
        if y.is_floating_point() or y.dtype == torch.bool:
            soft = f"probabilities of shape {tuple(output.shape)}"
            self._refuse(f"y has dtype {y.dtype}", f"class numbers of an integer dtype, or {soft}")
        self._check_shape((output.shape[0], *output.shape[2:]), y, output)
        classes = output.shape[1]
        return self._refuse_if(
            lambda: ((y < 0) | (y >= classes)).any(),
            lambda: f"y lies between {int(y.min())} and {int(y.max())}, and there are {classes} classes",
            f"0 to {classes - 1}",
            "y is no class",
        )

    def _check_soft(self, output: Tensor, y: Tensor) -> None:
        self._check_shape(tuple(output.shape), y, output)
        sums = wide(y).sum(1)
        self._refuse_if(
            lambda: (y < 0).any() | ((sums - 1).abs() > 1e-2).any(),  # halves sum to 1 with such an error
            lambda: (
                f"soft labels lie above {float(y.min()):g} and sum to {float(sums.min()):g} up to {float(sums.max()):g}"
            ),
            "probabilities that sum to 1 over dimension 1",
            "the soft labels of y are no probabilities",
        )


class PerVoxel(Categorical):
    """One of C classes for every voxel, each of which counts as an example: (batch, C, *size) for y (batch, *size).

    log p(y_v | u_v) = u_v,y - log sum_c exp(u_v,c), voxel by voxel: (batch * voxels,)

    The model is that voxels are independent given image and weights, so log p(y | image, W) is the sum over its voxels.
    `elbo` takes the mean over the voxels of a batch, and `data_size` is the number of voxels of all training images:
    the loss is then the negative ELBO per voxel, whatever the size of the patches. A y of floats, (batch, C, *size), is
    a label (one-hot or soft) times the weight of its voxel, by which patches can weigh voxels alike that they hold
    more or less often. In a y of uint8, voxels of the value 255 are left out.

    >>> PerVoxel().log_prob(torch.zeros(1, 4, 2, 2), torch.zeros(1, 2, 2, dtype=torch.int64)).exp()
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        if y.dtype == torch.uint8:
            return -F.cross_entropy(output, y.long(), ignore_index=LEFT_OUT, reduction="none")[y != LEFT_OUT]
        target = y.to(output.dtype) if y.is_floating_point() else y.long()
        return -F.cross_entropy(output, target, reduction="none").flatten()

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """The same bound, voxel by voxel, with the weights of a y of floats."""
        normaliser = expected_normaliser(mean, variance)
        if y.is_floating_point():
            return ((y.to(mean.dtype) * mean).sum(1) - y.to(mean.dtype).sum(1) * normaliser).flatten()
        kept = y != LEFT_OUT if y.dtype == torch.uint8 else torch.ones_like(y, dtype=torch.bool)
        return (mean.gather(1, torch.where(kept, y, 0).long()[:, None])[:, 0] - normaliser)[kept]

    def examples(self, y: Tensor) -> int:
        """All voxels; where some may be left out or weigh less, only the images are known to count."""
        return len(y) if y.is_floating_point() or y.dtype == torch.uint8 else y.numel()

    def _check(self, output: Tensor, y: Tensor) -> None:
        super()._check(output, torch.where(y == LEFT_OUT, 0, y) if y.dtype == torch.uint8 else y)

    def _check_output(self, output: Tensor) -> None:
        if output.dim() < 3:
            shape = f"output has the shape {tuple(output.shape)}, a class for a whole image"
            self._refuse(shape, "a network of (batch, classes, *size), such as unet2d or unet3d")

    def _check_soft(self, output: Tensor, y: Tensor) -> None:
        self._check_shape(tuple(output.shape), y, output)
        self._refuse_if(
            lambda: ~((y >= 0) & y.isfinite()).all(),
            lambda: f"weights of labels lie between {float(y.min()):g} and {float(y.max()):g}",
            "weights of at least 0",
            "the weights of labels are negative or not finite",
        )


class Bernoulli(Likelihood):
    """Yes or no for every output, which is a logit: y in {0, 1}, or in [0, 1] as grey values of an autoencoder.

    log p(y | u) = y u - log(1 + exp(u))

    >>> Bernoulli().log_prob(torch.zeros(1, 3), torch.ones(1, 3)).exp()
    tensor([0.1250])
    """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return -summed(F.binary_cross_entropy_with_logits(output, y.to(output.dtype), reduction="none"))

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """y m - E log(1 + exp(u)), by 20 nodes of Gauss and Hermite."""
        std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        softplus = sum(weight * F.softplus(mean + x * std) for x, weight in normal_nodes(20))
        return summed(y.to(mean.dtype) * mean - softplus)

    def probs(self, output: Tensor) -> Tensor:
        """The probability of y = 1, output by output; that of y = 0 is `probs(-output)`, which does not cancel."""
        return wide(output).sigmoid()

    def aleatoric(self, output: Tensor) -> Tensor:
        return self.probs(output) * self.probs(-output)

    def _check(self, output: Tensor, y: Tensor) -> None:
        self._check_shape(tuple(output.shape), y, output)
        self._refuse_if(
            lambda: ((y < 0) | (y > 1)).any(),
            lambda: f"y lies between {float(y.min()):g} and {float(y.max()):g}",
            "values between 0 and 1",
            "y is not between 0 and 1",
        )


class NoisyDirichlet(Likelihood):
    """One of C classes, by Normal logits: the logarithms of Gamma variables whose shares are Dirichlet.

    sum_c log N(u_c; log a_c - z_c / 2, z_c), a_c = 1[y = c] + epsilon, z_c = log(1 + 1 / a_c)

    It is the objective alone: predictions are E softmax(u), and their log_prob is that of the class, to be compared.

    Args:
        epsilon: what every class has in the place of 0.

    >>> NoisyDirichlet().log_prob(torch.tensor([[0.0, -5.0], [-5.0, 0.0]]), torch.tensor([0, 0]))
    tensor([ -2.8932, -23.4099])
    """

    def __init__(self, epsilon: float = 0.01) -> None:
        super().__init__()
        self.epsilon = real_number("NoisyDirichlet with epsilon", epsilon, 0, instead="a number such as 0.01")

    @property
    def options(self) -> dict[str, float | str]:
        """Epsilon."""
        return {"epsilon": self.epsilon}

    def target(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """log a - z / 2 and log(z) / 2, of a class or of a soft label."""
        shares = y
        if not y.is_floating_point():
            shares = F.one_hot(y.long(), output.shape[1]).movedim(-1, 1)
        a = shares + self.epsilon
        z = torch.log1p(1 / a)
        return (a.log() - 0.5 * z).to(output.dtype), (0.5 * z.log()).to(output.dtype)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        target, log_scale = self.target(output, y)
        return log_prob_of_square((target - output).square(), log_scale)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Exact: it is quadratic in the output."""
        target, log_scale = self.target(mean, y)
        return log_prob_of_square((target - mean).square() + variance, log_scale)

    def probs(self, output: Tensor) -> Tensor:
        return Categorical().probs(output)

    def _check_output(self, output: Tensor) -> None:
        Categorical().check_output(output)

    def _check(self, output: Tensor, y: Tensor) -> None:
        Categorical().check(output, y)


OneOfMany = Categorical | NoisyDirichlet  # a y that is one of C classes, the dimension 1 of the output
