"""The five views, one file each."""

from __future__ import annotations

from pathlib import Path

from mcrepar.app.view import View
from mcrepar.app.views.distributions import DISTRIBUTIONS
from mcrepar.app.views.graph import GRAPH
from mcrepar.app.views.memory import MEMORY
from mcrepar.app.views.quality import QUALITY
from mcrepar.app.views.run import run_view


def all_views(runs: Path | None) -> dict[str, View]:
    """The views by name, in the order of their tabs; `runs` is the folder below which runs are read."""
    views = (QUALITY, DISTRIBUTIONS, GRAPH, MEMORY, run_view(runs))
    return {view.name: view for view in views}
