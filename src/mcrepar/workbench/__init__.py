"""Commands for people: training, evaluation, the app and the command line; importing it imports no torch."""

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    "EvaluateOptions": "evaluation",
    "Run": "training.setup",
    "TrainConfig": "training.config",
    "evaluate": "evaluation",
    "open_run": "training.setup",
    "train": "training",
}

__all__ = ["EvaluateOptions", "Run", "TrainConfig", "evaluate", "open_run", "train"]

if TYPE_CHECKING:
    from mcrepar.workbench.evaluation import EvaluateOptions
    from mcrepar.workbench.evaluation.results import run as evaluate
    from mcrepar.workbench.training import train
    from mcrepar.workbench.training.config import TrainConfig
    from mcrepar.workbench.training.setup import Run, open_run
else:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
