"""The report of an evaluated run: report.html, which needs nothing but itself, PNG files, and tables on a terminal."""

from __future__ import annotations

import base64
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcrepar import plots, user_files
from mcrepar.data.numpy_files import npz_names, read_npz
from mcrepar.errors import ParameterError
from mcrepar.user_files import write_file
from mcrepar.workbench.evaluation import words
from mcrepar.workbench.evaluation.figures import GROUPS, Panel, panels
from mcrepar.workbench.training.log import read_log
from mcrepar.workbench.training.run_folder import read_run

TEMPLATE = "report.html.jinja"
ARRAYS = {"segmentation": "slices.npz"}  # by task; of others predictions.npz
Arrays = Mapping[str, NDArray[Any]]


def write_report(folder: str | Path) -> Path:
    """Write figures/*.png and report.html of an evaluated run, and return the path of the page.

    Args:
        folder: of the run; it holds metrics.json and predictions.npz.
    """
    folder = Path(folder)
    results, arrays = read_results(folder)
    figures = list(panels(results, arrays, _log(folder)))
    galleries = list(_galleries(results, arrays))
    for panel in figures:
        write_file(figure_path(folder, panel.name), plots.png(panel.figure))
    for gallery in galleries:
        captions = [f"{item['head']} · {item['spread']}\n{item['tail']}" for item in gallery["items"]]
        picture = plots.gallery(gallery["images"], captions, gallery["title"])
        write_file(figure_path(folder, gallery["name"]), plots.png(picture, 120))
    page = _page(folder, results, figures, galleries)
    write_file(folder / "report.html", page.encode("utf-8"))
    return folder / "report.html"


def _page(folder: Path, results: words.Results, figures: list[Panel], galleries: list[dict[str, Any]]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mcrepar.workbench.evaluation", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    run, config = read_run(folder), _config(folder)
    head, lines = words.verdict(results)
    return environment.get_template(TEMPLATE).render(
        results=results,
        title=words.title(results),
        drawn=words.drawn(results),
        head=head,
        lines=lines,
        tiles=words.tiles(results),
        metrics=words.metric_rows(results),
        thresholds=words.threshold_rows(results),
        ood=words.ood_rows(results),
        structures=words.structure_rows(results),
        notes=words.notes(results),
        sections=_sections(figures),
        galleries=galleries,
        colours=plots.COLOURS,
        run=run,
        config=config,
        commands=[_command(run, folder), shlex.join(results["command"])],
    )


def _sections(figures: list[Panel]) -> dict[str, list[dict[str, str]]]:
    """The figures as SVG, by section."""
    found: dict[str, list[dict[str, str]]] = {}
    for panel in figures:
        item = {"svg": plots.svg(panel.figure, panel.label, panel.name), "caption": panel.caption, "name": panel.name}
        found.setdefault(panel.section, []).append(item)
    return found


def _command(run: Mapping[str, Any], folder: Path) -> str:
    """What to type to have the same run again."""
    typed = run.get("command")
    if isinstance(typed, list) and all(isinstance(word, str) for word in typed) and typed:
        return shlex.join(typed)
    return f"mcrepar train --config {shlex.quote(str(folder / 'config.yaml'))}"


def _galleries(results: words.Results, arrays: Arrays) -> Iterator[dict[str, Any]]:
    """The pictures worth a look, group by group, of the in-distribution data and of each out-of-distribution set."""
    if results["task"] in ARRAYS:  # whose figures show the images
        return
    for prefix, name in [("", ""), *((f"ood_{name}_", name) for name in results["ood"])]:
        pictures, places, groups = (arrays[f"{prefix}thumbnail{key}"] for key in ("s", "_indices", "_groups"))
        for group, title in GROUPS.items():
            mine = np.flatnonzero(groups == group)
            if len(mine):
                items = [_item(results, arrays, prefix, int(places[k]), pictures[k]) for k in mine]
                yield {
                    "name": f"images_{name + '_' if name else ''}{group}",
                    "title": f"{name}: {title}" if name else title.capitalize(),
                    "images": pictures[mine],
                    "items": items,
                }


def _item(
    results: words.Results, arrays: Arrays, prefix: str, place: int, picture: NDArray[np.uint8]
) -> dict[str, Any]:
    """A picture with what is true and what the network says."""
    y = arrays[f"{prefix}y"][place]
    classes, known = results["data"]["classes"], not prefix
    if results["task"] == "regression":
        mean, std = (float(arrays[prefix + key][place]) for key in ("mean", "std"))
        head, spread, tail, wrong = f"{mean:.3g}", f"± {std:.2g}", f"true {y:.3g}" if known else "", False
    else:
        label, share = int(arrays[f"{prefix}label"][place]), float(arrays[f"{prefix}confidence"][place])
        wrong = known and label != y
        head, spread = str(classes[label]), f"{100 * share:.0f} %"
        tail = "" if not known else f"is {classes[y]}" if wrong else "right"
    alt = ", ".join(filter(None, (f"image {place}: says {head}", spread, tail)))
    return {"data": _data_uri(picture), "head": head, "spread": spread, "tail": tail, "wrong": wrong, "alt": alt}


def _data_uri(picture: NDArray[np.uint8]) -> str:

    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, np.repeat(picture, 3, 2) if picture.shape[2] == 1 else picture, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def read_results(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """metrics.json and predictions.npz of an evaluated run, or a refusal.

    Args:
        folder: of the run.
    """
    asked, instead = f"the report of {folder}", f"mcrepar evaluate {folder}, which writes it"
    try:
        results = user_files.read_json(folder / "metrics.json")
        task = results.get("task") if isinstance(results, dict) else None
        place = folder / ARRAYS.get(str(task), "predictions.npz")
        arrays = read_npz(place, npz_names(place))
    except FileNotFoundError as error:
        raise ParameterError(asked, f"there is no {Path(str(error.filename)).name}", instead) from None
    except (OSError, ValueError, EOFError) as error:
        raise ParameterError(asked, f"its results cannot be read ({type(error).__name__}: {error})", instead) from None
    needed = "names" if task in ARRAYS else "y"
    if not isinstance(results, dict) or not {"in", "task", "command"} <= set(results) or needed not in arrays:
        raise ParameterError(asked, f"metrics.json or {place.name} is of another form", instead)
    for name in results.get("ood") or ():
        figure_path(folder, str(name))
    return results, arrays


def figure_path(folder: Path, name: str) -> Path:
    """Where a figure is written: inside the run folder, or a refusal.

    Args:
        folder: of the run.
        name: of the figure, without suffix; part of it may come from a file that anyone can have changed.
    """
    asked, place = f"the report of {folder}", folder / "figures"
    if not re.fullmatch(r"[\w-]+", name):
        why, instead = f"{name!r} cannot be a part of a file name", "letters, digits, _ and -"
        raise ParameterError(asked, why, f"{instead} in the names of out-of-distribution data")
    if place.is_symlink():
        raise ParameterError(asked, f"{place} is a symbolic link, which is not followed", "the folder without it")
    return place / f"{name}.png"


def _log(folder: Path) -> dict[str, NDArray[np.float64]]:
    try:
        return {name: np.array(column) for name, column in read_log(folder / "log.csv").items()}
    except (OSError, ParameterError):  # the report does without its curves
        return {}


def _config(folder: Path) -> str:
    try:
        return user_files.read_text(folder / "config.yaml")
    except (OSError, ValueError):
        return ""


def print_results(results: words.Results, report: Path) -> None:
    """The verdict, the metrics, the confidence sets and where the report is.

    Args:
        results: metrics.json.
        report: the path of report.html.
    """
    from rich.console import Console

    console = Console(highlight=False)
    head, lines = words.verdict(results)
    if results["data"]["simulated"]:
        console.print("SIMULATED data", style="bold red")
    console.print(head, style="bold", markup=False)
    for line in lines:
        console.print(line, markup=False)
    columns = {
        "title": "metric",
        "value": words.drawn(results),
        "mean": "mean weights",
        "twin": "twin",
        "better": "better",
    }
    if not results.get("twin"):
        del columns["twin"]
    scores = [[row[key] for key in columns] for row in words.metric_rows(results)]
    _table(console, words.title(results), list(columns.values()), scores)
    sets = [(r["tau"], r["share"], r["count"], r["accuracy"], r["interval"]) for r in words.threshold_rows(results)]
    if sets:
        heads = ("draws that agree", "share of examples", "examples", "accuracy", "95 % interval")
        _table(console, "confidence sets", heads, sets)
    ood = [(r["name"], r["count"], r["score"], r["auroc"], r["aupr"], r["fpr95"]) for r in words.ood_rows(results)]
    if ood:
        _table(console, "out-of-distribution data", ("set", "examples", "score", "AUROC", "AUPR", "FPR95"), ood)
    for note in words.notes(results):
        console.print(f"note: {note}", markup=False)
    if structures := words.structure_rows(results):
        heads = ("structure", "images", "Dice", "ECE", "Dice at 95 % coverage")
        _table(console, "structures", heads, [tuple(row.values()) for row in structures])
        console.print(f"maps of labels, entropy and mutual information: {report.parent / 'maps'}", markup=False)
    console.print(str(report), markup=False, soft_wrap=True)


def _table(console: Any, name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(name), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for k, head in enumerate(heads):
        numeric = all(row[k][:1] in "<>-0123456789" for row in rows if row[k])
        table.add_column(head, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
