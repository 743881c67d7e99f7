"""What torch does around a network: dtypes, autocast, memory layouts, compilation."""

import copy

import pytest
import torch
from torch import nn

from mcrepar import bayesian, kl


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 3, batch_first=True)))
    bnn.to(dtype)
    assert bnn(torch.ones(2, 5, 4, dtype=dtype))[0].dtype == dtype
    assert kl(bnn).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("forward", ["weights", "local", "flipout"])
@pytest.mark.parametrize("posterior", ["normal", "radial"])
def test_bf16_autocast(forward, posterior):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), posterior, forward=forward)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, divergence = bnn(torch.ones(5, 4)), kl(bnn)
    assert out.dtype == torch.bfloat16  # as that of the plain network
    assert divergence.dtype == torch.float32
    torch.testing.assert_close(divergence, kl(bnn))
    (out.float().sum() + divergence).backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in bnn.parameters())


def test_channels_last_draws_have_the_strides_of_their_weights():
    net = nn.Sequential(nn.Conv2d(4, 6, 3)).to(memory_format=torch.channels_last)
    stride = net[0].weight.stride()
    bnn = bayesian(net, "radial")
    assert bnn.draw()["0.weight"].stride() == bnn.latents["0/weight"].noise().stride() == stride
    with torch.no_grad():
        later = bayesian(nn.Conv2d(4, 6, 3)).to(memory_format=torch.channels_last)
    assert later.draw()["weight"].stride() == stride


@pytest.mark.parametrize(
    ("forward", "backend"),
    [("weights", "eager"), ("weights", "aot_eager"), ("local", "aot_eager"), ("flipout", "eager"),
     ("per_example", "eager")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_torch_compile(forward, backend):
    torch.manual_seed(0)
    bnn = bayesian(nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "normal", forward=forward)
    x = torch.ones(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend=backend)
    torch.manual_seed(1)
    out = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(out, bnn(x))
    assert not torch.equal(compiled(x), compiled(x))
    with bnn.frozen("mean"):
        torch.testing.assert_close(compiled(x), bnn(x))
    assert not torch.equal(compiled(x), compiled(x))
    out.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in bnn.parameters())
    assert bnn.slots.lock.lock.acquire(blocking=False)
    bnn.slots.lock.lock.release()


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_of_a_recurrent_network():
    torch.manual_seed(0)
    bnn, x = bayesian(nn.GRU(4, 3, batch_first=True)), torch.ones(2, 5, 4)
    torch._dynamo.reset()
    (torch.compile(bnn, backend="eager")(x)[0].square().sum() + kl(bnn)).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in bnn.parameters())
    assert not torch.equal(bnn(x)[0], bnn(x)[0])
    copy.deepcopy(bnn)
