"""Paged attention equals attention over plain sequences, wherever the pages lie and whatever other pages hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minivllm.attention.backend import AttentionMetadata
from minivllm.attention.selector import select_backend
from minivllm.attention.torch_sdpa import TorchSdpaBackend

HEAD_DIM = 8
NUM_BLOCKS = 200

# (computed before, scheduled now) of each request
BATCHES = {
    "one decode": [(9, 1)],
    "decodes of equal length": [(9, 1), (9, 1)],
    "ragged decodes": [(0, 1), (40, 1), (3, 1), (15, 1), (16, 1)],
    "whole prompts": [(0, 17), (0, 3), (0, 32)],
    "chunks": [(16, 16), (5, 7), (31, 2)],
    "everything mixed, not sorted": [(0, 20), (33, 1), (12, 9), (0, 1), (7, 1), (16, 4)],
}


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, computed: int, window: int | None
) -> torch.Tensor:
    """The definition, for one sequence: query i sees keys 0 ... computed + i, or the last `window` of them."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) / query.shape[-1] ** 0.5
    last = computed + torch.arange(query.shape[0])[:, None]
    seen = torch.arange(keys.shape[0])[None, :] <= last
    if window is not None:
        seen &= torch.arange(keys.shape[0])[None, :] > last - window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("window", [None, 1, 8, 100])
def test_paged_attention_equals_the_definition(
    batch: list[tuple[int, int]], block_size: int, heads: int, kv_heads: int, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    free = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
    seq_lens = [computed + scheduled for computed, scheduled in batch]
    tables = [[free.pop() for _ in range(-(-length // block_size))] for length in seq_lens]
    block_table = np.full((len(batch), max(map(len, tables))), -1, dtype=np.int32)
    for row, table in enumerate(tables):
        block_table[row, : len(table)] = table

    # Every slot that no request has written holds NaN: reading one, even with weight 0, would show.
    kv_cache = torch.full((2, NUM_BLOCKS, block_size, kv_heads, HEAD_DIM), float("nan"))
    slots = kv_cache.flatten(1, 2)
    queries, keys, values, slot_mapping, expected = [], [], [], [], []
    for (computed, scheduled), table in zip(batch, tables, strict=True):
        length = computed + scheduled
        k, v = torch.randn(2, length, kv_heads, HEAD_DIM, generator=generator)
        q = torch.randn(scheduled, heads, HEAD_DIM, generator=generator)
        slot = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(length)])
        slots[0, slot[:computed]], slots[1, slot[:computed]] = k[:computed], v[:computed]
        queries.append(q)
        keys.append(k[computed:])
        values.append(v[computed:])
        slot_mapping.append(slot[computed:].numpy())
        expected.append(attend(q, k, v, computed, window))

    metadata = AttentionMetadata(
        query_start_loc=np.cumsum([0] + [scheduled for _, scheduled in batch], dtype=np.int32),
        seq_lens=np.array(seq_lens, dtype=np.int32),
        block_table=block_table,
        slot_mapping=np.concatenate(slot_mapping),
        block_size=block_size,
    )
    backend = TorchSdpaBackend([None, 3, window])
    prepared = backend.prepare(metadata, torch.device("cpu"), torch.float32)
    out = backend.forward(torch.cat(queries), torch.cat(keys), torch.cat(values), kv_cache, prepared, window)
    torch.testing.assert_close(out, torch.cat(expected), atol=2e-6, rtol=1e-5)


def test_the_selector_says_why() -> None:
    backend, reasons = select_backend(torch.device("cpu"), 64, torch.float32)
    assert backend.name == "torch_sdpa"
    assert reasons == {
        "triton": "left: the model is on a CPU: no GPU here",
        "flash_attn": "left: FlashAttention needs a GPU, and the model is on a CPU",
        "flashinfer": "left: FlashInfer needs a GPU, and the model is on a CPU",
        "torch_sdpa": "taken: runs on any device, here cpu, torch.float32, head size 64",
    }


def test_a_forced_backend_is_taken_or_refused_with_the_reason() -> None:
    backend, reasons = select_backend(torch.device("cpu"), 64, torch.float32, forced="torch_sdpa")
    assert backend.name == "torch_sdpa"
    assert reasons["torch_sdpa"].startswith("taken: it was asked for")
    with pytest.raises(ValueError, match="'triton' cannot run: the model is on a CPU"):
        select_backend(torch.device("cpu"), 64, torch.float32, forced="triton")
    with pytest.raises(ValueError, match="unknown attention backend 'flash'; known are triton, flash_attn"):
        select_backend(torch.device("cpu"), 64, torch.float32, forced="flash")
