"""A weight with random factors of its outputs and inputs, which multiply what goes through its layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcrepar.errors import MethodError
from mcrepar.nn.forwards.attention import attend
from mcrepar.nn.forwards.layer_weight import Weight


class FactoredWeight(Weight):
    """A weight that a layer meets as Wbar, and that multiplies the layer's inputs and outputs by factors."""

    refusal = (
        "with random factors",
        "only dense, convolutional, embedding and attention layers multiply by them",
        "structure='weights', or select=... without this weight",
    )
    tensor: str
    wbar: Tensor
    axis: int
    r: Tensor
    s: Tensor | None

    @classmethod
    def of(cls, tensor: str, wbar: Tensor, axis: int, r: Tensor, s: Tensor | None) -> FactoredWeight:
        """Wbar of a tensor, or a part of it, with the factors of every example.

        Args:
            tensor: its name.
            wbar: the weight.
            axis: the dimension of the layer's inputs and outputs that has the examples.
            r: factors of the outputs, (batch, outputs).
            s: factors of the inputs, (batch, inputs); None for none.
        """
        weight = wbar.as_subclass(cls)
        weight.tensor, weight.wbar, weight.axis, weight.r, weight.s = tensor, wbar, axis, r, s
        return weight

    @classmethod
    def layer(cls, func: Any, input: Tensor, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> Tensor:
        """r o (Wbar (s o x)) + b, every example with its own factors."""
        channel = input.dim() - 1 if func is F.linear else input.dim() - weight.dim() + 1
        x = input * weight.shaped(weight.s, input, channel)
        with torch._C.DisableTorchFunctionSubclass():
            y: Tensor = func(x, weight.wbar, None, *rest, **named)
        channel = y.dim() - 1 if func is F.linear else channel
        y = y * weight.shaped(weight.r, y, channel)
        return y if bias is None else y + bias.to(y.dtype).view([-1 if k == channel else 1 for k in range(y.dim())])

    @classmethod
    def embedding(cls, input: Tensor, weight: FactoredWeight, *rest: Any, **named: Any) -> Tensor:
        """The rows of the examples' words, every example with its own factors of the features."""
        with torch._C.DisableTorchFunctionSubclass():
            y: Tensor = F.embedding(input, weight.wbar, *rest, **named)
        return y * weight.shaped(weight.r, y, y.dim() - 1)

    @classmethod
    def attention(
        cls, query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any,
        in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool,
        dropout_p: float, out_proj_weight: Any, out_proj_bias: Tensor | None, *, use_separate_proj_weight: bool = False,
        q_proj_weight: Any = None, k_proj_weight: Any = None, v_proj_weight: Any = None, static_k: Any = None,
        static_v: Any = None, **named: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Multi-head attention, (positions, batch, features), whose projections are dense layers."""
        if static_k is not None or static_v is not None:
            asked = "structure='rank1' with static_k or static_v of multi_head_attention_forward"
            raise MethodError(asked, "they take the place of projections, whose weights are random", "key and value")
        if use_separate_proj_weight:
            weights = [q_proj_weight, k_proj_weight, v_proj_weight]
        else:
            weights = [in_proj_weight] if query is key is value else _thirds(in_proj_weight)
        biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(len(weights))
        inputs = (query, key, value) if query.dim() == 3 else (x.unsqueeze(1) for x in (query, key, value))
        parts = [_dense(x, w, b) for w, x, b in zip(weights, inputs, biases, strict=False)]
        q, k, v = parts if len(parts) == 3 else parts[0].chunk(3, -1)
        out, found = attend(q, k, v, num_heads, bias_k, bias_v, add_zero_attn, dropout_p, **named)
        if isinstance(out_proj_weight, cls):
            last = out_proj_weight
            out_proj_weight = cls.of(last.tensor, last.wbar, 1, last.r, last.s)
        out = _dense(out, out_proj_weight, out_proj_bias)
        if query.dim() == 3:
            return out, found
        return out.squeeze(1), None if found is None else found.squeeze(0)

    def shaped(self, factors: Tensor, like: Tensor, channel: int) -> Tensor:
        """Factors of every example in the shape of its activations."""
        factors, rows = factors.to(like.dtype), like.shape[self.axis]
        if channel <= self.axis:  # one example without a batch
            return factors[0].view([-1 if k == channel else 1 for k in range(like.dim())])
        if rows != len(factors):
            if rows % len(factors):
                raise MethodError(
                    f"structure='rank1' with {self.tensor}",
                    f"its input has {rows} rows in dimension {self.axis} for a batch of {len(factors)} examples, "
                    "which have own factors",
                    "a network whose activations keep the batch in dimension 0 (batch_first=True of attention), or "
                    "structure='weights'",
                )
            factors = factors.repeat_interleave(rows // len(factors), 0)  # rows of an example are neighbours
        sizes = {self.axis: rows, channel: factors.shape[1]}
        return factors.view([sizes.get(k, 1) for k in range(like.dim())])


def _dense(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    """The output of a dense layer, whose weight may have factors."""
    # asked here: inside of an intercepted function, torch.compile intercepts no other
    if isinstance(weight, FactoredWeight):
        return FactoredWeight.layer(F.linear, x, weight, bias)
    out: Tensor = F.linear(x, weight, bias)
    return out


def _thirds(weight: Any) -> list[Any]:
    """The weights of queries, keys and values, which share the factors of their inputs."""
    if not isinstance(weight, FactoredWeight):
        return list(weight.chunk(3))
    pairs = zip(weight.wbar.chunk(3), weight.r.chunk(3, 1), strict=True)
    return [weight.of(weight.tensor, wbar, weight.axis, r, weight.s) for wbar, r in pairs]
