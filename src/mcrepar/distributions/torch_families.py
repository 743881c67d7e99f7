"""Every family of posteriors as a torch.distributions.Distribution: one class per row of the table, written by none."""

from __future__ import annotations

import math
from importlib import import_module
from inspect import Parameter as Argument
from inspect import Signature
from typing import Any, ClassVar

import torch
import torch.distributions as td
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from mcrepar.distributions.forms import Form, expand
from mcrepar.distributions.parameters import HALF_LINE, LINE, POSITIVE, REAL, WHOLE, Interval, Parameter
from mcrepar.distributions.posterior import LEARNED, Posterior, PosteriorRow, free_tensors
from mcrepar.distributions.posteriors import POSTERIORS, posterior
from mcrepar.distributions.priors import PRIORS
from mcrepar.errors import ParameterError

_at_least: Any = constraints.greater_than_eq
_independent: Any = constraints.independent
_CONSTRAINTS = {REAL: constraints.real, POSITIVE: constraints.positive, WHOLE: constraints.positive_integer}


class Family(td.Distribution):
    """A family of `POSTERIORS`, W = f(loc + scale * xi), as torch.distributions has it.

    A weight is an element of the batch; a joint family (Radial) has its whole tensor as one event, and `expand` makes
    independent copies of it. `torch.distributions.kl_divergence(q, p)` takes any of them as q, any distribution as p.

    >>> from mcrepar.distributions import Laplace, Radial
    >>> q = Laplace(torch.zeros(3), 2.0)
    >>> q.rsample((5,)).shape, q.log_prob(torch.zeros(3)).shape, q.mean
    (torch.Size([5, 3]), torch.Size([3]), tensor([0., 0., 0.]))
    >>> Radial(torch.zeros(3), 1.0).log_prob(torch.ones(5, 3)).shape, Radial(torch.zeros(3), 1.0).event_shape
    (torch.Size([5]), torch.Size([3]))
    >>> td.kl_divergence(q, td.Laplace(0.0, 1.0))
    tensor([0.3069, 0.3069, 0.3069])
    """

    row: ClassVar[PosteriorRow]
    has_rsample = True
    posterior: Posterior

    def __init__(self, *args: Any, validate_args: bool | None = None, **parameters: Any) -> None:
        asked = f"{type(self).__name__}{type(self).__signature__}"  # type: ignore[attr-defined]
        try:
            given = type(self).__signature__.bind(*args, **parameters).arguments  # type: ignore[attr-defined]
        except TypeError as error:
            raise ParameterError(f"{type(self).__name__}(...)", str(error), asked) from None
        tensors = [name for name in ("loc", "scale") if name in given]
        given |= dict(zip(tensors, broadcast_all(*(given[n] for n in tensors)), strict=True))
        self._take(posterior(self.row.name, **given), torch.Size(), validate_args)

    @classmethod
    def of(cls, q: Posterior) -> Family:
        """The distribution of a posterior with learned tensors, of whatever family."""
        made = FAMILIES[_class_name(q.name)]
        assert issubclass(made, Family)
        new = made.__new__(made)
        new._take(q, torch.Size(), False)
        return new

    def _take(self, q: Posterior, copies: torch.Size, validate_args: bool | None) -> None:
        """Become the distribution of a posterior; `copies`: the batch of a joint one."""
        self.posterior = q
        batch, event = (copies, q.shape) if q.noise.joint else (q.shape, torch.Size())
        values = {name: getattr(q, name) for name in self.row.learned} | dict(q.fixed)
        for name, value in values.items():
            known = None if value is None else torch.as_tensor(value, dtype=q.dtype, device=q.device)
            setattr(self, name, known if known is None else known.expand(batch + event))
        super().__init__(batch, event, validate_args)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """Where the density is positive."""
        interval = self.row.support
        bounds: dict[Interval, Any] = {LINE: constraints.real, HALF_LINE: constraints.positive}
        single: constraints.Constraint = bounds.get(interval) or _at_least(interval.lower)
        events = len(self.event_shape)
        whole: constraints.Constraint = _independent(single, events)
        return whole if events else single

    @property
    def mean(self) -> Tensor:
        """E W; infinite where it does not exist."""
        return self._spread(self.posterior.mean)

    @property
    def variance(self) -> Tensor:
        """The variance of every weight; infinite where it does not exist."""
        return self._spread(self.posterior.variance.to(self.posterior.dtype))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Weights that are differentiable in loc and scale."""
        q, shape = self.posterior, self._extended_shape(torch.Size(sample_shape))
        rows = math.prod(shape[: len(shape) - len(self.event_shape)]) if q.noise.joint else 1
        xi = q.noise.draw(rows, math.prod(shape) // max(rows, 1), dtype=q.dtype, device=q.device)
        return q.weights(xi.reshape(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(w): of every weight, or of every event of a joint family."""
        if self._validate_args:
            self._validate_sample(value)
        wide, _ = torch.broadcast_tensors(value, self._spread(value.new_empty(())))  # type: ignore[no-untyped-call]
        return self.posterior.log_prob(wide)

    def entropy(self) -> Tensor:
        """H = H0 + log scale + E log f'(v), in nats: of every weight, or of the event of a joint family."""
        q = self.posterior
        each: Tensor = q.log_scale + _mean_log_slope(q)
        if not q.noise.joint:
            return each + q.noise.entropy()
        return (each.sum(dtype=torch.float64) + q.noise.entropy()).to(q.dtype).expand(self.batch_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """The same with another batch; of a joint family independent copies."""
        shape, q = torch.Size(batch_shape), self.posterior
        new = type(self).__new__(type(self)) if _instance is None else _instance
        if not q.noise.joint:
            loc = q.fixed.get("loc")
            fixed = {**q.fixed, "loc": loc.expand(shape)} if isinstance(loc, Tensor) else q.fixed
            q = q.bind(False, fixed, **{n: t.expand(shape) for n, t in free_tensors(q).items()})
        new._take(q, shape if q.noise.joint else torch.Size(), False)
        new._validate_args = self._validate_args
        return new

    def _spread(self, x: Tensor) -> Tensor:
        return x.expand(self.batch_shape + self.event_shape)


_register: Any = td.register_kl


@_register(Family, td.Distribution)  # type: ignore[untyped-decorator]
def _kl(q: Family, p: td.Distribution) -> Tensor:
    """Known to torch as soon as the families are; how it is computed is imported when it is first asked for."""
    value: Tensor = import_module("mcrepar.divergence.torch_kl").kl(q, p)
    return value


def _mean_log_slope(q: Posterior) -> Any:
    """E log f'(v), v = loc + scale * xi, weight by weight."""
    if q.form.outer.slope is None:
        return 0.0
    coefficient, statistic = q.form.outer.slope
    entries = expand(statistic, Form(q.form.learned_loc), q.fixed_loc, 0.0, q.noise.positive)
    assert entries is not None
    return coefficient * sum(
        e.factor * q.loc**e.loc_power * q.scale**e.scale_power * q.log_scale**e.log_power * q.noise.moment(e.tau)
        for e in entries
    )


def _class_name(name: str) -> str:
    """As torch spells it: inverse_gamma -> InverseGamma, lognormal -> LogNormal."""
    parts = [name[:3], name[3:]] if name[3:] in POSTERIORS else name.split("_")
    return "".join(part.capitalize() for part in parts)


def _constraint(parameter: Parameter) -> Any:
    return constraints.dependent if parameter.optional else _CONSTRAINTS[parameter.constraint]


def _made(row: PosteriorRow) -> type[Family]:
    """The class of a row."""
    learned = [LEARNED[name] for name in row.learned]
    kind = Argument.POSITIONAL_OR_KEYWORD
    arguments = [
        *(Argument(p.name, kind) for p in learned),
        *(Argument(p.name, kind, default=p.default) for p in row.fixed),
    ]
    name, words = _class_name(row.name), ", ".join(str(a) for a in arguments)
    noise = posterior(row.name).noise.label
    return type(
        name,
        (Family,),
        {
            "row": row,
            "arg_constraints": {p.name: _constraint(p) for p in (*learned, *row.fixed)},
            "__doc__": f"{name}({words}): mcrepar.posterior({row.name!r}) as torch.distributions has it, xi ~ {noise}.",
            "__module__": "mcrepar.distributions",
            "__signature__": Signature(arguments),
        },
    )


# Priors that are no posterior are torch's own classes, where it has them.
FAMILIES: dict[str, type[td.Distribution]] = {
    **{cls.__name__: cls for cls in map(_made, POSTERIORS.values())},
    **{row.like.__name__: row.like for row in PRIORS.values() if row.like is not None and row.name not in POSTERIORS},
}
