import pytest

from experiments import convergence, fig8_left, fig8_right, table2
from experiments.experiment import Results
from experiments.studies import Study, ended, estimates, groups, line, means, parts
from tests.experiments.replications import made_up


def test_runs_that_diverged_are_left_out():
    rows = [{"study": "a", "variant": "M = 1", "failed": "nan"}, {"study": "a", "variant": "exact", "failed": None}]
    found = Results(None, [*rows, {"study": "b", "variant": "M = 1", "failed": None}])
    assert {name: len(runs) for name, runs in groups(found, "a").items()} == {"M = 1": 0, "exact": 1}
    text = ended(found, Study("a", None, estimates(1, None), 1))
    assert text == "runs that ended: 0 of 1 with M = 1, 1 of 1 with exact"


def test_a_line_has_no_mean_where_all_sets_are_empty():
    row = made_up("a", 1, 0, 0.8)
    row["sets"][-1] |= {"share": 0.0, "accuracy": None}
    *known, last = means(line([row], "accuracy"))
    assert known[0] == 0.8
    assert last != last, "nan, which a figure leaves out"


@pytest.mark.parametrize("scale", ["tiny", "cpu", "paper"])
@pytest.mark.parametrize(("one", "other"), [(fig8_left, convergence), (fig8_right, table2)])
def test_experiments_share_runs(one, other, scale):
    """The same keys give the same seeds; with the same training these are the same runs."""
    first, second = (module.EXPERIMENT.settings[scale] for module in (one, other))
    assert first.studies[0] == second.studies[0]
    assert all(study in second.studies for study in first.studies)
    assert {part.key for part in parts(first)} <= {part.key for part in parts(second)}
