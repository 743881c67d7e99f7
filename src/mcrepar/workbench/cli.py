"""The command line; torch is imported inside the commands, so that `mcrepar --help` answers at once."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mcrepar import __version__
from mcrepar.errors import McreparError, ParameterError
from mcrepar.workbench.training.process import Diverged, Stopped, keep_freed_memory

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

_EXTRAS = {
    "jinja2": "train",
    "jsonargparse": "train",
    "matplotlib": "plot",
    "networkx": "plot",
    "nibabel": "medical",
    "plotly": "app",
    "safetensors": "train",
    "shiny": "app",
    "yaml": "train",
}
_FORMATS = ("text", "md", "json")
_SCALES = ("tiny", "cpu", "paper")  # of an experiment
_PICTURES = (".svg", ".png", ".pdf")
_TRAIN = "mcrepar train [--recipe NAME | --config FILE] [--data NAME] [--model NAME] [--out FOLDER] [--resume] [...]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for a request that cannot be met, or 1 for any other error."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words  # before or after the command
    usual = warnings.formatwarning
    if not debug:  # users have no use for a place in our code
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        arguments = _parser().parse_args(_expanded([word for word in words if word != "--debug"]))
        command = COMMANDS[arguments.command]
        if command.computes:
            keep_freed_memory()
        command.run(arguments[arguments.command])
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `mcrepar table | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Stopped as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.number
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"error: {_message(error)}", file=sys.stderr)
        asked = isinstance(error, McreparError) and not isinstance(error, Diverged)
        return 2 if asked or _missing(error) else 1
    finally:
        warnings.formatwarning = usual


def _expanded(words: list[str]) -> list[str]:
    """The words of `train` with its recipes and the options of a resumed run."""
    if words[:1] != ["train"]:
        return words
    from mcrepar.workbench.training.arguments import expand

    return ["train", *expand(words[1:])]


def _missing(error: Exception) -> str | None:
    """The extra that would have brought the module that is not installed."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    return _EXTRAS.get((error.name or "").partition(".")[0])


def _message(error: Exception) -> str:
    if isinstance(error, McreparError):
        return str(error)
    if extra := _missing(error):
        return f"this command: {error}. Install it with pip install 'mcrepar[{extra}]'."
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"


def _parser() -> ArgumentParser:
    from mcrepar.workbench.parser import Parser

    parser = Parser(prog="mcrepar", description="Bayesian neural networks: train, evaluate, explain.")
    parser.add_argument("--version", action="version", version=f"mcrepar {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subcommands(dest="command")
    for name, command in COMMANDS.items():
        subparser = Parser(description=command.summary, usage=command.usage)
        command.arguments(subparser)
        commands.add_subcommand(name, subparser, help=command.summary)
    return parser


def _pair_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("posterior", type=str, help="a name of mcrepar.POSTERIORS, in any case")
    parser.add_argument("prior", type=str, help="a name of mcrepar.PRIORS, in any case")
    for side, example in (("posterior", "concentration=0.8"), ("prior", "loc=0.1")):
        parser.add_argument(
            f"--{side}-param",
            action="append",
            metavar="NAME=VALUE",
            help=f"such as {example}; may be repeated",
        )


def _explain(arguments: Namespace) -> None:
    import mcrepar

    values = _parameters("posterior", arguments), _parameters("prior", arguments)
    q = mcrepar.posterior(arguments.posterior, **values[0])
    print(mcrepar.explain(q, mcrepar.prior(arguments.prior, **values[1])))


def _table_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--format", default="text", choices=_FORMATS, help="how the table is written")


def _table(arguments: Namespace) -> None:
    from importlib.util import find_spec

    from mcrepar.inspect.table1 import render_table, table1

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and find_spec("rich") is not None
    width = shutil.get_terminal_size((100, 24)).columns
    print(render_table(table1(), arguments.format, width=width, colour=colour))


def _graph_arguments(parser: ArgumentParser) -> None:
    _pair_arguments(parser)
    parser.add_argument("--n-mc-iter", type=str, default="1,3,100", help="the numbers of draws, with commas")
    parser.add_argument("--out", type=str, default="graph.svg", help=f"the picture: {', '.join(_PICTURES)}")


def _graph(arguments: Namespace) -> None:
    draws = _counts(arguments.n_mc_iter)
    out = _writable(arguments.out)
    values = _parameters("posterior", arguments), _parameters("prior", arguments)

    import mcrepar
    from mcrepar.inspect.picture import draw_graphs, single_weight

    q = single_weight(arguments.posterior, **values[0])
    p = mcrepar.prior(arguments.prior, **values[1])
    draw_graphs(q, p, draws, out, title=f"{q.name} posterior, {p.name} prior")
    print(out)


def _parameters(side: str, arguments: Namespace) -> dict[str, Any]:
    """The values of `--posterior-param NAME=VALUE`: numbers, true, false or none."""
    words = {"true": True, "false": False, "none": None}
    parameters: dict[str, Any] = {}
    for pair in arguments[f"{side}_param"] or ():
        name, _, text = pair.partition("=")
        try:
            parameters[name.strip()] = words[text.lower()] if text.lower() in words else float(text)
        except ValueError:
            why = "a parameter is NAME=VALUE, its value a number, true, false or none"
            raise ParameterError(f"--{side}-param {pair}", why, f"--{side}-param scale=0.5") from None
    return parameters


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise ParameterError(f"--n-mc-iter {text}", "each number of draws is a whole number from 1", "1,3,100")
    return counts


def _writable(text: str) -> Path:
    """The path of a picture, refused before any work if it could not be written afterwards."""
    path = Path(text)
    if path.suffix.lower() not in _PICTURES:
        why, instead = (
            f"the suffix says no format of a picture: {path.suffix or 'none'}",
            " or ".join(_PICTURES),
        )
    elif path.is_dir():
        why, instead = "it is a folder", "the name of a file"
    elif not path.parent.is_dir():
        why, instead = f"there is no folder {path.parent}", "a folder that exists"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why, instead = "it cannot be written", "a place where you may write"
    else:
        return path
    raise ParameterError(f"--out {text}", why, instead)


def _train_arguments(parser: ArgumentParser) -> None:
    from mcrepar.workbench.training.arguments import add_arguments

    add_arguments(parser)


def _train(arguments: Namespace) -> None:
    from mcrepar.workbench.training import train
    from mcrepar.workbench.training.arguments import read_arguments

    print(train(read_arguments(arguments.as_dict())))


def _evaluate_arguments(parser: ArgumentParser) -> None:
    from mcrepar.workbench.evaluation import EvaluateOptions
    from mcrepar.workbench.training.arguments import add_options

    add_options(parser, EvaluateOptions, positional="folder")


def _evaluate(arguments: Namespace) -> None:
    from mcrepar.workbench.evaluation import EvaluateOptions, evaluate

    evaluate(EvaluateOptions(**{**arguments.as_dict(), "ood": tuple(arguments.ood)}))


def _compare_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folders", type=str, nargs="+", help="evaluated runs, or folders of train --seeds")
    parser.add_argument("--format", default="text", choices=_FORMATS, help="how the table is written")


def _compare(arguments: Namespace) -> None:
    from mcrepar.workbench.comparison import compare

    print(compare(arguments.folders).text(arguments.format))


def _experiments(name: str) -> ModuleType:
    """A module of the paper's experiments, which are in a checkout of the repository and not in the wheel."""
    checkout = Path(__file__).parents[3]
    if not (checkout / "experiments" / "catalogue.py").is_file():
        raise ParameterError(
            "mcrepar reproduce",
            "the experiments and their results are not part of the installed package",
            "Clone the repository and install it there with pip install -e . to run them.",
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    return import_module(f"experiments.{name}")


def _reproduce_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", type=str, help="an experiment, all of them, or list to see their names")
    parser.add_argument("--scale", default="cpu", choices=_SCALES, help="seconds, minutes, or GPUs")
    parser.add_argument("--out", type=str, default="experiments/results", help="the folder of all results")
    parser.add_argument("--root", type=str | None, default=None, help="the folder of your data, where some are needed")
    parser.add_argument("--seed", type=int, default=0, help="of all noise")


def _reproduce(arguments: Namespace) -> None:
    if arguments.name.lower() == "list":
        print(_experiments("catalogue").listing())
        return
    root = None if arguments.root is None else Path(arguments.root)
    request = _experiments("experiment").Request
    _experiments("reproduce").reproduce(
        request(arguments.name, arguments.scale, Path(arguments.out), root, arguments.seed)
    )


def _app_arguments(parser: ArgumentParser) -> None:
    from mcrepar.workbench.app.command import app_arguments

    app_arguments(parser)


def _app(arguments: Namespace) -> None:
    from mcrepar.workbench.app.command import run_app

    run_app(arguments)


@dataclass(frozen=True)
class _Command:
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], None]
    summary: str
    usage: str | None = None  # where the options are too many for one
    computes: bool = False  # for long, with large tensors


COMMANDS = {
    "train": _Command(_train_arguments, _train, "train a Bayesian neural network, or go on with a run", _TRAIN, True),
    "evaluate": _Command(
        _evaluate_arguments, _evaluate, "evaluate a trained network: metrics, confidence sets, report", None, True
    ),
    "compare": _Command(_compare_arguments, _compare, "compare evaluated runs, with intervals over their seeds"),
    "explain": _Command(_pair_arguments, _explain, "explain a posterior and a prior: verdict, tuple, methods"),
    "table": _Command(_table_arguments, _table, "print the paper's Table 1 with the verdict on every pair"),
    "graph": _Command(_graph_arguments, _graph, "draw the autograd graphs of the direct and the repar estimate"),
    "reproduce": _Command(
        _reproduce_arguments, _reproduce, "measure a figure or a table of the paper, and judge it", None, True
    ),
    "app": _Command(_app_arguments, _app, "explore estimates, pairs, graphs, memory and runs in the browser"),
}
