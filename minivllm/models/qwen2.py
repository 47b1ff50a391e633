"""Owns the Qwen2 architecture, also that of Qwen2.5: Llama with a bias on query, key and value.

Upstream: vllm/model_executor/models/qwen2.py.
"""

from __future__ import annotations

from minivllm.models.config import DecoderConfig
from minivllm.models.llama import Llama, LlamaAttention


class Qwen2Attention(LlamaAttention):
    """Every checkpoint has the bias, so no key of config.json speaks of it."""

    def has_bias(self, config: DecoderConfig) -> tuple[bool, bool]:
        return True, False


class Qwen2(Llama):
    """Qwen2 and Qwen2.5, the dense ones."""

    attention_class = Qwen2Attention
