"""Every experiment that can be reproduced: one row per name; importing this imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from mcrepar.errors import ParameterError

if TYPE_CHECKING:
    from experiments.experiment import Experiment


@dataclass(frozen=True)
class ExperimentRow:
    """An experiment by name.

    Args:
        module: of this package, whose EXPERIMENT it is.
        summary: one line.
    """

    module: str
    summary: str

    @property
    def experiment(self) -> Experiment:
        """The experiment, imported when it is asked for."""
        made: Experiment = import_module(f"experiments.{self.module}").EXPERIMENT
        return made


EXPERIMENTS: Mapping[str, ExperimentRow] = MappingProxyType(
    {
        "fig1": ExperimentRow("fig1", "the time of a batch: gradient accumulation and ours, all networks"),
        "fig2-left": ExperimentRow("fig2_left", "the error of the KL against M, for four posterior variances"),
        "fig2-right": ExperimentRow(
            "fig2_right", "the largest M that fits into a memory, direct and ours, per network"
        ),
        "fig4": ExperimentRow("fig4", "the autograd graphs of both estimates, for M = 1, 3 and 100"),
        "table1": ExperimentRow("table1", "the 158 pairs of Table 1: verdicts, each checked with numbers"),
        "taylor": ExperimentRow("taylor", "the Taylor fallback: coefficients, error against degree, divergence"),
        "variance": ExperimentRow("variance", "the variance of the KL and of its gradient, for all methods"),
        "likelihood": ExperimentRow("likelihood", "the variance of the likelihood against batch and last-layer draws"),
        "fig6": ExperimentRow("fig6", "memory and time at the largest direct M, direct and ours"),
        "fig7": ExperimentRow("fig7", "confidence sets on CIFAR-10; deterministic, Gaussian, published noise"),
        "fig8-left": ExperimentRow("fig8_left", "the accuracy of confidence sets, M = 1, 17, 100 and exact"),
        "fig8-right": ExperimentRow("fig8_right", "the spread of the confidence set's size, M = 1 against 100"),
        "table2": ExperimentRow("table2", "the 3D classifier's accuracy by confidence, M = 1 against 100"),
        "convergence": ExperimentRow("convergence", "training curves and their spread over seeds, against M"),
    }
)


def find(name: str) -> Experiment:
    """The experiment of this name.

    Args:
        name: a key of EXPERIMENTS, in any case.

    >>> find("fig2-left").where
    'Figure 2, left'
    """
    row = EXPERIMENTS.get(str(name).lower())
    if row is None:
        asked = str(name).lower()
        near = [known for known in EXPERIMENTS if asked and known.startswith(asked)]
        near = near or difflib.get_close_matches(asked, EXPERIMENTS, n=2, cutoff=0.5) or [*EXPERIMENTS, "all"]
        raise ParameterError(f"reproduce {name}", "there is no such experiment", " or ".join(near))
    return row.experiment


def listing() -> str:
    """All names with their summaries."""
    width = max(map(len, EXPERIMENTS))
    return "\n".join(f"{name:{width}}  {row.summary}" for name, row in EXPERIMENTS.items())
