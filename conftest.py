"""A module that leads to another package has doctests only where that package is installed."""

from importlib.util import find_spec

PACKAGES = {"huggingface": "transformers", "lightning": "lightning", "sklearn": "sklearn"}
collect_ignore = [f"src/mcrepar/{module}.py" for module, package in PACKAGES.items() if find_spec(package) is None]
