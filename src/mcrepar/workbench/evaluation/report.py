"""report.html: one page that needs nothing but itself, and the same figures as PNG files."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcrepar import plots
from mcrepar.user_files import write_file
from mcrepar.workbench.evaluation import report_words as words
from mcrepar.workbench.evaluation.report_figures import Panel, panels
from mcrepar.workbench.evaluation.report_files import figure_path, read_log, read_results, read_text
from mcrepar.workbench.evaluation.report_pictures import GROUPS
from mcrepar.workbench.training.folder import read_run

TEMPLATE = "report.html.jinja"
Arrays = Mapping[str, NDArray[Any]]


def write_report(folder: str | Path) -> Path:
    """Write figures/*.png and report.html of an evaluated run, and return the path of the page.

    Args:
        folder: of the run; it holds metrics.json and predictions.npz.
    """
    folder = Path(folder)
    results, arrays = read_results(folder)
    figures = list(panels(results, arrays, read_log(folder)))
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
    run, config = read_run(folder), read_text(folder / "config.yaml")
    head, lines = words.verdict(results)
    return environment.get_template(TEMPLATE).render(
        results=results,
        title=words.title(results),
        head=head,
        lines=lines,
        tiles=words.tiles(results),
        metrics=words.metric_rows(results),
        thresholds=words.threshold_rows(results),
        foreign=words.foreign_rows(results),
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
    """The pictures worth a look, group by group, of the known data and of each foreign set."""
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
    import io

    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, np.repeat(picture, 3, 2) if picture.shape[2] == 1 else picture, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
