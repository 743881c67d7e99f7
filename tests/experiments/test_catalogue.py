import re
import subprocess
import sys
from dataclasses import asdict

import pytest

from experiments.catalogue import EXPERIMENTS, find
from experiments.experiment import SCALES
from mcrepar.errors import ParameterError
from mcrepar.workbench.cli import main


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_complete(name):
    experiment = find(name)
    assert tuple(experiment.settings) == SCALES
    assert experiment.version >= 1
    for text in (experiment.title, experiment.where, experiment.claim, experiment.method):
        assert len(text) > 5
    for scale in SCALES:
        settings = experiment.settings[scale]
        asdict(settings)
        keys = [part.key for part in experiment.parts(settings)]
        assert keys
        assert len(set(keys)) == len(keys)
        assert all(re.fullmatch(r"[a-z0-9_.-]+", key) for key in keys), "a key is the name of a file"


def test_list(capsys):
    assert main(["reproduce", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)


def test_list_and_help_do_not_import_torch():
    code = (
        "import sys\n"
        "from mcrepar.workbench.cli import main\n"
        "main(['reproduce', 'list'])\n"
        "try: main(['reproduce', '--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n")


@pytest.mark.parametrize(("name", "near"), [("fig2", "fig2-"), ("tabel1", "table1"), ("zzz", "fig4")])
def test_bad_names(name, near, capsys, tmp_path):
    with pytest.raises(ParameterError, match=f"no such experiment. Use .*{near}"):
        find(name)
    assert main(["reproduce", name, "--out", str(tmp_path)]) == 2
    assert "there is no such experiment" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_in_any_case():
    assert find("FIG4") is find("fig4")
