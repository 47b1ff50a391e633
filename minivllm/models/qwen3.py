"""Owns the Qwen3 architecture: Llama with an RMS norm over each head of query and key.

The norm keeps the scores of attention in bounds, whatever the projections have learnt.

Upstream: vllm/model_executor/models/qwen3.py.
"""

from __future__ import annotations

import torch

from minivllm.layers.norm import RMSNorm
from minivllm.models.config import DecoderConfig
from minivllm.models.llama import Llama, LlamaAttention


class Qwen3Attention(LlamaAttention):
    """All query heads share one norm weight, all key heads another."""

    def __init__(self, config: DecoderConfig, layer: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config, layer, device, dtype)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, device, dtype)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, device, dtype)

    def head_norms(self) -> tuple[RMSNorm, RMSNorm]:
        return self.q_norm, self.k_norm

    def weight_slots(self) -> dict[str, torch.Tensor]:
        norms = {"q_norm.weight": self.q_norm.weight, "k_norm.weight": self.k_norm.weight}
        return super().weight_slots() | norms


class Qwen3(Llama):
    """Qwen3, the dense ones."""

    attention_class = Qwen3Attention
