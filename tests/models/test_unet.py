"""The U-Nets: the paper's figure, images and volumes of any size, and norms that do not need a large batch."""

import pytest
import torch
from torch import nn

from mcrepar.models import model

PRINTED = [  # the paper's figure: blocks as (channels in, channels out, stride), poolings as their size
    (1, 16, 1), 3, (16, 32, 1), 2, (32, 64, 1), 2, (64, 128, 3), 2, (128, 256, 3),
]  # fmt: skip


def test_the_encoder_is_the_papers_figure():
    with torch.device("meta"):
        net = model("unet3d_encoder", classes=2, channels=1)
        features = net.features(torch.zeros(2, 1, 105, 127, 105))
    made = []
    for part in net.features:
        if isinstance(part, nn.MaxPool3d):
            made.append(part.kernel_size)
        else:
            first, second = (m for m in part if isinstance(m, nn.Conv3d))
            assert (second.in_channels, second.stride) == (second.out_channels, (1, 1, 1))
            made.append((first.in_channels, second.out_channels, first.stride[0]))
    assert made == PRINTED
    assert features.shape == (2, 256, 1, 1, 1)  # what Linear(256, 2) takes
    assert (net.head.in_features, net.head.out_features) == (256, 2)


@pytest.mark.parametrize("name", ["unet3d_encoder", "unet3d"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_norms(name, norm):
    torch.manual_seed(0)
    net = model(name, classes=2, channels=1, width=4, norm=norm)
    x = torch.randn(2, 1, 20, 20, 20)
    both, one = net(x), net(x[:1].repeat(2, 1, 1, 1, 1))
    alone = torch.allclose(both[0], one[0], atol=1e-4)
    assert alone == (norm == "group")  # a batch norm sees the neighbour


@pytest.mark.parametrize("size", [(17, 17, 17), (17, 24, 31), (32, 32, 32)])
def test_a_class_for_every_voxel_of_any_volume(size):
    net = model("unet3d", classes=3, channels=2, width=2)
    out = net(torch.randn(1, 2, *size))  # a batch of one trains too
    assert out.shape == (1, 3, *size)


@pytest.mark.parametrize(("size", "halvings"), [((17, 24), 4), ((40, 33), 4), ((5, 9), 2), ((3, 3), 1)])
def test_a_class_for_every_pixel_of_any_image(size, halvings):
    net = model("unet2d", classes=3, channels=2, width=2, halvings=halvings, norm="group", size=size)
    assert net(torch.randn(1, 2, *size)).shape == (1, 3, *size)
    assert sum(isinstance(m, nn.ConvTranspose2d) for m in net.modules()) == halvings


def test_images_and_volumes_go_through_the_same_layers():
    flat, solid = (model(name, classes=3, channels=1, width=2) for name in ("unet2d", "unet3d"))
    assert [n for n, _ in flat.named_parameters()] == [n for n, _ in solid.named_parameters()]
    shapes = [(a.shape, b.shape) for a, b in zip(flat.parameters(), solid.parameters(), strict=True)]
    assert all(tuple(b)[: len(a)] == tuple(a) for a, b in shapes)


class Below(nn.Module):
    """Of what is joined at a level, the channel that comes from below."""

    def forward(self, x):
        return x[:, 1:]


@pytest.mark.parametrize("side", [17, 23, 31, 32])
def test_voxels_stay_where_they_are(side):
    """With layers that only pool and copy, a voxel holds the largest of its cell of 16; odd sides end early."""
    net = model("unet3d", classes=1, channels=1, width=1)
    net.blocks_down = nn.ModuleList(nn.Identity() for _ in net.blocks_down)
    net.doublings = nn.ModuleList(nn.Upsample(scale_factor=2) for _ in net.doublings)
    net.blocks_up = nn.ModuleList(Below() for _ in net.blocks_up)
    net.head = nn.Identity()
    place = torch.arange(float(side))
    largest = (16 * (place // 16) + 15).clamp(max=side - 1)
    for axis in range(3):
        shape = [1, 1, 1, 1, 1]
        shape[2 + axis] = side
        whole = (1, 1, *(side if k == axis else 19 for k in range(3)))
        assert torch.equal(net(place.reshape(shape).expand(whole)), largest.reshape(shape).expand(whole))
