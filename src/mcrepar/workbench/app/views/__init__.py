"""The views, one file each: those of your own networks first, then those of the paper."""

from __future__ import annotations

from pathlib import Path

from mcrepar.workbench.app.view import View
from mcrepar.workbench.app.views.distributions import DISTRIBUTIONS
from mcrepar.workbench.app.views.graph import GRAPH
from mcrepar.workbench.app.views.memory import MEMORY
from mcrepar.workbench.app.views.network import network_view
from mcrepar.workbench.app.views.quality import QUALITY
from mcrepar.workbench.app.views.run import run_view


def all_views(runs: Path | None) -> dict[str, View]:
    """The views by name, in the order of their tabs; `runs` is the folder below which runs are read."""
    views = (run_view(runs), network_view(runs), QUALITY, DISTRIBUTIONS, GRAPH, MEMORY)
    return {view.name: view for view in views}
