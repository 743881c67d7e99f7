"""The bridge to Lightning, with the real package."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mcrepar

pytest.importorskip("lightning", reason="lightning is not installed: pip install mcrepar[lightning]")
import lightning as L

from mcrepar.lightning import BayesianLightningModule, PosteriorMonitor
from mcrepar.likelihoods import Normal, PerVoxel

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, of loaders without workers and the like


def batches(n=64, classes=True):
    torch.manual_seed(0)
    x = torch.randn(n, 4)
    y = (x[:, 0] > 0).long() if classes else x[:, :1] + 0.1 * torch.randn(n, 1)
    return DataLoader(TensorDataset(x, y), 16)


def trainer(tmp_path, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"enable_checkpointing": False, "max_epochs": 8, **options}
    return L.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet, **options)


def test_a_classifier_learns_and_everything_is_logged(tmp_path):
    beta = mcrepar.kl_weight("linear", steps=20, beta=0.1)
    module = BayesianLightningModule(
        nn.Linear(4, 2), "categorical", data_size=64, beta=beta, lr=0.05, posterior="normal"
    )
    t = trainer(tmp_path, callbacks=[PosteriorMonitor(every_n_epochs=2)])
    t.fit(module, batches(), batches())
    found = t.callback_metrics
    assert found.keys() >= {"train_loss", "val_nll", "val_accuracy", "nll", "kl", "beta"}
    assert found.keys() >= {"diagnose/effective", "diagnose/moved", "diagnose/at_prior"}
    assert found["val_accuracy"] > 0.85
    assert found["beta"] == pytest.approx(0.1)
    assert found["kl"].item() == pytest.approx(float(mcrepar.kl(module.bnn)), rel=0.2)  # of a step before
    assert found["diagnose/effective"].item() == pytest.approx(module.bnn.diagnose().effective, rel=1e-4)
    (tested,) = t.test(module, batches(), verbose=False)
    assert tested["test_accuracy"] > 0.85
    rows = t.predict(module, batches())
    assert rows[0].keys() == {"mean", "std", "label", "entropy", "mutual_information"}
    assert module.prediction(torch.zeros(3, 4)).probs.shape == (3, 2)


def test_the_monitor_logs_the_beta_of_the_step_that_was_made(tmp_path):
    used, logged = [], []

    class Reader(L.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            logged.append(float(trainer.callback_metrics["beta"]))

    def beta(step):
        return used.append(step / 10) or step / 10

    module = BayesianLightningModule(nn.Linear(4, 2), "categorical", data_size=64, beta=beta, posterior="normal")
    trainer(tmp_path, max_epochs=1, callbacks=[PosteriorMonitor(), Reader()]).fit(module, batches())
    assert used == [0.0, 0.1, 0.2, 0.3]
    assert logged == pytest.approx(used)


def test_a_step_is_the_elbo():
    torch.manual_seed(0)
    bnn = mcrepar.bayesian(nn.Linear(4, 1), "normal")
    module = BayesianLightningModule(bnn, Normal(0.5), data_size=100, beta=0.3)
    assert module.bnn is bnn
    x, y = next(iter(batches(classes=False)))
    torch.manual_seed(1)
    loss = module.training_step((x, y))
    torch.manual_seed(1)
    torch.testing.assert_close(loss, mcrepar.elbo(bnn, Normal(0.5), x, y, data_size=100, beta=0.3).loss)


def test_voxels_that_are_left_out_have_no_score(monkeypatch):
    torch.manual_seed(0)
    module = BayesianLightningModule(mcrepar.bayesian(nn.Conv2d(1, 3, 1)), PerVoxel(), data_size=8)
    noted = {}
    monkeypatch.setattr(module, "_note", lambda name, value, size: noted.update({name: float(value)}))
    y = torch.randint(3, (2, 4, 4)).byte()
    y[:, :2] = 255
    module.test_step((torch.randn(2, 1, 4, 4), y))
    assert 0 < noted["test_nll"] < 10
    assert (noted["test_accuracy"] * 16) % 1 == 0  # of the 16 that are told


def test_a_regression_trains_its_noise(tmp_path):
    torch.manual_seed(0)
    module = BayesianLightningModule(nn.Linear(4, 1), Normal("learned"), data_size=64, lr=0.05, posterior="normal")
    optimizer = module.configure_optimizers()
    assert any(p is module.likelihood.log_scale for group in optimizer.param_groups for p in group["params"])
    trainer(tmp_path, max_epochs=3).fit(module, batches(classes=False), batches(classes=False))
    assert float(module.likelihood.log_scale) < -0.1


def test_a_checkpoint_brings_everything_back(tmp_path):
    def made():
        return BayesianLightningModule(nn.Linear(4, 2), "categorical", data_size=64, posterior="normal")

    module, t = made(), trainer(tmp_path, max_epochs=1)
    t.fit(module, batches())
    t.save_checkpoint(tmp_path / "a.ckpt")
    other = made()
    other.load_state_dict(torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"])
    for name, value in module.bnn.mean().items():
        torch.testing.assert_close(other.bnn.mean()[name], value)


def test_the_monitor_needs_an_elbo(tmp_path):
    class Plain(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch, index):
            return self.net(batch[0]).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(mcrepar.ParameterError, match="PosteriorMonitor with a Plain"):
        trainer(tmp_path, callbacks=[PosteriorMonitor()]).fit(Plain(), batches())
