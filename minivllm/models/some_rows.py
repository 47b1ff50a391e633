"""Owns a step of two to 256 tokens on a Hopper GPU: Llama's layer in six launches instead of nine.

    qkv | rotation + KV write | attention | o + residual | gate and up + SiLU | down + residual

A norm has two parts here: who adds to the residual multiplies it with the norm's gain, and the next product with the
row's scale, see `kernels/hopper_linear.py`. So norms take no launch, and the weights of three products of four are read
while the kernels in front of them still run. The residual is one tensor, changed in place from the embedding to the
final norm.

It computes what `LlamaDecoderLayer.forward` computes. A model that overrides one of its parts takes that way instead.

Upstream: none; vLLM leaves such fusions to torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.kernels.fused_linear import Norm
from minivllm.kernels.hopper_linear import Unscaled, workspace
from minivllm.layers.kernel_ops import KernelOps
from minivllm.layers.linear import Linear
from minivllm.layers.norm import RMSNorm
from minivllm.layers.rotary import Rotation
from minivllm.models.llama import LlamaDecoderLayer


class SomeRows:
    """The layers of a model, for steps of two to 256 tokens.

    Args:
        layers: All of them; none of their parts may be overridden, see `few_rows.is_plain`.
        norm: The final one.
        ops: The kernels.
    """

    def __init__(self, layers: Iterable[LlamaDecoderLayer], norm: RMSNorm, ops: KernelOps) -> None:
        self._layers = list(layers)
        # Behind each layer. The rows that the last one leaves are never read, but its kernel is that of the others.
        self._next_norms = [_weight_and_eps(layer.input_layernorm) for layer in self._layers[1:]]
        self._next_norms.append(_weight_and_eps(norm))
        self._ops = ops
        weights = [linear.weight for layer in self._layers for linear in layer.modules() if isinstance(linear, Linear)]
        self._most_rows = min((ops.most_joined(weight) for weight in weights), default=0)
        if self._most_rows:
            workspace(weights[0].device)
            # Rows that have been through their norm lack nothing: the mean of their squares is 1.
            size = (1, self._most_rows)
            self._ones = torch.full(size, norm.weight.numel(), dtype=torch.float32, device=weights[0].device)

    def takes(self, num_rows: int) -> bool:
        """Whether it computes a step of so many tokens."""
        return self._ops.least_joined_rows <= num_rows <= self._most_rows

    def forward(
        self,
        residual: torch.Tensor,
        rotation: Rotation,
        kv_caches: list[torch.Tensor],
        attention: AttentionBackend[Any],
        metadata: Any,
    ) -> torch.Tensor:
        """All layers.

        Args:
            residual: (rows, hidden_size), what the embedding gave; changed in place, and returned.
            rotation, kv_caches, attention, metadata: As of `Llama.forward`.
        """
        x = Unscaled(self._layers[0].input_layernorm.forward(residual), self._ones[:, : len(residual)], 0.0)
        for layer, kv_cache, next_norm in zip(self._layers, kv_caches, self._next_norms, strict=True):
            attn, mlp = layer.self_attn, layer.mlp
            qkv = self._ops.unscaled_linear(x, attn.qkv_proj.weight, attn.qkv_proj.bias)
            heads = attn.attend(qkv, rotation, kv_cache, attention, metadata)  # (rows, heads * head_dim)
            x = self._add(heads, attn.o_proj, residual, _weight_and_eps(layer.post_attention_layernorm))
            inner = self._ops.unscaled_linear(x, mlp.gate_up_proj.weight, mlp.gate_up_proj.bias, is_gated=True)
            x = self._add(inner, mlp.down_proj, residual, next_norm)
        return residual

    def _add(self, x: torch.Tensor, proj: Linear, residual: torch.Tensor, next_norm: Norm) -> Unscaled:
        return self._ops.residual_linear(x, proj.weight, proj.bias, residual, next_norm)


def _weight_and_eps(norm: RMSNorm) -> Norm:
    return norm.weight, norm.eps
