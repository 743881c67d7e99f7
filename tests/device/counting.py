"""The device that counts: it notices what a real one would wait for."""

import pytest
import torch

from tests.device.fake_device import GPU, fake_device


def test_kernels_are_counted_and_views_are_not():
    with fake_device() as counted:
        x = torch.empty(4, 4, device=GPU)
        (x + x).t().reshape(-1)[:3].mul_(2)
    assert counted.kernels == {"add": 1, "clone": 1, "mul_": 1}
    assert not counted.faults


def test_everything_that_waits_is_noted_with_its_place():
    with fake_device() as counted:
        x = torch.empty(3, device=GPU)
        bool(x.isnan().any()), x.sum().item(), x.tolist(), torch.tensor(1.0, device=GPU), x.cpu()
    names = {name for name, _ in counted.waits}
    assert names == {"item", "tolist", "a number from the host", "copy to the host"}
    assert all(place.startswith("counting.py:") for _, place in counted.waits)


def test_large_float64_tensors_and_mixed_devices_are_noted():
    with fake_device() as counted:
        torch.empty(1024, dtype=torch.float64, device=GPU).add_(1)
        assert not counted.wide
        torch.empty(1025, device=GPU).double()
        assert counted.wide
        torch.empty(3).to(GPU)
        assert counted.copies
        with pytest.raises(RuntimeError):
            torch.empty(3, device=GPU) + torch.empty(3)
        assert counted.mixed
