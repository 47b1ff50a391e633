"""Owns how much of a GPU an engine really takes, beside what it was told it may."""

from __future__ import annotations

from typing import Any


def device_memory(llm: Any, cuda: Any) -> dict[str, float | int | str]:
    """Memory after a run, in bytes.

    Args:
        llm: A `minivllm.LLM` whose core is in this process.
        cuda: `torch.cuda`.

    Returns:
        `used` of `total` by all that is on the device, its share and the share that was asked for, the most that
        tensors ever took (`peak`), the KV cache, and how its size was found; empty without a GPU.
    """
    core = llm.llm_engine.engine_core
    worker = core.model_executor.worker
    if worker.device.type != "cuda":
        return {}
    free, total = cuda.mem_get_info()
    facts: dict[str, float | int | str] = {
        "total": total,
        "used": total - free,
        "used_share": (total - free) / total,
        "peak": cuda.max_memory_reserved(),
        "kv_cache": worker.kv_cache_sizing.memory_bytes,
        "kv_cache_reason": worker.kv_cache_sizing.reason,
    }
    asked = core.vllm_config.cache_config.gpu_memory_utilization
    return facts if asked is None else {**facts, "asked_share": asked}
