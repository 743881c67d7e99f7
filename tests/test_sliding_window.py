"""Windows over whole images: one draw is one network everywhere, overlaps average, memory does not grow with draws."""

import pytest
import torch
from torch import nn

import mcrepar
from mcrepar.errors import ParameterError
from mcrepar.inspect.graph import peak_bytes
from mcrepar.models import model
from mcrepar.sliding_window import predict_image, windows_at_once
from tests.conftest import seeded


def pointwise(classes=3, dimensions=2, channels=1, std=0.5):
    """A network that sees one voxel at a time: windows cannot change what it says."""
    torch.manual_seed(0)
    layer = {2: nn.Conv2d, 3: nn.Conv3d}[dimensions](channels, classes, 1)
    return mcrepar.bayesian(layer, initial_std=std)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 0.75])
@pytest.mark.parametrize(("size", "window"), [((13, 9), (4, 5)), ((7, 8, 9), (4, 4, 4))])
def test_windows_say_what_the_whole_image_says(size, window, overlap):
    """With the same seed `predict` makes the same draws on the image in one piece."""
    bnn, image = pointwise(dimensions=len(size)), torch.randn(1, *size, generator=seeded(1))
    found = predict_image(bnn, image, window, draws=5, overlap=overlap, batch_size=3, generator=seeded(2))
    whole = mcrepar.predict(bnn, image[None], draws=5, likelihood="per_voxel", generator=seeded(2))
    assert torch.allclose(found.probs, whole.probs[0], atol=1e-6)
    assert torch.allclose(found.entropy, whole.entropy[0], atol=1e-5)
    assert torch.allclose(found.expected_entropy, whole.expected_entropy[0], atol=1e-5)
    assert torch.allclose(found.mutual_information, whole.mutual_information[0], atol=1e-5)
    assert torch.equal(found.label, whole.probs[0].argmax(0))
    assert float(found.mutual_information.mean()) > 0.01


def test_a_draw_serves_all_windows(monkeypatch):
    """As many draws of the weights as were asked for, whatever the number of windows."""
    bnn, made = pointwise(), []
    drawn = mcrepar.BayesianModule.draw
    monkeypatch.setattr(mcrepar.BayesianModule, "draw", lambda *args: made.append(1) or drawn(*args))
    predict_image(bnn, torch.zeros(1, 30, 30), (5, 5), draws=3, batch_size=2)
    assert len(made) == 3


def test_a_frozen_network_has_no_mutual_information():
    bnn = mcrepar.bayesian(model("unet2d", classes=3, channels=1, width=2, halvings=2, norm="group"), initial_std=0.5)
    image = torch.randn(1, 24, 24, generator=seeded(0))
    with bnn.frozen("mean"):
        found = predict_image(bnn, image, (16, 16), draws=3)
    assert float(found.mutual_information.max()) < 1e-6
    assert float(predict_image(bnn, image, (16, 16), draws=3).mutual_information.max()) > 1e-6


def test_mutual_information_is_about_weights_and_not_about_windows():
    """Windows of a U-Net disagree at their ends; for one draw that is no uncertainty about the weights."""
    bnn = mcrepar.bayesian(model("unet2d", classes=3, channels=1, width=2, halvings=2, norm="group"), initial_std=0.5)
    found = predict_image(bnn, torch.randn(1, 40, 40, generator=seeded(0)), (16, 16), draws=1)
    assert float(found.mutual_information.max()) < 1e-6


def test_a_2d_network_takes_a_volume_slice_by_slice():
    bnn, volume = pointwise(), torch.randn(1, 9, 8, 5, generator=seeded(1))
    found = predict_image(bnn, volume, (6, 6), draws=4, generator=seeded(2))
    slices = volume.movedim(-1, 0)
    whole = mcrepar.predict(bnn, slices, draws=4, likelihood="per_voxel", generator=seeded(2))
    assert found.probs.shape == (3, 9, 8, 5)
    assert torch.allclose(found.probs, whole.probs.movedim(0, -1), atol=1e-6)


def test_an_image_that_is_shorter_than_a_window_is_extended_and_cut_back():
    bnn, image = pointwise(), torch.randn(1, 5, 12, generator=seeded(1))
    found = predict_image(bnn, image, (8, 8), draws=2, generator=seeded(2))
    whole = mcrepar.predict(bnn, image[None], draws=2, likelihood="per_voxel", generator=seeded(2))
    assert found.label.shape == (5, 12)
    assert torch.allclose(found.probs, whole.probs[0], atol=1e-6)


def test_only_a_batch_of_windows_is_in_the_network_at_once():
    bnn, seen = pointwise(), []
    bnn.net.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    predict_image(bnn, torch.zeros(1, 64, 64), (8, 8), draws=2, overlap=0.0, batch_size=5)
    assert {shape[1:] for shape in seen} == {(1, 8, 8)}
    assert max(shape[0] for shape in seen) == 5
    assert sum(shape[0] for shape in seen) == 2 * 64


@pytest.mark.parametrize("classes", [2, 7])
def test_memory_is_what_the_docstring_says_whatever_the_number_of_draws(classes):
    """2 C + 4 numbers per voxel, and a batch of windows, which is less than one here."""
    bnn, image = pointwise(classes), torch.zeros(1, 128, 128)
    for draws in (1, 4):
        most = peak_bytes(lambda draws=draws: predict_image(bnn, image, (8, 8), draws=draws)) / 4 / image.numel()
        assert most < 2 * classes + 5, f"{most:.2f} numbers per voxel for {draws} draws"


def test_raw_windows_are_prepared_and_bfloat16_is_near():
    bnn, image = pointwise(), torch.randint(256, (1, 12, 12), generator=seeded(1)).to(torch.uint8)
    scaled = predict_image(bnn, image, (8, 8), draws=2, generator=seeded(0), prepare=lambda x: x / 255)
    plain = predict_image(bnn, image / 255, (8, 8), draws=2, generator=seeded(0))
    assert torch.allclose(scaled.probs, plain.probs)
    half = predict_image(bnn, image / 255, (8, 8), draws=2, generator=seeded(0), precision=torch.bfloat16)
    assert torch.allclose(half.probs, plain.probs, atol=0.02)
    assert not torch.equal(half.probs, plain.probs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": torch.zeros(8, 8)}, "one image of"),
        ({"image": torch.zeros(1, 1, 1, 8, 8)}, "one image of"),
        ({"window": (4,)}, "the image has 2 sides"),
        ({"window": (4, 4, 4)}, "the image has 2 sides"),
        ({"window": (4, 0)}, "the image has 2 sides"),
        ({"overlap": 1.0}, "no share below 1"),
        ({"draws": 0}, "draws=0"),
        ({"generator": 3}, "generator=3"),
        ({"image": torch.full((1, 8, 8), float("nan"))}, "not finite"),
        ({"bnn": mcrepar.bayesian(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))}, "a class for a whole image"),
        ({"bnn": mcrepar.bayesian(nn.Conv2d(1, 3, 3))}, "gave an output of"),
        ({"bnn": nn.Conv2d(1, 3, 1)}, "nothing in it is Bayesian"),
    ],
)
def test_refusals(change, words):
    given = {"bnn": pointwise(), "image": torch.zeros(1, 8, 8), "window": (4, 4), "draws": 2, **change}
    with pytest.raises(mcrepar.McreparError, match=words):
        predict_image(**given)


def test_how_many_windows_at_once():
    assert windows_at_once((64, 64, 64), 2**22, 256) == 16
    assert windows_at_once((256, 256, 256), 2**22, 256) == 1
    assert windows_at_once((8, 8), 2**22, 256) == 256


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_unet_of_monai_trains_and_segments(dimensions):
    """Converted as it is: a likelihood per voxel, and an image larger than its window."""
    nets = pytest.importorskip("monai.networks.nets", reason="MONAI is not installed, whose U-Net this is about")
    torch.manual_seed(0)
    net = nets.UNet(dimensions, in_channels=1, out_channels=3, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
    bnn = mcrepar.bayesian(net, prior="normal")
    x = torch.randn(2, 1, *(16,) * dimensions)
    y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    optimizer, losses = torch.optim.Adam(bnn.parameters(), lr=0.01), []
    for _ in range(15):
        e = mcrepar.elbo(bnn, "per_voxel", x, y, data_size=10**7)
        optimizer.zero_grad()
        e.loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in bnn.parameters())
        optimizer.step()
        losses.append(e.nll.item())
    assert losses[-1] < 0.9 * losses[0]
    found = predict_image(bnn, torch.randn(1, *(24,) * dimensions), (16,) * dimensions, draws=3)
    assert found.probs.shape == (3, *(24,) * dimensions)
    assert torch.allclose(found.probs.sum(0), torch.ones(()), atol=1e-5)
    assert float(found.mutual_information.max()) > 0


def test_an_error_names_what_the_network_gave():
    with pytest.raises(ParameterError, match=r"windows of \(1, 1, 8, 8\) gave an output of \(1, 3, 6, 6\)"):
        predict_image(mcrepar.bayesian(nn.Conv2d(1, 3, 3)), torch.zeros(1, 8, 8), (8, 8), draws=1)
