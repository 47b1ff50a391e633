"""Runs a model over one sequence through the paged cache, in chunks."""

from __future__ import annotations

import numpy as np
import torch

from minivllm.attention.backend import AttentionMetadata
from minivllm.attention.torch_sdpa import TorchSdpaBackend
from minivllm.models.registry import CausalLM

BLOCK_SIZE = 4


@torch.inference_mode()
def all_logits(model: CausalLM, token_ids: list[int], chunks: list[int] | None = None) -> torch.Tensor:
    """Logits of every position: (tokens, vocab_size). Pages lie scattered, highest block first."""
    config = model.config
    backend = TorchSdpaBackend(config.windows)
    dtype = model.weight_slots()["model.norm.weight"].dtype
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    shape = backend.kv_cache_shape(num_blocks + 1, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
    kv_caches = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(config.num_hidden_layers)]
    table = np.arange(num_blocks, 0, -1, dtype=np.int32)[None, :]
    rows, start = [], 0
    for length in chunks or [len(token_ids)]:
        positions = np.arange(start, start + length)
        metadata = AttentionMetadata(
            query_start_loc=np.array([0, length], dtype=np.int32),
            seq_lens=np.array([start + length], dtype=np.int32),
            block_table=table,
            slot_mapping=table[0, positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE,
            block_size=BLOCK_SIZE,
        )
        prepared = backend.prepare(metadata, torch.device("cpu"), dtype)
        ids = torch.tensor(token_ids[start : start + length])
        hidden = model.forward(ids, torch.from_numpy(positions), kv_caches, backend, prepared)
        rows.append(model.compute_logits(hidden))
        start += length
    return torch.cat(rows)
