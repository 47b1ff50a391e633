"""Owns a step of few tokens on a GPU: Llama's layer in six launches instead of ten.

    norm + qkv | rotation + KV write | attention | o + residual | norm + gate and up + SiLU | down + residual

Each launch is a wait of about a microsecond, and with one token a layer of a small model has ten microseconds of work.
So norms, gate and residuals become parts of the products beside them (`kernels/fused_linear.py`). The residual is one
tensor, changed in place from the embedding to the final norm.

It computes what `LlamaDecoderLayer.forward` computes. A model that overrides one of its parts takes that way instead.

Upstream: none; vLLM leaves such fusions to torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.layers.kernel_ops import KernelOps
from minivllm.layers.linear import Linear
from minivllm.layers.norm import RMSNorm
from minivllm.layers.rotary import Rotation
from minivllm.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP

_PLAIN = {
    LlamaDecoderLayer: ("forward",),
    LlamaAttention: ("forward",),
    LlamaMLP: ("forward", "act_and_mul"),
    RMSNorm: ("forward", "add_and_norm"),
    Linear: ("forward", "add_to"),
}


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a part of a layer computes what this file computes in its place: no method of it is overridden."""
    for base, methods in _PLAIN.items():
        if isinstance(module, base):
            return all(getattr(type(module), name) is getattr(base, name) for name in methods)
    return False


class FewRows:
    """The layers of a model, for steps of few tokens.

    Args:
        layers: All of them; None of their parts may be overridden, see `is_plain`.
        ops: The kernels.
    """

    def __init__(self, layers: Iterable[LlamaDecoderLayer], ops: KernelOps) -> None:
        self._layers = list(layers)
        self._ops = ops
        weights = [linear.weight for layer in self._layers for linear in layer.modules() if isinstance(linear, Linear)]
        self._most_rows = min((ops.most_fused(weight) for weight in weights), default=0)

    @staticmethod
    def can_run(layers: Iterable[LlamaDecoderLayer]) -> bool:
        """Whether all layers are Llama's own."""
        return all(is_plain(module) for layer in layers for module in layer.modules())

    def takes(self, num_rows: int) -> bool:
        """Whether a step of so many tokens is one of few."""
        return num_rows <= self._most_rows

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
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            attn, mlp = layer.self_attn, layer.mlp
            qkv = self._product(residual, attn.qkv_proj, norm=layer.input_layernorm)
            heads = attn.attend(qkv, rotation, kv_cache, attention, metadata)  # (rows, heads * head_dim)
            self._product(heads, attn.o_proj, residual=residual)
            inner = self._product(residual, mlp.gate_up_proj, norm=layer.post_attention_layernorm, is_gated=True)
            self._product(inner, mlp.down_proj, residual=residual)
        return residual

    def _product(
        self,
        x: torch.Tensor,
        proj: Linear,
        norm: RMSNorm | None = None,
        is_gated: bool = False,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        weight_and_eps = None if norm is None else (norm.weight, norm.eps)
        return self._ops.fused_linear(x, proj.weight, proj.bias, weight_and_eps, is_gated, residual)
