import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mcrepar.errors import ParameterError
from mcrepar.workbench.training.warm_start import read_weights


def network(width=3):
    return nn.Sequential(nn.Linear(width, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_weights_of_torch_save(wrap, tmp_path):
    net, path = network(), tmp_path / "w.pt"
    state = net.state_dict()
    torch.save({wrap: state, "epoch": 3} if wrap else state, path)
    found = read_weights(path, network())
    assert all(torch.equal(found[name], t) for name, t in state.items())


def test_weights_of_safetensors_and_of_a_wrapped_network(tmp_path):
    net, path = network(), tmp_path / "w.safetensors"
    save_file({f"module.{name}": t for name, t in net.state_dict().items()}, path)
    assert torch.equal(read_weights(path, network())["0.weight"], net[0].weight)


def test_other_weights_are_refused(tmp_path):
    path = tmp_path / "w.pt"
    for state, why in (
        (network(4).state_dict(), r"'0.weight' is \(2, 4\) there and \(2, 3\) here"),
        (nn.Linear(3, 2).state_dict(), "the file has no '0.weight'"),
        ({**network().state_dict(), "more": torch.zeros(1)}, "the network has no 'more'"),
        ({**network().state_dict(), "0.bias": torch.tensor([1.0, float("nan")])}, "'0.bias' is not finite"),
        ({"epoch": 3}, "holds no state_dict"),
        ([1, 2], "holds no state_dict"),
    ):
        torch.save(state, path)
        with pytest.raises(ParameterError, match=why):
            read_weights(path, network())


def test_files_that_hold_no_weights_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="no such file"):
        read_weights(tmp_path / "nosuch.pt", network())
    for name in ("a.pt", "a.safetensors"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(ParameterError, match="without running code"):
            read_weights(tmp_path / name, network())
