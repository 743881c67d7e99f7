"""Norm statistics belong to a draw: those of the batch under it; pooled ones are stored instead (float64)."""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar import ParameterError, bayesian, predict
from mcrepar.nn import model_folder as folder
from mcrepar.nn.calibration import complete
from mcrepar.nn.description import Shelf, describe_random, describe_tree
from mcrepar.nn.prediction_passes import one_draw
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.swap import run
from tests.conftest import seeded


def network(norm: type[nn.Module] = nn.BatchNorm2d, **options) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), norm(4, **options), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(4, 3, 2), norm(3, **options),
        nn.Flatten(), nn.Linear(27, 2),
    ).double()  # fmt: skip


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


BATCH, X = randn(16, 2, 6, 6), randn(5, 2, 6, 6, seed=2)
NORMS = {
    "default": {},
    "momentum": {"momentum": 0.3},
    "cumulative": {"momentum": None},
    "without affine": {"affine": False},
}


def by_hand(draw: dict[str, Tensor], **options) -> nn.Sequential:
    """The plain network at a draw, its norm layers fed with the kept batch alone."""
    plain = network(**options)
    with torch.no_grad():
        for name, p in plain.named_parameters():
            if name in draw:
                p.copy_(draw[name])
        for layer in plain.eval():
            if isinstance(layer, nn.modules.batchnorm._NormBase):
                layer.train()
                layer.momentum = 1.0
        plain(BATCH)
    return plain.eval()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", NORMS.values(), ids=list(NORMS))
def test_the_statistics_of_a_draw_are_those_of_the_kept_batch(options, training):
    bnn = bayesian(network(**options), start_std=0.5).calibrate(BATCH).train(training)
    before = copy.deepcopy(bnn.net.state_dict())
    modes = [(m.training, getattr(m, "momentum", None)) for m in bnn.modules()]
    for _ in range(2):
        draw = bnn.draw()
        wanted = by_hand(draw, **options).state_dict()
        whole = complete(bnn, draw)
        for layer in ("1", "5"):
            for statistic in ("running_mean", "running_var"):
                torch.testing.assert_close(whole[f"{layer}.{statistic}"], wanted[f"{layer}.{statistic}"])
    assert [(m.training, getattr(m, "momentum", None)) for m in bnn.modules()] == modes
    assert all(torch.equal(t, before[n]) for n, t in bnn.net.state_dict().items())  # the network's own are untouched


def test_instance_norm_that_tracks_is_calibrated_too():
    options = {"norm": nn.InstanceNorm2d, "track_running_stats": True}
    bnn = bayesian(network(**options)).calibrate(BATCH).eval()
    draw = bnn.draw()
    with bnn.frozen(draw):
        torch.testing.assert_close(bnn(X), by_hand(draw, **options)(X))


class Twice(nn.Module):
    """A norm layer that is used for two inputs of one forward."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv1d(2, 3, 1), norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) + self.norm(self.layer(3 * x + 1))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
def test_a_norm_that_is_used_twice_has_the_mean_of_both(norm):
    bnn, x = bayesian(Twice(norm).double()), randn(8, 2, 5)
    found = complete(bnn.calibrate(x), draw := bnn.draw())
    h = [torch.nn.functional.conv1d(z, draw["layer.weight"], draw["layer.bias"]) for z in (x, 3 * x + 1)]
    torch.testing.assert_close(found["norm.running_mean"], torch.stack([t.mean((0, 2)) for t in h]).mean(0))
    single = isinstance(norm, nn.InstanceNorm1d)
    variances = [t.var(2).mean(0) if single else t.var((0, 2)) for t in h]
    torch.testing.assert_close(found["norm.running_var"], torch.stack(variances).mean(0))
    assert (norm.momentum, len(norm._forward_pre_hooks)) == (0.1, 0)


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d, lambda size: nn.GroupNorm(1, size)])
def test_norm_layers_without_statistics_need_no_batch(norm):
    bnn = bayesian(network(norm)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predict(bnn, X, draws=2).mean.shape == (5, 2)


def test_frozen_predict_and_export_use_them():
    bnn = bayesian(network(), start_std=0.5).calibrate(BATCH).eval()
    draw = bnn.draw(seeded(3))
    wanted = by_hand(draw)(X).detach()
    with bnn.frozen(draw):
        torch.testing.assert_close(bnn(X), wanted)
    torch.testing.assert_close(bnn.to_module(draw)(X), wanted)
    generator = seeded(3)
    draws = [bnn.draw(generator) for _ in range(3)]
    got = predict(bnn, X, draws=3, batch_size=2, generator=seeded(3)).samples
    torch.testing.assert_close(got, torch.stack([by_hand(d)(X).detach() for d in draws]))
    with bnn.frozen("mean"):
        torch.testing.assert_close(bnn(X), by_hand(bnn.mean())(X))


def test_keywords_and_several_arguments_are_kept():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.BatchNorm1d(3), nn.Linear(3, 2)

        def forward(self, x: Tensor, *, shift: Tensor, scale: float) -> Tensor:
            return self.norm(self.layer(x).sum(1, keepdim=True) * scale + shift)

    bnn = bayesian(Two()).calibrate(torch.randn(8, 3), shift=torch.randn(8, 3), scale=2.0)
    args, kwargs = bnn.calibration.kept
    assert args[0].shape == (8, 3)
    assert kwargs["scale"] == 2.0
    assert set(complete(bnn)) >= {"norm.running_mean", "norm.running_var"}
    bnn.calibrate(torch.randn(4, 3), shift=torch.zeros(4, 3), scale=1.0)  # another batch replaces it
    assert bnn.calibration.kept[0][0].shape == (4, 3)
    assert len(list(bnn.calibration.buffers())) == 2


def test_predict_warns_once_without_a_batch():
    bnn = bayesian(network())
    with pytest.warns(UserWarning, match=r"BatchNorm.*bnn\.calibrate\(x\)") as seen:
        predict(bnn, X, draws=3)
    assert len(seen) == 1
    assert seen[0].filename == __file__  # the user's line, not one of contextlib
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(bnn, X, draws=2)
        predict(bayesian(network()).calibrate(BATCH), X, draws=2)
        with bayesian(network()).train().frozen("mean"):  # in training the statistics are those of the batch
            pass


def assembled() -> nn.Sequential:
    return nn.Sequential(mcrepar.nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: complete(bayesian(network()).eval()),
        lambda: bayesian(network()).eval().frozen("mean").__enter__(),
        lambda: predict(assembled(), torch.zeros(4, 3), draws=1),
    ],
    ids=["complete", "frozen", "predict, by hand"],
)
def test_the_warning_names_the_users_line_by_every_way(ask):
    with pytest.warns(UserWarning, match="BatchNorm") as seen:
        ask()
    assert [warning.filename for warning in seen] == [__file__]


def test_the_batch_is_copied_and_moved_and_kept_on_disk_if_asked(tmp_path):
    bnn = bayesian(network(), start_std=0.5).calibrate(BATCH)
    mcrepar.save(bnn, tmp_path / "bnn", keep_calibration_data=True)
    wanted = predict(bnn, X, draws=2, generator=seeded(4)).samples
    for twin in (mcrepar.load(tmp_path / "bnn", network()), copy.deepcopy(bnn)):
        assert torch.equal(predict(twin, X, draws=2, generator=seeded(4)).samples, wanted)
    single = bnn.float()
    assert single.calibration.kept[0][0].dtype == torch.float32
    assert predict(single, X.float(), draws=2).mean.dtype == torch.float32


# ---- what is stored


def pooled_by_hand(bnn: mcrepar.BayesianModule) -> dict[str, Tensor]:
    """The mean and variance of what a norm layer sees, over 32 draws and the batch, as a mixture."""
    generator, rows = seeded(0), []
    for _ in range(32):
        state = by_hand(bnn.draw(generator)).state_dict()
        rows.append({n: t for n, t in state.items() if n.endswith(("running_mean", "running_var"))})
    found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    mean = {name: t.mean(0) for name, t in found.items()}
    for layer in ("1", "5"):
        mean[f"{layer}.running_var"] += found[f"{layer}.running_mean"].var(0, correction=0)
    return mean


def folders_twin(bnn, path):
    mcrepar.save(bnn, path)
    return mcrepar.load(path, network())


def states_twin(bnn, path):
    twin = bayesian(network(), start_std=0.5)
    twin.load_state_dict(bnn.state_dict())
    return twin


WAYS = [folders_twin, states_twin, lambda bnn, path: pickle.loads(pickle.dumps(bnn))]  # noqa: S301


@pytest.mark.parametrize("way", WAYS, ids=["save", "state_dict", "pickle"])
def test_a_stored_network_has_pooled_statistics_and_no_data(way, tmp_path):
    bnn = bayesian(network(), start_std=0.5).calibrate(BATCH).eval()
    wanted, state = pooled_by_hand(bnn), torch.random.get_rng_state()
    twin = way(bnn, tmp_path / "bnn").eval()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert twin.calibration.kept is None
    with pytest.warns(UserWarning, match=r"pooled over draws.*bnn\.calibrate\(x\)") as seen:
        found = [complete(twin, twin.draw()) for _ in range(2)]
    assert len(seen) == 1
    for whole in found:
        for name, statistic in wanted.items():
            torch.testing.assert_close(whole[name], statistic)
    plain = by_hand(draw := bnn.draw(seeded(4)))
    plain.load_state_dict({**plain.state_dict(), **wanted}, strict=False)
    with twin.frozen(draw):
        torch.testing.assert_close(twin(X), plain(X))
    twin.calibrate(BATCH)  # a batch of one's own gives every draw its own again
    got = (predict(b, X, draws=2, generator=seeded(4)).samples for b in (bnn, twin))
    torch.testing.assert_close(*got)


SECRET = 123456.7890625  # a value of the training data, exact in float64


@pytest.mark.parametrize("keep", [False, True])
def test_training_data_are_on_disk_only_if_asked(keep, tmp_path):
    batch = BATCH.clone()
    batch[3] = SECRET
    bnn = bayesian(network()).calibrate(batch)
    mcrepar.save(bnn, tmp_path / "bnn", keep_calibration_data=keep)
    image = batch[3, 0, 0].numpy().tobytes()
    files = b"".join(path.read_bytes() for path in (tmp_path / "bnn").iterdir())
    assert (image in files) == keep
    assert json.loads((tmp_path / "bnn" / "config.json").read_text())["holds_training_data"] == keep
    assert image not in pickle.dumps(bnn)
    assert image not in bnn.state_dict()["_extra_state"].numpy().tobytes()
    assert not any(torch.equal(t, batch) for t in bnn.state_dict().values())


def test_whether_to_keep_data_is_yes_or_no(tmp_path):
    with pytest.raises(ParameterError, match=r"it is not yes or no\. Use True or False"):
        mcrepar.save(bayesian(network()), tmp_path / "bnn", keep_calibration_data="no")


def test_what_is_stored_are_the_statistics_of_the_weights_at_that_time(tmp_path):
    """save measures anew; a network that is trained after loading has outgrown what was stored."""
    bnn = bayesian(network(), start_std=0.5).calibrate(BATCH)
    with torch.no_grad():
        bnn.latents["0/weight"].loc.add_(1.0)
    twin = folders_twin(bnn, tmp_path / "bnn").eval()
    wanted = pooled_by_hand(bnn)
    with pytest.warns(UserWarning, match="pooled"):
        torch.testing.assert_close(complete(twin)["1.running_mean"], wanted["1.running_mean"])
    twin.train()(BATCH)
    assert "1.running_mean" not in complete(twin.eval())
    again = folders_twin(twin, tmp_path / "again").eval()
    with pytest.warns(UserWarning, match="running statistics"):
        assert "1.running_mean" not in complete(again)


def test_states_and_folders_of_before_bring_their_batch(tmp_path):
    bnn = bayesian(network(), start_std=0.5).calibrate(BATCH).eval()
    wanted = predict(bnn, X, draws=2, generator=seeded(4)).samples
    mcrepar.save(bnn, tmp_path / "bnn", keep_calibration_data=True)
    config, tensors = folder.read(tmp_path / "bnn")
    for key in ("norm_statistics", "holds_training_data"):
        del config[key]
    folder.write(tmp_path / "old", config, tensors)
    old = bayesian(network(), start_std=0.5).eval()
    old.load_state_dict({**bnn.state_dict(), "_extra_state": older_state(bnn)})
    for twin in (mcrepar.load(tmp_path / "old", network()), old):
        assert torch.equal(twin.calibration.kept[0][0], BATCH)
        assert torch.equal(predict(twin, X, draws=2, generator=seeded(4)).samples, wanted)


def older_state(bnn: mcrepar.BayesianModule) -> Tensor:
    """What get_extra_state wrote when it held the batch."""
    shelf, file = Shelf(), io.BytesIO()
    words = {**describe_random(random_tensors(bnn), shelf), "calibration": describe_tree(bnn.calibration.kept, shelf)}
    torch.save({"words": json.dumps(words), "tensors": shelf.tensors}, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def test_training_works_and_learns_running_statistics():
    bnn = bayesian(network(), start_std=0.1)
    assert "1.weight" not in bnn.draw()  # norm layers stay deterministic
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
    before = bnn.net[1].running_mean.clone()
    for _ in range(3):
        optimizer.zero_grad()
        (bnn(BATCH).square().mean() + mcrepar.kl(bnn) / 1000).backward()
        assert all(p.grad.isfinite().all() for p in bnn.parameters())
        optimizer.step()
    assert not torch.equal(bnn.net[1].running_mean, before)
    assert bnn.net[1].num_batches_tracked == 3


def test_pooled_statistics_of_a_layer_that_was_replaced_are_not_used(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    bnn = mcrepar.bayesian(net).calibrate(torch.randn(16, 3))
    twin = pickle.loads(pickle.dumps(bnn)).eval()  # noqa: S301  # our own bytes
    twin.net[3] = nn.Identity()
    with pytest.warns(UserWarning, match="running statistics"):
        assert mcrepar.predict(twin, torch.zeros(2, 3), draws=2).mean.shape == (2, 4)


def test_a_state_dict_says_that_its_pooled_statistics_are_of_before():
    """Training after `calibrate` makes them stale: they are in the state_dict, and no prediction uses them."""
    torch.manual_seed(0)
    bnn, x = bayesian(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))), torch.randn(16, 3)
    bnn.calibrate(x).state_dict()  # no warning
    bnn.train()(x)
    with pytest.warns(UserWarning, match=r"trained after bnn\.calibrate\(x\).*once more before state_dict") as caught:
        bnn.state_dict()
    assert caught[0].filename == __file__
    bnn.calibrate(x).state_dict()


def test_a_batch_without_examples_is_refused():
    bnn = bayesian(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ParameterError, match="no examples"):
        bnn.calibrate(torch.ones(0, 3))


# ---- members of rank-1 factors


def members() -> mcrepar.BayesianModule:
    return bayesian(network(), structure="rank1", members=3, start_std=0.05)


def saved_members(bnn, path):
    mcrepar.save(bnn, path)
    return mcrepar.load(path, network())


def members_of_a_state(bnn, path):
    twin = members()
    twin.load_state_dict(bnn.state_dict())
    return twin


@pytest.mark.filterwarnings("ignore:the network has BatchNorm")
@pytest.mark.parametrize("way", [saved_members, members_of_a_state])
def test_every_member_has_stored_statistics_of_its_own(way, tmp_path):
    """The error of a pooled mean is that of 10 draws of one member, five times less than members are apart."""
    bnn = members().calibrate(BATCH).eval()
    twin, draws = way(bnn, tmp_path / "bnn").eval(), [bnn.draw(seeded(k), k % 3) for k in range(90)]
    own = torch.stack([complete(bnn, draw)["5.running_mean"] for draw in draws]).view(30, 3, 3).mean(0)
    stored = torch.stack([complete(twin, "draw", k)["5.running_mean"] for k in range(3)])
    apart = torch.cdist(own, own)[~torch.eye(3, dtype=torch.bool)].min()
    assert (stored - own).norm(dim=1).max() < apart / 5
    torch.testing.assert_close(complete(twin)["5.running_mean"], stored.mean(0))  # of a mean of members, their mixture
    with one_draw(twin, seeded(7), 4) as call:  # the fifth draw is one of the second member
        torch.testing.assert_close(call(X), run(twin, complete(twin, twin.draw(seeded(7), 1), 1), X))


def test_one_set_of_statistics_that_was_stored_before_is_that_of_all_members(tmp_path):
    bnn = members().calibrate(BATCH)
    mcrepar.save(bnn, tmp_path / "bnn")
    config, tensors = folder.read(tmp_path / "bnn")
    config["norm_statistics"] = config["norm_statistics"]["list"][1]
    folder.write(tmp_path / "old", config, tensors)
    old = mcrepar.load(tmp_path / "old", network()).eval()
    found = [old.calibration.stored(old.net, member) for member in (0, 2, None)]
    for statistics in found:
        assert torch.equal(statistics["5.running_mean"], bnn.calibration.pooled[1]["5.running_mean"])
