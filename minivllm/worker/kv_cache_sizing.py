"""Owns the arithmetic from memory to blocks, as a report that a reader can check.

Upstream: vllm/v1/worker/gpu_worker.py::Worker.determine_available_memory, vllm/v1/core/kv_cache_utils.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from minivllm.config import VllmConfig
from minivllm.models.config import DecoderConfig

# Share of the free memory that the KV cache takes by default. A CPU's memory belongs to others as well.
_CPU_SHARE = 0.25
# A GPU keeps prefixes beyond what can run at once; a tiny model would fill it with millions of blocks.
_CACHED_TIMES = 4
# Block 0 is the null block: it pads block tables and never holds anybody's tokens.
_NULL_BLOCKS = 1


@dataclass(frozen=True, slots=True)
class KVCacheSizing:
    """How many blocks, and why.

    Attributes:
        bytes_per_block: 2 (key and value) * layers * block size * KV heads * head size * bytes per number.
        num_blocks: Blocks, the null block included.
        num_tokens: Tokens that fit at once.
        memory_bytes: What those blocks take.
        reason: Where the number comes from.
    """

    bytes_per_block: int
    num_blocks: int
    num_tokens: int
    memory_bytes: int
    reason: str

    def __str__(self) -> str:
        return (
            f"KV cache: {self.num_blocks} blocks of {mib(self.bytes_per_block)} = {mib(self.memory_bytes)}, "
            f"room for {self.num_tokens} tokens ({self.reason})"
        )


def size_kv_cache(
    vllm_config: VllmConfig,
    model: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    measured: tuple[int, str] | None = None,
) -> KVCacheSizing:
    """Decide the number of blocks: what the configuration says, or what the memory allows.

    By default not far beyond what the limits can use; a share of a GPU that was asked for is taken as a whole.

    Args:
        vllm_config: The settings.
        model: Its sizes.
        dtype: Of the KV cache.
        device: Where it will be.
        measured: Bytes that were found to be left for it, and how; None takes a share of the memory.

    Raises:
        ValueError: Not even one sequence of max_model_len fits into the memory.
    """
    cache, limits = vllm_config.cache_config, vllm_config.scheduler_config
    bytes_per_block = bytes_per_kv_block(model, cache.block_size, dtype)
    if cache.num_gpu_blocks is not None:
        return _report(cache.num_gpu_blocks, cache.block_size, bytes_per_block, "num_gpu_blocks is set")
    blocks_per_sequence = -(-limits.max_model_len // cache.block_size)
    if cache.kv_cache_memory_bytes is not None:
        memory, reason = cache.kv_cache_memory_bytes, f"kv_cache_memory_bytes is {mib(cache.kv_cache_memory_bytes)}"
        num_blocks = memory // bytes_per_block
    else:
        memory, reason = measured or _share_of_memory(cache.gpu_memory_utilization, device)
        num_blocks = memory // bytes_per_block
        usable = limits.max_num_seqs * blocks_per_sequence + _NULL_BLOCKS
        most = usable if device.type == "cpu" else _CACHED_TIMES * usable
        if most < num_blocks and (device.type == "cpu" or cache.gpu_memory_utilization is None):
            num_blocks = most
            times = "" if device.type == "cpu" else f"{_CACHED_TIMES} times "
            reason = f"{times}all that {limits.max_num_seqs} sequences of {limits.max_model_len} tokens can use"
    least = blocks_per_sequence + _NULL_BLOCKS
    is_in_bytes = measured is None and cache.gpu_memory_utilization is None
    if num_blocks < least:
        raise ValueError(
            f"one sequence of max_model_len {limits.max_model_len} needs {least} KV blocks "
            f"({mib(least * bytes_per_block)}), and {mib(memory)} ({reason}) hold {num_blocks}: "
            f"{mib(least * bytes_per_block - memory)} are missing; lower max_model_len or raise "
            f"{'kv_cache_memory_bytes' if is_in_bytes else 'gpu_memory_utilization'}"
        )
    return _report(num_blocks, cache.block_size, bytes_per_block, reason)


def _share_of_memory(utilization: float | None, device: torch.device) -> tuple[int, str]:
    """Bytes for the KV cache, and why so many."""
    if utilization is None:
        return int(free_memory(device) * _CPU_SHARE), f"{_CPU_SHARE:.0%} of the free memory"
    total = total_memory(device)
    taken = total - free_memory(device)
    reason = f"gpu_memory_utilization is {utilization:g}: that share of {mib(total)}, less {mib(taken)} in use"
    return max(0, int(total * utilization) - taken), reason


def bytes_per_kv_block(model: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Keys and values of one block, over all layers."""
    numbers_per_token = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
    return numbers_per_token * block_size * dtype.itemsize


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _meminfo("MemAvailable") or total_memory(device) // 2


def total_memory(device: torch.device) -> int:
    """Bytes that a device has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _report(num_blocks: int, block_size: int, bytes_per_block: int, reason: str) -> KVCacheSizing:
    tokens = (num_blocks - _NULL_BLOCKS) * block_size
    return KVCacheSizing(bytes_per_block, num_blocks, tokens, num_blocks * bytes_per_block, reason)


def mib(num_bytes: int) -> str:
    """Bytes for a reader."""
    return f"{num_bytes / 2**20:.1f} MiB"
