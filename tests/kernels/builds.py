"""Which variants of the kernels are compiled without a GPU, and how much shared memory each may take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minivllm.kernels import paged_decode, paged_prefill, reshape_and_cache
from minivllm.kernels.launch import Gpu, padded_size
from minivllm.kernels.triton_guard import next_power_of_2
from tests.kernels.compiling import GFX942, SM80, SM90, Built, Target, build

KB = 1024
GPUS = {SM80: Gpu(108, 80, 3), SM90: Gpu(132, 90, 3), GFX942: Gpu(304, 0, 2)}
ITEMSIZE = {"bf16": 2, "fp32": 4, "fp8": 1}


def fp8(target: Target) -> str:
    """The 8-bit numbers that a GPU converts."""
    return "fp8e4nv" if target == SM90 else "fp8e5"


def pointers(kind: str, *names: str) -> dict[str, str]:
    return {f"{name}_ptr": f"*{kind}" for name in names}


def build_reshape_and_cache(target: Target) -> Built:
    kernel = reshape_and_cache.reshape_and_cache_kernel
    types = pointers("bf16", "key", "value", "key_cache", "value_cache") | pointers("i64", "slot_mapping")
    constants = {"token_elements": 1024, "tile_elements": reshape_and_cache.TILE_ELEMENTS}
    return build(target, kernel, types, constants, reshape_and_cache.NUM_WARPS)


def build_decode(
    target: Target, head_dim: int = 128, group: int = 2, splits: int = 1, kind: str = "bf16", kv: str = "bf16"
) -> Built:
    types = pointers(kind, "out", "query") | pointers("fp32", "partial_out", "partial_lse")
    types |= pointers(fp8(target) if kv == "fp8" else kv, "key_cache", "value_cache")
    types |= pointers("i32", "block_table", "seq_lens")
    types |= {"score_scale": "fp32", "value_scale": "fp32", "window": "i32:odd"}
    tile, warps = paged_decode.decode_tiling(head_dim, ITEMSIZE[kv], ITEMSIZE[kind], splits)
    constants = {
        "block_size": 16,
        "group": group,
        "group_rows": max(paged_decode.LEAST_ROWS, next_power_of_2(group)),
        "head_dim": head_dim,
        "dim_padded": padded_size(head_dim),
        "tile": tile,
        "num_splits": splits,
    }
    return build(target, paged_decode.paged_decode_kernel, types, constants, warps, GPUS[target].stages)


def build_join(target: Target, head_dim: int = 128, splits: int = 32) -> Built:
    types = pointers("bf16", "out") | pointers("fp32", "partial_out", "partial_lse") | pointers("i32", "seq_lens")
    types |= {"window": "i32:odd"}
    constants = {
        "head_dim": head_dim,
        "dim_padded": padded_size(head_dim),
        "tile": 32,
        "num_splits": splits,
        "splits_padded": splits,
    }
    return build(target, paged_decode.join_splits_kernel, types, constants, num_warps=4)


def build_prefill(
    target: Target,
    head_dim: int = 128,
    group: int = 2,
    longest: int = 4096,
    kind: str = "bf16",
    kv: str = "bf16",
    window: bool = False,
    fresh: bool = False,
    requests: int | None = None,
) -> Built:
    types = pointers(kind, "out", "query") | pointers(fp8(target) if kv == "fp8" else kv, "key", "value")
    types |= pointers("i32", "block_table", "query_start_loc", "seq_lens")
    types |= {"score_scale": "fp32", "value_scale": "fp32", "window": "i32:odd", "num_requests": "i32:odd"}
    tiling = paged_prefill.prefill_tiling(GPUS[target], group, longest, head_dim, ITEMSIZE[kind])
    constants: dict[str, Any] = {
        "block_size": 16,
        "group": group,
        "rows": tiling.rows,
        "head_dim": head_dim,
        "dim_padded": padded_size(head_dim),
        "tile": tiling.tile,
        "has_window": window,
        "is_fresh": fresh,
    }
    if requests is not None:
        constants["num_requests"] = requests  # a launch makes a constant of an argument that is 1
    return build(target, paged_prefill.paged_prefill_kernel, types, constants, tiling.warps, tiling.stages)


# (how to build it, shared memory in bytes at most). Two programs of 114 KB fit into a Hopper's multiprocessor.
BUILDS: dict[str, tuple[Callable[[Target], Built], int]] = {
    # Each element is read once and written once: there is nothing to share.
    "reshape_and_cache": (build_reshape_and_cache, 0),
    "decode": (build_decode, 72 * KB),
    "decode, split": (partial(build_decode, splits=8), 40 * KB),
    "decode, head size 80, 7 heads a KV head": (partial(build_decode, head_dim=80, group=7), 72 * KB),
    "decode, head size 256": (partial(build_decode, head_dim=256), 80 * KB),
    "decode, FP8 cache": (partial(build_decode, kv="fp8"), 40 * KB),
    "decode, float32": (partial(build_decode, kind="fp32", kv="fp32", head_dim=64), 48 * KB),
    "join of splits": (build_join, 4 * KB),
    "prefill": (build_prefill, 113 * KB),
    "prefill, from the step's own tensors": (partial(build_prefill, fresh=True), 113 * KB),
    "prefill, one request": (partial(build_prefill, requests=1), 113 * KB),
    "prefill, window": (partial(build_prefill, window=True), 113 * KB),
    "prefill, short queries": (partial(build_prefill, longest=2), 72 * KB),
    "prefill, head size 80, 3 heads a KV head": (partial(build_prefill, head_dim=80, group=3), 113 * KB),
    "prefill, head size 256": (partial(build_prefill, head_dim=256), 161 * KB),
    "prefill, float32": (partial(build_prefill, kind="fp32", kv="fp32"), 48 * KB),
}
