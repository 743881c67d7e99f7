"""The options of `mcrepar app`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def app_arguments(parser: Any) -> None:
    """Add the options to a parser of argparse or jsonargparse."""
    parser.add_argument("--port", type=int, default=8000, help="where to listen; 0 takes any free port")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="0.0.0.0 lets other machines in as well")
    parser.add_argument("--runs", type=str, default="runs", help="the folder below which runs may be looked at")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--export", type=str, default=None, help="write a page that needs no server, and end")


def run_app(arguments: Any) -> None:
    """Write the page that needs no server, or serve until interrupted."""
    runs = Path(arguments.runs)
    if arguments.export is not None:
        from mcrepar.workbench.app.export import export_page

        print(export_page(Path(arguments.export), runs))
        return
    from mcrepar.workbench.app.start import AppOptions, start

    start(AppOptions(arguments.port, arguments.host, runs, not arguments.no_browser))
