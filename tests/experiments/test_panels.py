from experiments.panels import panels
from mcrepar.plots import png


def test_all_ticks_of_a_logarithmic_axis_look_alike():
    figure, (axes,) = panels([("One", "x", "y")], (3, 3))
    axes.plot([0.8, 2], [0.2, 0.45])
    axes.set_xscale("log")
    axes.set_yscale("log")  # less than a decade, so that minor ticks have labels
    figure.draw_without_rendering()
    major, minor = ([tick.label1 for tick in ticks] for ticks in (axes.yaxis.majorTicks, axes.yaxis.minorTicks))
    assert any(label.get_text() for label in minor)
    assert len({(label.get_size(), label.get_color()) for label in [*major, *minor]}) == 1
    assert not any(tick.label1.get_visible() for tick in axes.xaxis.minorTicks)


def test_panels_have_their_labels():
    figure, (left, right) = panels([("One", "x", "y"), ("Cost in $", "u", "v")], (6, 3))
    assert (left.get_title(loc="left"), left.get_xlabel(), right.get_ylabel()) == ("One", "x", "v")
    left.plot([1, 2], [3, 4])
    assert png(figure).startswith(b"\x89PNG")
