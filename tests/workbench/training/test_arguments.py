import pytest
import torch
from jsonargparse import ArgumentParser

from mcrepar.data import DATASETS
from mcrepar.errors import ParameterError
from mcrepar.models import MODELS
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.workbench.training.arguments import RECIPES, add_arguments, expand, read_arguments, recipes
from mcrepar.workbench.training.checkpoint import write
from mcrepar.workbench.training.config import TrainConfig, flag, names
from mcrepar.workbench.training.setup import build_network, make_bayesian
from mcrepar.workbench.training.task import Facts, read_data
from tests.data.test_folder import picture


def parsed(*words: str) -> TrainConfig:
    parser = ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return read_arguments(parser.parse_args(expand(words)).as_dict())


def test_no_words_are_the_defaults():
    assert parsed() == TrainConfig()


def test_flags_of_every_kind():
    c = parsed(
        "--n-mc-iter", "1000", "--lr", "1e-4", "--prior", "normal", "--prior-options.scale", "learned",
        "--prior-options.loc=0.5",
        "--no-channels-last", "--pretrained", "--last-layer-draws", "exact", "--data-options", '{"size": [3, 4]}',
    )  # fmt: skip
    assert (c.n_mc_iter, c.lr, c.channels_last, c.pretrained, c.last_layer_draws) == (1000, 1e-4, False, True, "exact")
    assert c.prior_options == {"scale": "learned", "loc": 0.5}
    assert c.data_options == {"size": [3, 4]}


def test_an_option_is_read_by_its_earlier_name_too(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("start_std: 0.2\n")
    assert parsed("--start-std", "0.2").initial_std == parsed("--config", str(path)).initial_std == 0.2
    assert parsed(f"--config={path}", "--epochs", "3") == TrainConfig(initial_std=0.2, epochs=3)


@pytest.mark.parametrize("size", ["12,16", "(12, 16)", "[12,16]", "[12, 16]"])
def test_a_size_is_typed_as_messages_spell_it(size, tmp_path):
    picture(tmp_path / "train" / "a" / "0.png", (6, 8))
    picture(tmp_path / "train" / "b" / "0.png", (7, 9))
    picture(tmp_path / "test" / "a" / "0.png", (6, 8))
    c = parsed("--data", "folder", "--root", str(tmp_path), "--data-options.size", size)
    assert read_data(c)[0].size == (12, 16)


def test_every_option_is_a_flag_with_its_default_in_the_help():
    parser = ArgumentParser()
    add_arguments(parser)
    text = parser.format_help()
    assert all(flag(name) in text for name in names())
    assert text.count("default:") >= len(names())
    assert all(name in text for name in (*recipes(), *DATASETS, *MODELS))


def test_a_file_gives_defaults_and_flags_win(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("epochs: 7\nlr: 0.5\nprior_options: {scale: 2.0}\n")
    c = parsed("--config", str(path), "--lr", "0.25")
    assert (c.epochs, c.lr, c.prior_options) == (7, 0.25, {"scale": 2.0})


@pytest.mark.parametrize("words", [["--recipe", "digits"], ["--recipe=digits"]])
def test_flags_win_over_a_recipe_wherever_they_stand(words):
    c = parsed("--epochs", "3", *words)
    assert (c.epochs, c.batch_size) == (3, 128)


def test_an_unknown_recipe_names_near_ones():
    with pytest.raises(ParameterError, match="Use digits"):
        expand(["--recipe", "digit"])


def test_resume_takes_the_options_of_the_run(tmp_path):
    (tmp_path / "config.yaml").write_text(TrainConfig(epochs=7, lr=0.5, out="elsewhere").to_yaml())
    for out in (["--out", str(tmp_path)], [f"--out={tmp_path}"]):
        c = parsed("--resume", *out)
        assert (c.epochs, c.lr, c.out, c.resume) == (7, 0.5, str(tmp_path), True)
        assert parsed("--resume", *out, "--lr", "1").lr == 1.0
        assert parsed(*out).epochs == 100
    assert parsed("--resume", *out, "--recipe", "digits").epochs == 40  # which `train` then refuses


def test_resume_of_nothing_and_without_options_is_refused(tmp_path):
    """A job that was killed before config.yaml was written must not train the defaults."""
    out = ["--out", str(tmp_path / "nosuch")]
    for words in ([], ["--threads", "1"], ["--progress=none", "--no-tensorboard", "--root", "data"]):
        with pytest.raises(ParameterError, match="there is no run to go on with"):
            expand(["--resume", *out, *words])


def test_resume_of_nothing_begins_what_the_options_say(tmp_path):
    out = ["--resume", "--out", str(tmp_path / "nosuch")]
    assert parsed(*out, "--epochs", "7").epochs == 7
    assert parsed(*out, "--recipe", "digits").epochs == 40
    (tmp_path / "a.yaml").write_text("epochs: 5")
    assert parsed(*out, "--config", str(tmp_path / "a.yaml")).epochs == 5


def test_resume_refuses_options_that_were_cut_short(tmp_path):
    """Cut after any line, what is left is valid YAML with fewer options."""
    path = tmp_path / "config.yaml"
    lines = TrainConfig(epochs=3, batch_size=128).to_yaml().splitlines(keepends=True)
    for end in range(len(lines)):
        path.write_text("".join(lines[:end]))
        if any(line.startswith("channels_last") for line in lines[:end]):
            break  # only options that may differ are left out
        with pytest.raises(ParameterError, match=r"config\.yaml: .*--resume restores it"):
            expand(["--resume", "--out", str(tmp_path)])
    assert end > 40


def test_without_config_yaml_the_options_come_from_the_checkpoint(tmp_path):
    options = TrainConfig(epochs=7, lr=0.5, data_options={"size": (3, 4)}).plain()
    write(tmp_path / "checkpoints", 1, {"step": 1, "options": options})
    c = parsed("--resume", "--out", str(tmp_path))
    assert (c.epochs, c.lr, c.data_options, c.out) == (7, 0.5, {"size": [3, 4]}, str(tmp_path))
    write(tmp_path / "checkpoints", 2, {"step": 2, "options": {**options, "width": 3}})
    with pytest.raises(ParameterError, match="there is no option 'width'"):
        expand(["--resume", "--out", str(tmp_path)])


SIZES = {
    "digits": (1, (8, 8), 10), "mnist": (1, (28, 28), 10), "fashion_mnist": (1, (28, 28), 10),
    "cifar10": (3, (32, 32), 10), "medmnist": (1, (28, 28, 28), 2), "brain": (1, (35, 42, 35), 2),
    "structures": (1, (48, 48), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_is_possible_and_says_what_it_does(name):
    """It parses, passes the checks, and its network becomes Bayesian; the header names beta, prior and annealing."""
    c = parsed("--recipe", name)
    c.check()
    channels, size, classes = SIZES[c.data]
    facts = Facts(
        100, channels, size, tuple("abcdefghij"[:classes]), (0.0,) * channels, (1.0,) * channels, (0.0, 1.0), "", False
    )
    with torch.device("meta" if c.model.startswith(("vgg", "densenet", "preact")) else "cpu"):
        net = build_network(c, facts)
        if next(net.parameters()).device.type == "cpu":
            assert make_bayesian(net, c).kl() > 0
    header = "".join(line for line in (RECIPES / f"{name}.yaml").read_text().splitlines(True) if line.startswith("#"))
    for word in (f"beta {c.beta:g}", "prior", "anneal", "easured"):
        assert word in header, word
    assert c.kl_schedule != "graves" or "beta 1" in header


def test_a_prior_of_factors_with_options_stays_around_one():
    c = parsed("--structure", "rank1", "--prior", "normal", "--prior-options.scale", "0.2")
    bnn = make_bayesian(torch.nn.Linear(3, 2), c)
    priors = [t.options.prior for random in random_tensors(bnn).values() for t in random.tensors]
    assert {(p.values["loc"], p.values["scale"]) for p in priors} == {(1.0, 0.2)}
