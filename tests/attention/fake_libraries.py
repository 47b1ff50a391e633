"""FlashAttention's and FlashInfer's packages as they are documented, in plain PyTorch on any device.

Each function asserts what the real one asks for (shapes, precisions, strides, page sizes, which lengths are where) and
then computes attention by its definition. So the engine can run on a CPU through the very calls that a GPU gets.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Pages = tuple[torch.Tensor, torch.Tensor]


def paged_attention(
    query: torch.Tensor,
    pages: Pages,
    starts: list[int],
    tables: list[torch.Tensor],
    lengths: list[int],
    scale: float,
    left: int,
) -> torch.Tensor:
    """Causal attention from the lower right corner, request after request. `left` is -1, or so many tokens before."""
    out = torch.full(query.shape, 1e6, dtype=query.dtype, device=query.device)  # what nobody computes must not matter
    for start, end, table, length in zip(starts, starts[1:], tables, lengths, strict=False):
        if start == end:
            continue
        keys, values = (cache[table.long()].flatten(0, 1)[:length].float() for cache in pages)
        group = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query[start:end].float(), keys) * scale
        last = torch.arange(length - (end - start), length, device=query.device)[:, None]
        place = torch.arange(length, device=query.device)[None, :]
        seen = (place <= last) & ((left < 0) | (place >= last - left))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return out


def check_tables(
    query: torch.Tensor, pages: Pages, starts: torch.Tensor, lens: torch.Tensor, table: torch.Tensor
) -> None:
    """What all of FlashAttention's functions ask for."""
    assert query.dim() == 3, "(tokens, heads, head size)"
    assert query.stride(-1) == 1
    for cache in pages:
        assert cache.dim() == 4, "(blocks, block size, KV heads, head size)"
        assert cache.dtype == query.dtype
        assert cache.stride(-1) == 1
        assert cache.shape[3] == query.shape[2]
        assert query.shape[1] % cache.shape[2] == 0
    for numbers in (starts, lens, table):
        assert numbers.dtype == torch.int32
    assert starts.is_contiguous()
    assert lens.is_contiguous()
    assert starts.shape == (len(lens) + 1,)
    assert table.dim() == 2
    assert len(table) == len(lens)
    assert table.stride(-1) == 1
    assert int(starts[-1]) <= len(query)
    new = starts.diff()
    assert (new >= 0).all()
    assert (lens[new > 0] >= new[new > 0]).all(), "the new tokens are in the cache already"
    for row, length in zip(table.tolist(), lens.tolist(), strict=True):
        used = row[: -(-length // pages[0].shape[1])]
        assert all(0 <= block < len(pages[0]) for block in used), "every page that is read exists"


def _flash_attention(
    query: torch.Tensor,
    pages: Pages,
    starts: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor,
    most_new: int,
    most: int | None,
    scale: float,
    causal: bool,
    window: Any,
) -> torch.Tensor:
    check_tables(query, pages, starts, lens, table)
    assert isinstance(most_new, int)
    assert int(starts.diff().max()) <= most_new
    assert most is None or int(lens.max()) <= most
    assert causal is True
    left, right = window
    assert right == (-1 if left < 0 else 0)
    used = [row[: -(-length // pages[0].shape[1])] for row, length in zip(table, lens.tolist(), strict=True)]
    return paged_attention(query, pages, starts.tolist(), used, lens.tolist(), scale, left)


CALLS: list[str] = []


def _vllms(
    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, softmax_scale=None,
    causal=False, window_size=None, block_table=None, out=None, fa_version=2,
):  # fmt: skip
    """vllm.vllm_flash_attn.flash_attn_varlen_func, vLLM 0.24."""
    CALLS.append(f"vllm {fa_version}")
    assert k.shape[1] % 16 == 0, "blocks of a multiple of 16"
    assert cu_seqlens_k is None, "either lengths or starts of keys"
    window = (-1, -1) if window_size is None else tuple(window_size)
    result = _flash_attention(
        q, (k, v), cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window
    )
    if out is None:
        return result
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert out.is_contiguous()
    return out.copy_(result)


def _thirds(
    q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, page_table=None, cu_seqlens_q=None, max_seqlen_q=None,
    softmax_scale=None, causal=False, window_size=(-1, -1),
):  # fmt: skip
    """flash_attn_interface.flash_attn_with_kvcache, FlashAttention 3: pages of any size."""
    CALLS.append("flash_attn_interface")
    assert k is None
    assert v is None
    return _flash_attention(
        q, (k_cache, v_cache), cu_seqlens_q, cache_seqlens, page_table, max_seqlen_q, None, softmax_scale, causal,
        window_size,
    )  # fmt: skip


def _seconds(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), block_table=None,
):  # fmt: skip
    """flash_attn.flash_attn_varlen_func, FlashAttention 2."""
    CALLS.append("flash_attn")
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert cu_seqlens_k.dtype == torch.int32
    assert cu_seqlens_k.is_contiguous()
    assert int(cu_seqlens_k[0]) == 0
    if max_seqlen_q == 1:  # then rows are requests, whatever the starts say
        assert len(q) == len(cu_seqlens_q) - 1
    lens = cu_seqlens_k.diff()
    return _flash_attention(
        q, (k, v), cu_seqlens_q, lens, block_table, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size
    )


class _Wrapper:
    """What both of FlashInfer's wrappers keep from plan to run."""

    plans = 0

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", **others: Any) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert not float_workspace_buffer.any(), "zeros for its first use"
        assert kv_layout == "NHD"
        assert others.keys() <= {"use_tensor_cores", "backend"}

    def _keep(
        self, starts: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, window_left: int,
        q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        type(self).plans += 1
        for numbers in (starts, indptr, indices, last_page_len):
            assert numbers.dtype == torch.int32
            assert numbers.dim() == 1
            assert numbers.is_contiguous()
        for numbers in (starts, indptr, last_page_len):
            assert numbers.device.type == "cpu", "what the plan reads on the host is there"
        assert len(starts) == len(indptr) == len(last_page_len) + 1
        assert int(starts[0]) == int(indptr[0]) == 0
        assert int(indptr[-1]) == len(indices)
        assert (indptr.diff() >= 1).all()
        assert ((last_page_len >= 1) & (last_page_len <= page_size)).all()
        assert (indices >= 0).all()
        assert num_qo_heads % num_kv_heads == 0
        self.starts, self.left = starts.tolist(), window_left
        self.tables = [indices[a:b] for a, b in zip(indptr.tolist(), indptr[1:].tolist(), strict=False)]
        self.lens = ((indptr.diff() - 1) * page_size + last_page_len).tolist()
        self.shape, self.page_size = (num_qo_heads, num_kv_heads, head_dim), page_size
        self.dtypes = (q_data_type, kv_data_type)

    def run(self, q: torch.Tensor, paged_kv_cache: Pages, *, out: torch.Tensor | None = None) -> torch.Tensor:
        CALLS.append(type(self).__name__)
        keys, values = paged_kv_cache
        assert len(q) == self.starts[-1], "as many rows as were planned"
        assert (q.shape[1], keys.shape[2], q.shape[2]) == self.shape
        assert keys.shape == values.shape
        assert keys.shape[1] == self.page_size
        assert (q.dtype, keys.dtype) == self.dtypes
        result = paged_attention(q, (keys, values), self.starts, self.tables, self.lens, q.shape[2] ** -0.5, self.left)
        if out is None:
            return result
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        return out.copy_(result)


class Decodes(_Wrapper):
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper."""

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, window_left=-1,
        q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        starts = torch.arange(len(indptr), dtype=torch.int32)
        heads = (num_qo_heads, num_kv_heads, head_dim)
        self._keep(starts, indptr, indices, last_page_len, *heads, page_size, window_left, q_data_type, kv_data_type)


class Prefills(_Wrapper):
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper."""

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, causal=False, window_left=-1, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        assert causal
        pages = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        heads = (num_qo_heads, num_kv_heads, head_dim_qk)
        self._keep(qo_indptr, *pages, *heads, page_size, window_left, q_data_type, kv_data_type)


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    for member, value in members.items():
        setattr(module, member, value)
    return module


# Each package, as it would be imported.
PACKAGES = {
    "flash_attn_interface": _module("flash_attn_interface", flash_attn_with_kvcache=_thirds),
    "vllm": _module("vllm"),
    "vllm.vllm_flash_attn": _module("vllm.vllm_flash_attn", flash_attn_varlen_func=_vllms),
    "flash_attn": _module("flash_attn", flash_attn_varlen_func=_seconds),
    "flashinfer": _module(
        "flashinfer", BatchDecodeWithPagedKVCacheWrapper=Decodes, BatchPrefillWithPagedKVCacheWrapper=Prefills
    ),
}


def install(names: list[str], folder: Path, versions: tuple[int, ...] = (3, 2)) -> None:
    """Put packages where an import finds them, in this process only. vLLM's gets files of the versions that it has."""
    for name in [*names, *(["vllm.vllm_flash_attn"] if "vllm" in names else [])]:
        sys.modules[name] = PACKAGES[name]
    if "vllm" in names:
        inner = folder / "vllm_flash_attn"
        inner.mkdir()
        for version in versions:
            (inner / f"_vllm_fa{version}_C.abi3.so").touch()
        spec = PACKAGES["vllm"].__spec__
        assert spec is not None
        spec.submodule_search_locations = [str(folder)]
