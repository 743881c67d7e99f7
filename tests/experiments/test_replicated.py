import pytest

from experiments import convergence, fig8_left, fig8_right, table2
from experiments.experiment import Results
from experiments.replicated import Study, ended, groups, parts


def test_runs_that_diverged_are_left_out():
    rows = [{"kind": "a", "draws": 1, "failed": "nan"}, {"kind": "a", "draws": None, "failed": None}]
    assert {label: len(found) for label, found in groups(Results(None, rows), "a").items()} == {"M = 1": 0, "exact": 1}
    text = ended(Results(None, rows), Study("a", None, (1, None), 1))
    assert text == "runs that ended: 0 of 1 with M = 1, 1 of 1 with exact"


@pytest.mark.parametrize("scale", ["tiny", "cpu", "paper"])
@pytest.mark.parametrize(("one", "other"), [(fig8_left, convergence), (fig8_right, table2)])
def test_experiments_share_runs(one, other, scale):
    """The same keys give the same seeds; with the same training these are the same runs."""
    first, second = (module.EXPERIMENT.settings[scale] for module in (one, other))
    study = first.studies[0]
    assert study == second.studies[0]
    keys = [part.key for part in parts(first)]
    assert keys == [part.key for part in parts(second)][: len(keys)]
