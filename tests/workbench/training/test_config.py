import inspect
import os
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
import yaml

from mcrepar.data.batches import AUGMENTATIONS
from mcrepar.errors import ParameterError
from mcrepar.kl_schedules import SCHEDULES
from mcrepar.nn.forwards import FORWARDS
from mcrepar.nn.module import bayesian
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import GROUPS, LEAST, TrainConfig, names, read_config
from tests.workbench.training.tiny import config, write_numbers


def test_the_defaults_are_those_of_bayesian_with_the_whole_kl():
    c, names = TrainConfig(), inspect.signature(bayesian).parameters
    assert (c.posterior, c.forward, c.structure, c.members) == tuple(
        names[name].default for name in ("posterior", "forward", "structure", "members")
    )
    assert (c.prior, names["prior"].default) == ("auto", None)
    assert (c.kl_schedule, c.beta, c.epochs, c.batch_size) == ("graves", 1.0, 100, 32)


def test_options_of_a_prior_that_nobody_named_are_refused():
    with pytest.raises(ParameterError, match=r"--prior names none. Name the family too"):
        TrainConfig(prior_options={"scale": 0.5}).check()


def test_every_option_has_a_meaning_and_one_name():
    every = [f for group in GROUPS for f in fields(group)]
    assert all(f.metadata["help"] for f in every)
    assert len({f.name for f in every}) == len(every) == len(fields(TrainConfig))


def test_yaml_brings_back_the_same_options(tmp_path):
    c = TrainConfig(lr=1e-5, prior="normal", prior_options={"scale": "learned", "loc": 0.0}, root="a: b", clip=2.0,
                    last_layer_draws=4, data_options={"size": [3, 4, 5]}, pretrained=True)  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(c.to_yaml())
    assert read_config(path) == c
    assert "resume" not in yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "cannot be read"),
        ("just words", "no options"),
        ("epochs: 3\nnosuch: 1\n", "no option 'nosuch'"),
        ("epochs: abc\n", "config.yaml.*--epochs 'abc'.*no value of.*a whole number"),
        ("epochs: 0\n", "less than 1"),
        ("lr: yes\n", "no value of"),
    ],
)
def test_a_file_that_is_no_config_is_refused(text, why, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ParameterError, match=why):
        read_config(path)


def test_a_number_that_yaml_takes_for_a_text_is_one(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-3\nnoise: learned\nroot: 1e-3\n")
    assert read_config(path) == TrainConfig(lr=1e-3, root="1e-3")


def test_data_may_move_between_a_run_and_its_continuation():
    assert TrainConfig(root="data").differences(TrainConfig(root="elsewhere/data")) == []
    assert TrainConfig(data="mnist").differences(TrainConfig()) == ["data"]


@pytest.mark.parametrize(("before", "after"), [("lr: 0.5", "lr: 0.25"), ("epochs: 3\n", ""), ("small_conv", "alexnet")])
def test_options_that_were_changed_after_they_were_written_are_refused(before, after, tmp_path):
    path = tmp_path / "config.yaml"
    text = TrainConfig(lr=0.5, epochs=3).to_yaml()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(ParameterError, match="cut short or changed"):
        read_config(path)


def test_what_may_differ_may_be_changed_in_the_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("# moved\n" + TrainConfig(lr=0.5, root="here").to_yaml().replace("root: here", "root: there"))
    assert read_config(path) == TrainConfig(lr=0.5, root="there")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_a_file_that_never_ends_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ParameterError, match="cannot be read"):
        read_config(tmp_path / "config.yaml")


def test_options_survive_a_checkpoint():
    c = TrainConfig(lr=1e-5, beta=1, data_options={"size": (3, 4)}, noise="learned")
    assert c.differences(TrainConfig(**c.plain())) == []


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="cannot be read"):
        read_config(tmp_path / "config.yaml")


def test_the_defaults_pass():
    TrainConfig().check()


@pytest.mark.parametrize("name", LEAST)
def test_numbers_that_are_too_small_are_refused(name):
    with pytest.raises(ParameterError, match="--" + name.replace("_", "-")):
        TrainConfig(**{name: LEAST[name] - 1}).check()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"epochs": "3"}, "no value of"),
        ({"epochs": 3.0}, "no value of"),
        ({"epochs": True}, "no value of"),
        ({"out": ""}, "it is empty"),
        ({"root": ""}, "it is empty"),
        ({"clip": "much"}, "no value of"),
        ({"precision": "fp8"}, "no value of"),
        ({"prior_options": [1]}, "no value of"),
        ({"lr": 0.0}, "not positive"),
        ({"lr": float("nan")}, "not positive"),
        ({"initial_std": -1.0}, "not positive"),
        ({"clip": 0.0}, "not positive"),
        ({"kl_warmup": 1.5}, "a share above 1"),
        ({"validation": 1.0}, "a share above 0.9"),
        ({"epochs": 3, "deterministic_epochs": 4}, "would be deterministic"),
        ({"beta": 0.5}, "graves has no beta"),
        ({"gradient_accumulation": 2.5}, "no value of"),
        ({"gradient_accumulation": 4, "draws": 2}, "has one draw, and --draws 2 asks for others. Use one of the two"),
        ({"gradient_accumulation": 4, "last_layer_draws": "exact"}, "one draw, and --last-layer-draws exact asks"),
        ({"gradient_accumulation": 4, "n_mc_iter": 10}, "has one draw, and --n-mc-iter 10 asks for others"),
        ({"gradient_accumulation": 4, "kl_method": "stats"}, "by direct, and --kl-method stats is another estimator"),
        ({"stop_on": "elbo"}, "nothing stops without --patience"),
        ({"stop_on": "accuracy", "patience": 3}, "no value of"),
        ({"beta": float("nan"), "kl_schedule": "constant"}, "less than 0"),
    ],
)
def test_what_cannot_be_is_refused(options, why):
    with pytest.raises(ParameterError, match=why):
        TrainConfig(**options).check()


def test_differences_name_what_matters():
    a = TrainConfig(out="a", threads=1)
    assert a.differences(TrainConfig(out="b", threads=2, resume=True, progress="none")) == []
    assert a.differences(TrainConfig(out="a", lr=1.0, seed=3)) == ["lr", "seed"]


def test_names_are_those_of_the_dataclass():
    assert set(names()) == {f.name for f in fields(TrainConfig)}


@pytest.mark.parametrize(("name", "table"), [("augment", {"auto", *AUGMENTATIONS}), ("kl_schedule", SCHEDULES)])
def test_words_are_those_of_the_tables(name, table):
    """An option whose words the command line knows offers every row of its table, and no other."""
    assert set(get_args(get_type_hints(TrainConfig)[name])) == set(table)


def test_the_help_names_every_forward():
    (meaning,) = (f.metadata["help"] for f in fields(TrainConfig) if f.name == "forward")
    assert all(name in meaning for name in FORWARDS)


@pytest.mark.parametrize("seeds", ["", "a", "0,0", "0;1", "0,-1", "0,"])
def test_seeds_that_are_no_numbers_are_refused(seeds):
    with pytest.raises(ParameterError, match="different whole numbers"):
        TrainConfig(seeds=seeds).runs()


def test_several_seeds_are_several_runs(tmp_path):
    write_numbers(tmp_path, 40)
    options = {"model": "fcnet", "model_options": {}, "augment": "auto", "epochs": 1, "calibration": 2}
    folder = train(config(tmp_path, seeds="3,5", **options))
    assert sorted(path.name for path in folder.iterdir()) == ["seed-3", "seed-5"]
    assert [read_config(folder / f"seed-{seed}" / "config.yaml").seed for seed in (3, 5)] == [3, 5]


def test_members_of_weights_are_refused_by_their_flags():
    with pytest.raises(ParameterError, match=r"--members 4: .*--structure rank1"):
        TrainConfig(members=4).check()
    TrainConfig(members=4, structure="rank1").check()
