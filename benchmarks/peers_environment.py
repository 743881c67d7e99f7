"""An environment for the peers: it sees our torch and our code, and ours does not see it.

python benchmarks/peers_environment.py [FOLDER] makes it (a few seconds, 1 MB of packages).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parent / ".venv-peers"
REQUIREMENTS = HERE / "peers_requirements.txt"
LINK = "ours.pth"


def interpreter(folder: Path = FOLDER) -> Path | None:
    """The Python of the peers' environment, where that is complete."""
    found = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    return found if (folder / ".ready").exists() and found.exists() else None


def make(folder: Path = FOLDER) -> Path:
    """Make the environment where it is not there yet; its Python.

    A .pth file puts our site-packages behind its own, so that all libraries run on one and the same torch, and pip,
    told to install no dependencies, has nothing to disturb.
    """
    if (ready := interpreter(folder)) is not None and (folder / ".ready").read_text() == REQUIREMENTS.read_text():
        return ready
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
    (folder / ".gitignore").write_text("*\n")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([str(python), "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    seen = (sysconfig.get_path("purelib"), str(HERE.parent / "src"))
    (Path(own) / LINK).write_text("\n".join(seen) + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True, capture_output=True)
    (folder / ".ready").write_text(REQUIREMENTS.read_text())
    return python


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    print(make(parser.parse_args().folder))
