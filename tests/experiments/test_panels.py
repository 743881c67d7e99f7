from mcrepar.experiments.panels import panels
from mcrepar.plots import png


def test_panels_have_their_labels():
    figure, (left, right) = panels([("One", "x", "y"), ("Cost in $", "u", "v")], (6, 3))
    assert (left.get_title(loc="left"), left.get_xlabel(), right.get_ylabel()) == ("One", "x", "v")
    left.plot([1, 2], [3, 4])
    assert png(figure).startswith(b"\x89PNG")
