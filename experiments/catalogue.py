"""Every experiment that can be reproduced; importing this imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mcrepar.errors import ParameterError
from mcrepar.validation import closest

if TYPE_CHECKING:
    from experiments.experiment import Experiment

EXPERIMENTS = {  # what each one measures; its file has its name, with _ for -
    "fig1": "the time of a batch: gradient accumulation and ours, all networks",
    "fig2-left": "the error of the KL against M, for four posterior variances",
    "fig2-right": "the largest M that fits into a memory, direct and ours, per network",
    "fig4": "the autograd graphs of both estimates, for M = 1, 3 and 100",
    "table1": "the 158 pairs of Table 1: verdicts, each checked with numbers",
    "taylor": "the Taylor fallback: coefficients, error against degree, divergence",
    "variance": "the variance of the KL and of its gradient, for all methods",
    "likelihood": "the variance of the likelihood against batch and last-layer draws",
    "fig6": "memory and time at the largest direct M, direct and ours",
    "fig7": "confidence sets on CIFAR-10; deterministic, Gaussian, published noise",
    "fig8-left": "the accuracy of confidence sets, M = 1, 17, 100 and exact",
    "fig8-right": "the spread of the confidence set's size, M = 1 against 100",
    "table2": "the 3D classifier's accuracy by confidence, M = 1 against 100",
    "convergence": "training curves and their spread over seeds, against M",
}


def find(name: str) -> Experiment:
    """The experiment of this name, a key of EXPERIMENTS in any case; its file is imported when it is asked for.

    >>> find("fig2-left").where
    'Figure 2, left'
    """
    asked = name.lower()
    if asked not in EXPERIMENTS:
        near = [known for known in EXPERIMENTS if asked and known.startswith(asked)]
        near = near or closest(asked, [*EXPERIMENTS, "all", "list"])
        raise ParameterError(f"reproduce {name}", "there is no such experiment", " or ".join(near))
    found: Experiment = import_module(f"experiments.{asked.replace('-', '_')}").EXPERIMENT
    return found


def listing() -> str:
    """All names with their summaries."""
    width = max(map(len, EXPERIMENTS))
    return "\n".join(f"{name:{width}}  {summary}" for name, summary in EXPERIMENTS.items())
