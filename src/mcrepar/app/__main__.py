"""python -m mcrepar.app: the app without the rest of the command line."""

from __future__ import annotations

import argparse
import sys

from mcrepar.app.command import app_arguments, run_app
from mcrepar.errors import McreparError


def main() -> int:
    """Run the app; the exit code is that of `mcrepar app`."""
    parser = argparse.ArgumentParser(prog="python -m mcrepar.app", description="Explore KL estimates in the browser.")
    app_arguments(parser)
    try:
        run_app(parser.parse_args())
    except KeyboardInterrupt:
        return 130
    except McreparError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
