"""The rules of the layout that a reader relies on, checked on the syntax trees of src."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.nn import Module

import mcrepar
from mcrepar import POSTERIORS, PRIORS
from mcrepar.distributions.noise import Noise
from mcrepar.divergence.methods import METHODS

SRC = Path(mcrepar.__file__).parent
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
FILES = [*sorted(SRC.rglob("*.py")), *sorted(EXPERIMENTS.glob("*.py"))]

# Imports go one way: from a higher layer to a lower one, or inside one part.
LAYERS = {
    "distributions": 0,
    "divergence": 1,
    "kl_schedules": 1,
    "likelihoods": 1,
    "conformal": 1,
    "actions": 2,
    "inspect": 2,
    "nn": 2,
    "objective": 3,
    "prediction": 3,
    "optim": 3,
    "paper": 4,
    "sklearn": 4,
    "lightning": 4,
    "huggingface": 4,
    "trained_model": 4,
    "sliding_window": 4,
    "workbench": 5,
    "__main__": 6,
    "experiments": 6,
}
EVERYWHERE = {"checks", "errors", "user_files", "validation"}  # all may import these
PLAIN = {"models", "data", "metrics", "plots"}  # these know nothing else of ours
NOISES = {kind.__name__ for kind in Noise.__subclasses__()} | {"noises", "radial", "heavy_tails"}
LONGEST = 350  # lines of a file
NAMING_METHODS = {
    "divergence/methods.py",  # the table
    "nn/last_layer.py",  # methods of its own
    "workbench/app/views/distributions.py",  # remarks for people, on two of them
    "workbench/training/config.py",  # accumulated gradients are one estimator, and no other may be asked for with them
}
FAMILIES = {*POSTERIORS, *PRIORS}
TESTS = Path(__file__).parent
# Files without a mirrored test file: where they are tested.
TESTED_IN = {
    "__main__.py": "workbench/test_cli.py",
    "distributions/heavy_tails.py": "distributions/test_noises.py",
    "distributions/noise.py": "distributions/test_noises.py",
    "distributions/posterior.py": "distributions/test_posteriors.py",
    "distributions/prior.py": "distributions/test_priors.py",
    "distributions/quantiles.py": "test_prediction.py",
    "distributions/sample_means.py": "distributions/test_noises.py",
    "distributions/special.py": "distributions/test_noises.py",
    "divergence/integral.py": "divergence/test_quad.py",
    "divergence/reasons.py": "divergence/test_refusals.py",
    "divergence/sums.py": "divergence/test_contraction.py",
    "divergence/terms.py": "divergence/test_plan.py",
    "likelihoods/classes.py": "likelihoods/test_likelihoods.py",
    "likelihoods/likelihood.py": "likelihoods/test_likelihoods.py",
    "likelihoods/normal.py": "likelihoods/test_likelihoods.py",
    "metrics/inputs.py": "metrics/test_classification.py",
    "nn/forwards/antithetic.py": "nn/forwards/test_forwards.py",
    "nn/forwards/auto.py": "nn/forwards/test_forwards.py",
    "nn/forwards/flipout.py": "nn/forwards/test_forwards.py",
    "nn/forwards/layer_weight.py": "nn/forwards/test_forwards.py",
    "nn/forwards/local.py": "nn/forwards/test_forwards.py",
    "nn/moments/elementwise_rules.py": "nn/moments/test_rules.py",
    "nn/moments/moment_calibration.py": "nn/moments/test_moment_pass.py",
    "nn/moments/linear_rules.py": "nn/moments/test_rules.py",
    "nn/moments/normalisation_rules.py": "nn/moments/test_rules.py",
    "nn/moments/pooling_rules.py": "nn/moments/test_rules.py",
    "nn/moments/tensor.py": "nn/moments/test_rules.py",
    "nn/row_divergence.py": "nn/test_module.py",
    "workbench/app/command.py": "workbench/app/test_start.py",
    "workbench/evaluation/kinds.py": "workbench/evaluation/test_results.py",
}
LIGHT = (
    "__init__",
    "__main__",
    "errors",
    "user_files",
    "validation",
    "workbench/__init__",
    "workbench/cli",
)  # importing these must not import torch


def place(path: Path) -> str:
    """nn/module.py of the package, experiments/fig1.py beside it."""
    return path.relative_to(SRC if path.is_relative_to(SRC) else EXPERIMENTS.parent).as_posix()


def part(module: str) -> str:
    """mcrepar.divergence.plan -> divergence; experiments.fig1 -> experiments; mcrepar -> the package itself, ''."""
    return module.removeprefix("mcrepar").removeprefix(".").partition(".")[0]


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
        if module.partition(".")[0] not in ("mcrepar", "experiments"):
            continue
        other = part(module)
        if other in {*EVERYWHERE, "__version__", own}:
            continue
        if other in PLAIN:
            right = LAYERS.get(own, -1) >= LAYERS["paper"] or own == "actions"  # tables and figures of a prediction
        elif other in LAYERS:
            right = LAYERS.get(own, -1) > LAYERS[other]
        else:  # the public names, through the package itself
            right = LAYERS.get(own, -1) >= LAYERS["workbench"]
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


def looks_into_noise(tree: ast.AST) -> list[str]:
    """Questions about the class of a noise, and imports of one: what differs between noises are their methods."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "type", "issubclass") and node.args:
            if "noise" in ast.unparse(node.args[0]):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mcrepar.distributions"):
            wrong = NOISES & {node.module.rpartition(".")[2], *(alias.name for alias in node.names)}
            found += [f"from {node.module} import {name}" for name in wrong]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.rpartition(".")[2] in NOISES]
    return found


def listed_methods(tree: ast.AST) -> list[str]:
    """Comparisons with the name of a method, and collections of several; "exact" is a value of entropy= as well."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            parts, least = [key for key in node.keys if key is not None], 2
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts, least = node.elts, 2
        elif isinstance(node, ast.Compare | ast.match_case):
            whole = node if isinstance(node, ast.Compare) else node.pattern
            parts, least = [n for n in ast.walk(whole) if isinstance(n, ast.Constant) and n.value != "exact"], 1
        else:
            continue
        named = {n.value for n in parts if isinstance(n, ast.Constant) and isinstance(n.value, str)} & METHODS.keys()
        if len(named) >= least:
            found.append(ast.unparse(node))
    return found


def private_of_a_network(tree: ast.AST) -> list[str]:
    """Private attributes of something that is called bnn, net, network, part or owner, but for torch's own."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.fullmatch(r"_[a-z]\w*", node.attr)
        and not hasattr(Module(), node.attr)
        and re.fullmatch(r"(\w+\.)?(bnn|net|network|part|owner|twin)", ast.unparse(node.value))
    ]


def constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module names, by their names."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            several = isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
            names = node.targets[0].elts if several else node.targets
            values = node.value.elts if several else [node.value]
            for name, value in zip(names, values, strict=True):
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[name.id] = value.value
    return found


class Written(ast.NodeTransformer):
    """Writes the texts that names stand for in their places: a module's own, imported ones, those of a module."""

    def __init__(self, tree: ast.Module, known: dict[str, dict[str, str]]) -> None:
        self.texts, self.modules = constants(tree), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name, text = alias.asname or alias.name, known.get(node.module or "", {}).get(alias.name)
                    self.modules[name] = known.get(f"{node.module}.{alias.name}", {})
                    self.texts |= {} if text is None else {name: text}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        text = self.texts.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return node if text is None else ast.Constant(text)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        text = self.modules.get(node.value.id, {}).get(node.attr) if isinstance(node.value, ast.Name) else None
        return self.generic_visit(node) if text is None else ast.Constant(text)


def module_of(path: Path) -> str:
    """nn/module.py -> mcrepar.nn.module; experiments/fig1.py -> experiments.fig1."""
    name = place(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"mcrepar.{name}" if path.is_relative_to(SRC) else name


def written(path: Path) -> ast.Module:
    """The tree of a file with texts in the place of names for them."""
    tree = ast.parse(path.read_text())
    return Written(tree, TEXTS).visit(tree)


TEXTS = {module_of(path): constants(ast.parse(path.read_text())) for path in FILES}


def imported_at_the_top(tree: ast.Module) -> set[str]:
    """The top-level packages that importing the module imports."""
    body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    return {m.partition(".")[0] for n in body if isinstance(n, ast.Import | ast.ImportFrom) for m in imports(n)}


@pytest.mark.parametrize("path", FILES, ids=place)
def test_imports_go_one_way(path):
    own = place(path).partition("/")[0].removesuffix(".py")
    if own == "__init__":
        pytest.skip("it names all parts, lazily")
    assert own in {*LAYERS, *PLAIN, *EVERYWHERE}, "a new part: give it a layer"
    assert wrong_directions(own, ast.parse(path.read_text())) == []


@pytest.mark.parametrize("path", FILES, ids=place)
def test_nothing_forbidden(path):
    inside = place(path).startswith("distributions/")
    assert forbidden(written(path), inside) == []


@pytest.mark.parametrize("path", FILES, ids=place)
def test_a_noise_is_known_in_its_own_file(path):
    if not place(path).startswith("distributions/"):
        assert looks_into_noise(ast.parse(path.read_text())) == []


@pytest.mark.parametrize("path", FILES, ids=place)
def test_a_file_is_read_in_one_sitting(path):
    assert path.read_text().count("\n") <= LONGEST, "split it by theme (python benchmarks/lines.py counts)"


@pytest.mark.parametrize("path", [p for p in FILES if p.is_relative_to(SRC)], ids=place)
def test_methods_are_named_in_their_table_alone(path):
    """A new estimator is one row: no other file lists methods or decides on the name of one."""
    if place(path) not in NAMING_METHODS:
        assert listed_methods(written(path)) == []


@pytest.mark.parametrize("name", sorted(NAMING_METHODS))
def test_every_exception_is_needed(name):
    assert listed_methods(written(SRC / name))


@pytest.mark.parametrize(
    "code",
    [
        "KIND = 'stats'\nif method == KIND: pass",
        "KIND, DRAWS = 'stats', 3\nif method in ('auto', KIND): pass",
        "from mcrepar.some import KIND as OTHER\nif method == OTHER: pass",
        "from mcrepar import some\nif method == some.KIND: pass",
    ],
)
def test_a_name_for_a_method_is_noticed(code):
    tree = ast.parse(code)
    assert listed_methods(Written(tree, {"mcrepar.some": {"KIND": "stats"}}).visit(tree))


def test_every_file_has_tests():
    """Tests mirror src; a file without a mirrored one is named in `TESTED_IN`, and only such a file."""
    names = [place(path) for path in FILES if path.is_relative_to(SRC) and path.name != "__init__.py"]
    lonely = {name for name in names if not (TESTS / name).with_name(f"test_{Path(name).name}").exists()}
    assert lonely == TESTED_IN.keys()
    assert all((TESTS / name).exists() for name in TESTED_IN.values())


@pytest.mark.parametrize("path", FILES, ids=place)
def test_nobody_uses_a_private_side_of_a_network(path):
    assert private_of_a_network(ast.parse(path.read_text())) == []


def test_a_bayesian_module_has_public_methods_only():
    """What else can be done with a network is a function in a module of nn."""
    own = {name for name in vars(mcrepar.BayesianModule) if not name.startswith("__")}
    assert own == {"forward", "train", "draw", "mean", "frozen", "calibrate", "to_module", "kl", "diagnose"} | {
        "get_extra_state",
        "set_extra_state",
    }


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_import_no_torch(name):
    heavy = {"torch", "numpy", "matplotlib", "rich", "networkx", "jsonargparse"}
    assert not imported_at_the_top(ast.parse((SRC / f"{name}.py").read_text())) & heavy


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("distributions", "from mcrepar.divergence.plan import explain"),
        ("distributions", "def f():\n    import mcrepar.divergence"),
        ("divergence", "import mcrepar"),
        ("divergence", "from mcrepar import nn"),
        ("divergence", "from mcrepar.models import alexnet"),
        ("objective", "from mcrepar.prediction import predict"),
        ("models", "from mcrepar.distributions.priors import prior"),
        ("metrics", "from mcrepar.plots import curve"),
        ("workbench", "import experiments.fig1"),
    ],
)
def test_a_wrong_direction_is_noticed(own, code):
    assert wrong_directions(own, ast.parse(code))


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("divergence", "from mcrepar.distributions.priors import prior"),
        ("divergence", "from mcrepar.divergence.plan import explain\nimport torch"),
        ("models", "from mcrepar.errors import ParameterError"),
        ("workbench", "from mcrepar.models import alexnet"),
        ("experiments", "from mcrepar import kl"),
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


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(noise, Normal)",
        "isinstance(latent.posterior.noise, noises.Radial)",
        "type(q.noise) is Radial",
        "from mcrepar.distributions.noises import Radial",
        "from mcrepar.distributions import noises",
        "import mcrepar.distributions.radial",
    ],
)
def test_a_look_into_noise_is_noticed(code):
    assert looks_into_noise(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "if method == 'stats': pass",
        "if method in ('exact', 'quad'): pass",
        "SAMPLED = ['repar', 'stream']",
        "RUN = {'direct': 1, 'regen': 2}",
        "match method:\n    case 'taylor': pass",
    ],
)
def test_a_list_of_methods_is_noticed(code):
    assert listed_methods(ast.parse(code))


@pytest.mark.parametrize("code", ["if entropy == 'exact': pass", "ENTROPIES = ('exact', 'mc')", "f(method='stats')"])
def test_other_words_are_no_lists_of_methods(code):
    assert not listed_methods(ast.parse(code))


@pytest.mark.parametrize("code", ["bnn._lock", "with self.net._frozen(): pass", "part._latents()"])
def test_a_private_side_is_noticed(code):
    assert private_of_a_network(ast.parse(code))
