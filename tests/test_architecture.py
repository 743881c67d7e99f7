"""The rules of the layout that a reader relies on, checked on the syntax trees of src."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mcrepar
from mcrepar import POSTERIORS, PRIORS

SRC = Path(mcrepar.__file__).parent
FILES = sorted(SRC.rglob("*.py"))

# Imports go one way: from a higher layer to a lower one, or inside one part.
LAYERS = {
    "families": 0,
    "kl": 1,
    "nn": 2,
    "likelihoods": 1,
    "objective": 3,
    "prediction": 3,
    "optim": 3,
    "paper": 4,
    "training": 4,
    "experiments": 5,
    "app": 6,
    "cli": 7,
    "__main__": 8,
}
EVERYWHERE = {"errors", "option_values", "user_files"}  # all may import these
PLAIN = {"models", "data", "metrics", "plots"}  # these know nothing else of ours
FAMILIES = {*POSTERIORS, *PRIORS}
LIGHT = (
    "__init__",
    "__main__",
    "cli",
    "errors",
    "option_values",
    "user_files",
)  # importing these must not import torch


def part(module: str) -> str:
    """mcrepar.kl.plan -> kl; mcrepar -> the package itself, ''."""
    return module.partition("mcrepar.")[2].partition(".")[0]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide the direction"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if node.module == "mcrepar" else [node.module or ""]


def wrong_directions(own: str, tree: ast.AST) -> list[str]:
    wrong = []
    for module in imports(tree):
        if module.partition(".")[0] != "mcrepar":
            continue
        other = part(module)
        if other in {*EVERYWHERE, "__version__", own}:
            continue
        if other in PLAIN:
            right = LAYERS.get(own, -1) >= LAYERS["paper"]
        elif other in LAYERS:
            right = LAYERS.get(own, -1) > LAYERS[other]
        else:  # the public names, through the package itself
            right = LAYERS.get(own, -1) >= LAYERS["experiments"]
        if not right:
            wrong.append(module)
    return wrong


def forbidden(tree: ast.AST, inside_families: bool) -> list[str]:
    """eval, exec, pickle, torch.load of arbitrary objects, and decisions on the name of a family."""
    found = [f"import {m}" for m in imports(tree) if m.partition(".")[0] in ("pickle", "dill", "cloudpickle", "joblib")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec"):
                found.append(called)
            if called == "torch.load" and not any(k.arg == "weights_only" for k in node.keywords):
                found.append("torch.load without weights_only")
        if not inside_families and isinstance(node, ast.Compare | ast.match_case):
            whole = node if isinstance(node, ast.Compare) else node.pattern
            strings = {n.value for n in ast.walk(whole) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            if strings & FAMILIES:
                found.append(f"decides on a family: {ast.unparse(whole)}")
    return found


def imported_at_the_top(tree: ast.Module) -> set[str]:
    """The top-level packages that importing the module imports."""
    body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    return {m.partition(".")[0] for n in body if isinstance(n, ast.Import | ast.ImportFrom) for m in imports(n)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_go_one_way(path):
    own = path.relative_to(SRC).parts[0].removesuffix(".py")
    if own == "__init__":
        pytest.skip("it names all parts, lazily")
    assert own in {*LAYERS, *PLAIN, *EVERYWHERE}, "a new part: give it a layer"
    assert wrong_directions(own, ast.parse(path.read_text())) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_nothing_forbidden(path):
    inside_families = path.relative_to(SRC).parts[0] == "families"
    assert forbidden(ast.parse(path.read_text()), inside_families) == []


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_import_no_torch(name):
    heavy = {"torch", "numpy", "matplotlib", "rich", "networkx", "jsonargparse"}
    assert not imported_at_the_top(ast.parse((SRC / f"{name}.py").read_text())) & heavy


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("families", "from mcrepar.kl.plan import explain"),
        ("families", "def f():\n    import mcrepar.kl"),
        ("kl", "import mcrepar"),
        ("kl", "from mcrepar import nn"),
        ("kl", "from mcrepar.models import alexnet"),
        ("objective", "from mcrepar.prediction import predict"),
        ("models", "from mcrepar.families.priors import prior"),
        ("metrics", "from mcrepar.plots import curve"),
    ],
)
def test_a_wrong_direction_is_noticed(own, code):
    assert wrong_directions(own, ast.parse(code))


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("kl", "from mcrepar.families.priors import prior"),
        ("kl", "from mcrepar.kl.plan import explain\nimport torch"),
        ("models", "from mcrepar.errors import ParameterError"),
        ("training", "from mcrepar.models import alexnet"),
        ("cli", "import mcrepar"),
    ],
)
def test_a_right_direction_is_not(own, code):
    assert not wrong_directions(own, ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "eval('1')",
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "if family == 'radial': pass",
        "if q.name in ('radial', 'normal'): pass",
        "match name:\n    case 'radial': pass",
    ],
)
def test_a_forbidden_thing_is_noticed(code):
    assert forbidden(ast.parse(code), inside_families=False)
