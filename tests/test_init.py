import subprocess
import sys

import pytest

import mcrepar
from mcrepar import errors


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_is_light():
    code = "import sys, mcrepar; mcrepar.__version__; mcrepar.McreparError; print('torch' in sys.modules)"
    assert run(code) == "False"


def test_version_is_the_installed_one():
    from importlib.metadata import version

    assert version("mcrepar") == mcrepar.__version__


def test_the_citation_names_this_version():
    from pathlib import Path

    import yaml

    citation = yaml.safe_load((Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mcrepar.__version__
    assert citation["preferred-citation"]["year"] == 2021


@pytest.mark.parametrize("name", mcrepar.__all__)
def test_every_public_name_is_found_and_kept(name):
    value = getattr(mcrepar, name)
    assert getattr(mcrepar, name) is value
    assert vars(mcrepar)[name] is value


def test_every_error_is_public():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes <= set(mcrepar.__all__)


def test_type_checkers_see_the_same_names():
    import ast
    from pathlib import Path

    tree = ast.parse(Path(mcrepar.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(alias.name, node.module) for node in block.body for alias in node.names}
    assert seen == {*mcrepar._HOME.items(), *((name, "mcrepar") for name in (*mcrepar._MODULES, *mcrepar._BRIDGES))}


def test_dir_lists_names_before_their_first_use():
    assert run("import mcrepar; print(set(mcrepar.__all__) <= set(dir(mcrepar)))") == "True"


def test_bridges_are_found_but_not_listed():
    """Whoever looks at all names must not need packages that are optional."""
    code = "import mcrepar; print([n for n in dir(mcrepar) if n in mcrepar._BRIDGES or not hasattr(mcrepar, n)])"
    assert run(code) == "[]"
    assert mcrepar.sklearn.BayesianClassifier().draws == 100


@pytest.mark.parametrize(
    ("bridge", "absent", "words"),
    [
        ("sklearn", "sklearn.base", r"needs scikit-learn 1.6 or later: pip install mcrepar\[sklearn\]"),
        ("lightning", "lightning.pytorch", r"needs lightning: pip install mcrepar\[lightning\]"),
        ("huggingface", "transformers", r"needs transformers: pip install mcrepar\[huggingface\]"),
    ],
)
def test_a_bridge_names_the_extra_that_it_lacks(bridge, absent, words, monkeypatch):
    from importlib import util
    from pathlib import Path

    monkeypatch.setitem(sys.modules, absent, None)
    spec = util.spec_from_file_location("bridge", Path(mcrepar.__file__).with_name(f"{bridge}.py"))
    with pytest.raises(ImportError, match=words):
        spec.loader.exec_module(util.module_from_spec(spec))


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'kl_divergense'"):
        _ = mcrepar.kl_divergense
