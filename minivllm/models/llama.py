"""Owns the Llama architecture: Llama 2 and 3, SmolLM2, and everything shaped like them.

Query, key and value are one matrix product, gate and up are another: `weight_slots` says which rows of a fused weight
each tensor of a checkpoint fills.

Upstream: vllm/model_executor/models/llama.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.attention.backend import AttentionBackend
from minivllm.layers.linear import linear
from minivllm.layers.norm import RMSNorm
from minivllm.layers.rotary import RotaryEmbedding, rotate
from minivllm.models.config import LlamaConfig
from minivllm.sourcemap.registry import on_map


def _weight(rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype), requires_grad=False)


class LlamaAttention(nn.Module):
    """Projections around attention; several query heads share one key and value head (GQA)."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv_proj = _weight(rows, config.hidden_size, device, dtype)
        self.o_proj = _weight(config.hidden_size, self.heads * self.head_dim, device, dtype)

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        kv_cache: torch.Tensor,
        attention: AttentionBackend[Any],
        metadata: Any,
    ) -> torch.Tensor:
        qkv = linear(hidden, self.qkv_proj).view(len(hidden), -1, self.head_dim)  # (tokens, q + k + v heads, head_dim)
        rotated = rotate(qkv[:, : self.heads + self.kv_heads], *rotation)
        query, key = rotated[:, : self.heads], rotated[:, self.heads :]
        value = qkv[:, self.heads + self.kv_heads :]
        out = attention.forward(query, key, value, kv_cache, metadata)  # (tokens, heads, head_dim)
        return linear(out.flatten(1), self.o_proj)

    def weight_slots(self) -> dict[str, torch.Tensor]:
        first_k, first_v = self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim
        q, k, v = self.qkv_proj.tensor_split((first_k, first_v))
        return {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "o_proj.weight": self.o_proj}


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up_proj = _weight(2 * config.intermediate_size, config.hidden_size, device, dtype)
        self.down_proj = _weight(config.hidden_size, config.intermediate_size, device, dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = linear(hidden, self.gate_up_proj).chunk(2, dim=-1)  # (tokens, intermediate) each
        return linear(F.silu(gate, inplace=True) * up, self.down_proj)

    def weight_slots(self) -> dict[str, torch.Tensor]:
        gate, up = self.gate_up_proj.chunk(2)
        return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": self.down_proj}


class LlamaDecoderLayer(nn.Module):
    """Attention, then MLP, each around a residual connection."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        self.self_attn = LlamaAttention(config, device, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        self.mlp = LlamaMLP(config, device, dtype)

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        kv_cache: torch.Tensor,
        attention: AttentionBackend[Any],
        metadata: Any,
    ) -> torch.Tensor:
        normed = self.input_layernorm.forward(hidden)
        hidden = hidden + self.self_attn.forward(normed, rotation, kv_cache, attention, metadata)
        normed = self.post_attention_layernorm.forward(hidden)
        return hidden + self.mlp.forward(normed)

    def weight_slots(self) -> dict[str, torch.Tensor]:
        slots: dict[str, torch.Tensor] = {
            "input_layernorm.weight": self.input_layernorm.weight,
            "post_attention_layernorm.weight": self.post_attention_layernorm.weight,
        }
        slots |= {f"self_attn.{name}": slot for name, slot in self.self_attn.weight_slots().items()}
        slots |= {f"mlp.{name}": slot for name, slot in self.mlp.weight_slots().items()}
        return slots


class Llama(nn.Module):
    """Embedding, decoder layers, final norm, and the language model head."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _weight(config.vocab_size, config.hidden_size, device, dtype)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, device, dtype) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        tied = config.tie_word_embeddings
        self.lm_head = self.embed_tokens if tied else _weight(config.vocab_size, config.hidden_size, device, dtype)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope, device, dtype)

    @on_map(
        "model forward", vllm="vllm/model_executor/models/llama.py::LlamaModel.forward", plane="data", process="worker"
    )
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        attention: AttentionBackend[Any],
        metadata: Any,
    ) -> torch.Tensor:
        hidden = F.embedding(input_ids, self.embed_tokens)  # (tokens, hidden_size)
        rotation = self.rotary.at(positions)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden = layer(hidden, rotation, kv_cache, attention, metadata)
        return self.norm.forward(hidden)

    @on_map(
        "logits",
        vllm="vllm/model_executor/models/llama.py::LlamaForCausalLM.compute_logits",
        plane="data",
        process="worker",
    )
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.lm_head)  # (rows, vocab_size)

    def weight_slots(self) -> dict[str, torch.Tensor]:
        slots: dict[str, torch.Tensor] = {"model.embed_tokens.weight": self.embed_tokens}
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, LlamaDecoderLayer)
            slots |= {f"model.layers.{i}.{name}": slot for name, slot in layer.weight_slots().items()}
        slots["model.norm.weight"] = self.norm.weight
        if not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self.lm_head
        return slots
