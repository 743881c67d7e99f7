"""The numbers of the first view against the distribution, the library and the paper's sample run."""

import math

import pytest
import torch

import mcrepar
from mcrepar.workbench.app.controls import FieldError
from mcrepar.workbench.app.estimate_distribution import NormalPair
from mcrepar.workbench.app.views.quality import QUALITY, nats, power_of_ten


def answer(**texts: str):
    values, errors = QUALITY.read(QUALITY.texts(texts))
    assert errors == {}
    return QUALITY.compute(values)


def column(table, name: str) -> list:
    place = list(table.header).index(name)
    return [row[place] for row in table.rows]


def test_it_opens_on_the_paper_s_sample_run():
    values, _ = QUALITY.read(QUALITY.defaults)
    assert values["variance"] == 1e-4
    assert values["iterations"] == 1000
    assert values["simulations"] == 100
    assert [values[f"size{k}"] for k in (1, 2, 3, 4)] == [10**2, 10**4, 10**6, 10**8]
    assert values["measure"] == "variance"
    figure = answer().figures[0]
    assert "sample variance" in figure.title
    assert figure.traces[0]["x"][-1] == 1000
    assert figure.x_log
    assert figure.y_log


def test_the_ground_truth_is_the_library_s():
    table = answer(size1="100", size2="", size3="", size4="", distance="0.3", prior_variance="4").tables[0]
    q = mcrepar.posterior(
        "normal", loc=torch.full((100,), 0.3, dtype=torch.float64), scale=torch.full((100,), 0.01, dtype=torch.float64)
    )
    exact = mcrepar.kl_divergence(q, mcrepar.prior("normal", scale=2.0), method="exact").item()
    assert column(table, "KL, closed form") == [pytest.approx(exact, rel=1e-12)]


@pytest.mark.parametrize("entropy", ["exact", "mc"])
def test_simulated_variances_follow_theory(entropy):
    curves = answer(entropy=entropy, simulations="1000", variance="0.25", distance="0.5").tables[1]
    ratios = [s / theory for s, theory in zip(column(curves, "sample variance, simulated"),
                                        column(curves, "sample variance, theory"), strict=True)]  # fmt: skip
    # a variance of 1000 nearly normal numbers is off by more than 5 sqrt(2 / 999) with chance 6e-7
    settled = [
        r for r, m, d in zip(ratios, column(curves, "M"), column(curves, "weights"), strict=True) if m * d > 1000
    ]
    assert max(abs(r - 1) for r in settled) < 5 * math.sqrt(2 / 999)
    pair = NormalPair(0.5, 0.5)
    names = ("sample variance, theory", "weights", "M")
    for theory, weights, draws in zip(*(column(curves, name) for name in names), strict=True):
        assert theory == pytest.approx(pair.std(weights, draws, entropy) ** 2)


def test_both_halves_of_the_truth():
    table = answer(simulations="1000").tables[0]
    absolute, relative = column(table, "sample variance, simulated"), column(table, "relative error, simulated")
    assert absolute == sorted(absolute)  # grows with the model
    assert relative == sorted(relative, reverse=True)  # falls with it
    assert len(set(column(table, "std of ∂KL/∂scale"))) == 1  # does not know it
    assert column(table, "std of ∂KL/∂scale")[0] == pytest.approx(math.sqrt(2) * 0.01 / math.sqrt(1000))


def test_networks_by_name():
    table = answer(size1="VGG-19", size2="ResNet-18", size3="alexnet", size4="").tables[0]
    assert column(table, "weights") == [75_623_498, 11_164_362, 2_174_912]
    assert column(table, "model")[0].startswith("vgg19")


def test_adding_a_model_leaves_the_others_as_they_are():
    few, many = answer(size3="", size4=""), answer()
    assert few.figures[0].traces == many.figures[0].traces[:4]


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    same, again, other = answer(), answer(), answer(seed="1")
    assert same.tables[1].rows == again.tables[1].rows
    assert same.tables[1].rows != other.tables[1].rows


def test_measures_and_axes():
    assert answer(measure="std", log="false").figures[0].y == "standard deviation, nats"
    assert not answer(log="false").figures[0].y_log
    assert answer(measure="error").tables[1].header[3] == "mean absolute error, simulated"


def test_the_largest_of_everything():
    big = answer(iterations="10^6", simulations="1000", size1="10^9", size2="10^9", size3="10^9", size4="10^9")
    assert all(math.isfinite(x) for row in big.tables[1].rows for x in row[2:])


def test_equal_distributions_have_no_error_with_sampled_entropy():
    zero = answer(variance="1", entropy="mc")
    assert column(zero.tables[0], "KL, closed form") == [0.0] * 4
    assert column(zero.tables[0], "std, sampled entropy") == [0.0] * 4


def test_no_size_at_all_is_said_at_the_first():
    values, _ = QUALITY.read(QUALITY.texts({f"size{k}": "" for k in (1, 2, 3, 4)}))
    with pytest.raises(FieldError) as caught:
        QUALITY.compute(values)
    assert caught.value.name == "size1"


def test_the_code_runs():
    scope: dict = {}
    code = answer(size1="50").code
    exec(compile(code, "code", "exec"), scope)
    assert scope["errors"].shape == (100,)


def test_numbers_for_people():
    assert power_of_ten(10**9) == "10⁹"
    assert power_of_ten(1000) == "1,000"
    assert nats(410522018.6) == "410,522,019"
    assert nats(0.123456) == "0.12346"
