"""Owns writing a step's new keys and values into the paged KV cache.

Each new token t has one *slot*, worked out on the host from its request's block table:

    slot(t) = block_table[request][position // block_size] * block_size + position % block_size

and this kernel undoes that sum to find the page and the place in it:

    page_of_token = slot // block_size        offset_in_page = slot % block_size
    cache[page_of_token, offset_in_page, :, :] = new[t, :, :]

A slot of -1 belongs to padding and is skipped. Keys and values go through the same arithmetic, in one pass.

Upstream: vllm/v1/attention/ops/triton_reshape_and_cache_flash.py::triton_reshape_and_cache_flash.
"""

from __future__ import annotations

import torch

from minivllm.kernels.fp8 import cache_limit, into_cache, into_cache_reference
from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.triton_guard import cdiv, jit, tl

# Elements of one token that one program copies. 4 warps x 32 threads x 8 elements: with 16-bit elements each thread
# moves 16 bytes, the widest load and store a GPU has. A token of 8 heads x 128 is exactly one tile.
TILE_ELEMENTS = 1024
NUM_WARPS = 4


def reshape_and_cache_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: KVScales = UNSCALED,
) -> None:
    """What the kernel does, in plain PyTorch. Arguments as in `reshape_and_cache`."""
    block_size = key_cache.shape[1]
    tokens = torch.nonzero(slot_mapping >= 0).flatten()  # (real tokens,)
    page_of_token = slot_mapping[tokens] // block_size
    offset_in_page = slot_mapping[tokens] % block_size
    # (real tokens, kv_heads, head_dim)
    key_cache[page_of_token, offset_in_page] = into_cache_reference(key[tokens], key_cache.dtype, scales.key)
    value_cache[page_of_token, offset_in_page] = into_cache_reference(value[tokens], value_cache.dtype, scales.value)


@jit
def reshape_and_cache_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    inverse_key_scale,
    inverse_value_scale,
    key_token_stride,
    value_token_stride,
    key_page_stride,
    key_offset_stride,
    value_page_stride,
    value_offset_stride,
    block_size,
    token_elements: tl.constexpr,
    tile_elements: tl.constexpr,
    fp8_limit: tl.constexpr,
):
    """Copy one tile of one token.

                      token_elements = kv_heads * head_dim
                     |<------------------------------------>|
        token 0      [ program (0,0) | (0,1) | (0,2) part   ]  -> slot 21 = page 2, offset 5
        token 1      [ program (1,0) | (1,1) | (1,2) part   ]  -> slot -1 : nothing is written
        token 2      [ program (2,0) | (2,1) | (2,2) part   ]  -> slot 56 = page 7, offset 0      (block_size 8)
                     |<--- tile ---->|       the last tile is masked where the token ends

    Programs never meet: two tokens of a step never share a slot, and tiles of a token do not overlap. So there is
    nothing to synchronise, and every byte is read once and written once.
    """
    # 64 bits: a cache has more elements than a 32-bit integer can count (2**31 is 4 GiB of 16-bit keys).
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)  # int64
    if slot >= 0:
        page_of_token = slot // block_size
        offset_in_page = slot % block_size
        element = tl.program_id(1) * tile_elements + tl.arange(0, tile_elements)  # (tile,)
        is_real = element < token_elements

        key = tl.load(key_ptr + token * key_token_stride + element, mask=is_real)  # (tile,)
        key_row = page_of_token * key_page_stride + offset_in_page * key_offset_stride
        key = into_cache(key, key_cache_ptr.dtype.element_ty, inverse_key_scale, fp8_limit)
        tl.store(key_cache_ptr + key_row + element, key, mask=is_real)

        value = tl.load(value_ptr + token * value_token_stride + element, mask=is_real)
        value_row = page_of_token * value_page_stride + offset_in_page * value_offset_stride
        value = into_cache(value, value_cache_ptr.dtype.element_ty, inverse_value_scale, fp8_limit)
        tl.store(value_cache_ptr + value_row + element, value, mask=is_real)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scales: KVScales = UNSCALED,
) -> None:
    """Write new keys and values into the pages of their requests.

    The two caches are `kv_cache[0]` and `kv_cache[1]` of a layer. Any stride between tokens, pages and offsets will
    do; the elements of one token must be contiguous, because a tile is one straight run of memory.

    Args:
        key: (tokens, kv_heads, head_dim)
        value: (tokens, kv_heads, head_dim)
        key_cache: (num_blocks, block_size, kv_heads, head_dim), written in place.
        value_cache: The same for values.
        slot_mapping: (tokens,) int64; -1 skips a token. No slot may occur twice.
        scales: What the numbers of an FP8 cache are multiplied with when they are read.

    Raises:
        ValueError: A token's elements are not contiguous, or shapes do not belong together.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    _check(key, value, key_cache, value_cache, slot_mapping)
    if num_tokens == 0:
        return  # a grid of 0 programs is an error on a GPU
    token_elements = num_kv_heads * head_dim
    grid = (num_tokens, cdiv(token_elements, TILE_ELEMENTS))
    reshape_and_cache_kernel[grid](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        1.0 / scales.key,
        1.0 / scales.value,
        key.stride(0),
        value.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        value_cache.stride(0),
        value_cache.stride(1),
        key_cache.shape[1],
        token_elements=token_elements,
        tile_elements=TILE_ELEMENTS,
        fp8_limit=cache_limit(key_cache.dtype),
        num_warps=NUM_WARPS,
    )


def _check(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    if slot_mapping.dtype != torch.int64 or not slot_mapping.is_contiguous():
        raise ValueError(f"slot_mapping must be contiguous int64, got {slot_mapping.dtype}")
    if value.shape != key.shape or slot_mapping.shape != key.shape[:1]:
        raise ValueError(
            f"key {tuple(key.shape)}, value {tuple(value.shape)} and slot_mapping {tuple(slot_mapping.shape)} "
            "must have the same tokens, heads and head size"
        )
    for name, tensor in (("key", key), ("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.shape[-2:] != key.shape[-2:]:
            raise ValueError(f"{name} has heads and head size {tuple(tensor.shape[-2:])}, key {tuple(key.shape[-2:])}")
        if tensor.numel() and tensor.stride()[-2:] != (tensor.shape[-1], 1):
            raise ValueError(f"the elements of one token of {name} must be contiguous, got strides {tensor.stride()}")
