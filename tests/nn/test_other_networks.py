"""Networks that nobody here wrote, from tiny configs: each trains a step, is random in eval, and is saved."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mcrepar
from mcrepar import bayesian, kl, predict
from tests.conftest import seeded

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install mcrepar[peers]")


def resnet() -> nn.Module:
    hf = library("transformers")
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    return hf.ResNetForImageClassification(config)


def vit() -> nn.Module:
    hf = library("transformers")
    return hf.ViTForImageClassification(hf.ViTConfig(**SMALL, image_size=8, patch_size=4, num_labels=3))


def bert() -> nn.Module:
    hf = library("transformers")
    return hf.BertForMaskedLM(hf.BertConfig(**SMALL, **TEXT, max_position_embeddings=8))


def gpt2() -> nn.Module:
    hf = library("transformers")
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=8, **TEXT))


def unet() -> nn.Module:
    return library("monai.networks.nets").UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1, norm="batch")


def densenet() -> nn.Module:
    return library("monai.networks.nets").DenseNet121(3, 1, 2, init_features=8, growth_rate=4)


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(1))


TOKENS = torch.randint(1, 20, (4, 8), generator=seeded(2))
NETWORKS: dict[str, tuple[Any, Any, str | None]] = {
    "ResNet": (resnet, {"pixel_values": images(4, 3, 32, 32)}, "logits"),
    "ViT": (vit, {"pixel_values": images(4, 3, 8, 8)}, "logits"),
    "BERT": (bert, {"input_ids": TOKENS}, "logits"),
    "GPT-2": (gpt2, {"input_ids": TOKENS}, "logits"),
    "UNet 3d": (unet, (images(2, 1, 16, 16, 16),), None),
    "DenseNet121 3d": (densenet, (images(2, 1, 32, 32, 32),), None),
}
TIED = {"BERT": "bert.embeddings.word_embeddings.weight", "GPT-2": "transformer.wte.weight"}


CASES = [*((name, "weights") for name in NETWORKS), *((name, "rank1") for name in NETWORKS if name != "GPT-2")]


def options_of(net: nn.Module, name: str, structure: str) -> dict[str, Any]:
    """Factors are those of layers, whose weight is their own and meets every example."""
    if structure == "weights":
        return {}
    layers = nn.Linear | nn.modules.conv._ConvNd | nn.Embedding
    names = [f"{n}.weight" for n, m in net.named_modules() if isinstance(m, layers) and "position" not in n]
    tied = net.get_parameter(TIED[name]) if name in TIED else None
    return {"structure": "rank1", "select": [n for n in names if net.get_parameter(n) is not tied]}


@pytest.mark.parametrize(("name", "structure"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_network_nobody_here_wrote(name, structure, tmp_path):
    build, x, key = NETWORKS[name]

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return build()

    def call(module: nn.Module) -> Tensor:
        out = module(**x) if isinstance(x, dict) else module(*x)
        return out if key is None else out[key]

    plain = fresh().eval()
    with torch.no_grad():
        before = call(plain)
    options = options_of(plain, name, structure)
    quiet = bayesian(copy.deepcopy(plain), start_std=1e-7, **options)
    with torch.no_grad():
        torch.testing.assert_close(call(quiet), before, atol=1e-4, rtol=1e-3)
    assert {n for names in quiet.names.values() for n in names} <= {
        n for n, _ in plain.named_parameters(remove_duplicate=False)
    }

    bnn = bayesian(fresh(), **options).train()
    if name in TIED and structure == "weights":
        assert len(bnn.names[TIED[name].replace(".", "/")]) == 2
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-3)
    out = call(bnn)
    (out * torch.linspace(0.5, 2, out.numel()).reshape(out.shape)).sum().backward()
    for n, p in bnn.named_parameters():
        assert p.grad is not None, n
        assert p.grad.isfinite().all(), n
        assert p.grad.any(), n
    (call(bnn).square().mean() + kl(bnn) / 1000).backward()
    optimizer.step()

    bnn.eval()
    bnn.calibrate(**x) if isinstance(x, dict) else bnn.calibrate(*x)
    with torch.no_grad():
        assert not torch.equal(call(bnn), call(bnn))
        with bnn.frozen("mean"):
            assert torch.equal(call(bnn), call(bnn))
    wanted = predict(bnn, x, draws=2, output=key, generator=seeded(3)).samples
    assert not torch.equal(wanted[0], wanted[1])
    mcrepar.save(bnn, tmp_path / "bnn", keep_calibration_data=True)
    loaded = mcrepar.load(tmp_path / "bnn", fresh())
    assert torch.equal(predict(loaded, x, draws=2, output=key, generator=seeded(3)).samples, wanted)
