"""Which variants of the kernels are compiled without a GPU, and how much shared memory each may take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minivllm.kernels import (
    append_blocks,
    fused_linear,
    hopper_decode,
    logprobs,
    pack_decodes,
    pack_inputs,
    paged_decode,
    paged_prefill,
    penalties,
    prefix_attention,
    reshape_and_cache,
    rms_norm,
    rotary_and_cache,
    sample,
    silu_and_mul,
    skinny_linear,
    threshold,
)
from minivllm.kernels.launch import Gpu, padded_size
from minivllm.kernels.triton_guard import next_power_of_2
from tests.kernels.compiling import GFX942, SM80, SM90, SM90_EARLY, Built, Target, build

KB = 1024
# Of the 228 KB of a Hopper a program costs 1 KB beside its own: with more than this, a multiprocessor holds only one.
TWO_PROGRAMS = 113 * KB
GPUS = {
    SM80: Gpu(108, 80, 3),
    SM90: Gpu(132, 90, 3),
    SM90_EARLY: Gpu(132, 90, 3, True),
    GFX942: Gpu(304, 0, 2),
}
ITEMSIZE = {"bf16": 2, "fp32": 4, "fp8": 1}


def fp8(target: Target) -> str:
    """The 8-bit numbers that a GPU converts."""
    return "fp8e4nv" if target.arch == 90 else "fp8e5"


def pointers(kind: str, *names: str) -> dict[str, str]:
    return {f"{name}_ptr": f"*{kind}" for name in names}


def build_reshape_and_cache(target: Target) -> Built:
    kernel = reshape_and_cache.reshape_and_cache_kernel
    types = pointers("bf16", "key", "value", "key_cache", "value_cache") | pointers("i64", "slot_mapping")
    types |= {"inverse_key_scale": "fp32", "inverse_value_scale": "fp32"}
    constants = {"token_elements": 1024, "tile_elements": reshape_and_cache.TILE_ELEMENTS, "fp8_limit": 0.0}
    return build(target, kernel, types, constants, reshape_and_cache.NUM_WARPS)


def build_decode(
    target: Target,
    head_dim: int = 128,
    group: int = 2,
    joined_apart: bool = False,
    is_crowded: bool = False,
    kind: str = "bf16",
    kv: str = "bf16",
    prefix_splits: int = 0,
) -> Built:
    types = pointers(kind, "out", "query") | pointers("fp32", "partial_out", "partial_lse", "prefix_out", "prefix_lse")
    types |= pointers(fp8(target) if kv == "fp8" else kv, "key_cache", "value_cache")
    types |= pointers("i32", "block_table", "arrived", "parts")
    types |= {"score_scale": "fp32", "value_scale": "fp32", "table_stride": "i32:odd"}
    tiling = paged_decode.decode_tiling(head_dim, ITEMSIZE[kv], ITEMSIZE[kind], is_crowded, GPUS[target].stages)
    constants = {
        "block_size": 16,
        "group": group,
        "group_rows": max(paged_decode.LEAST_ROWS, next_power_of_2(group)),
        "head_dim": head_dim,
        "dim_padded": padded_size(head_dim),
        "tile": tiling.tokens,
        "prefix_splits": prefix_splits,
        "prefix_padded": next_power_of_2(max(prefix_splits, 1)),
        "joined": paged_decode.JOINED,
        "is_joined_apart": joined_apart,
    }
    return build(target, paged_decode.paged_decode_kernel, types, constants, tiling.warps, tiling.stages)


def build_join(target: Target, head_dim: int = 128, prefix_splits: int = 8) -> Built:
    types = pointers("bf16", "out") | pointers("fp32", "partial_out", "partial_lse", "prefix_out", "prefix_lse")
    types |= pointers("i32", "of_request")
    constants = {
        "head_dim": head_dim,
        "dim_padded": padded_size(head_dim),
        "prefix_splits": prefix_splits,
        "prefix_padded": next_power_of_2(max(prefix_splits, 1)),
        "joined": paged_decode.JOINED,
    }
    return build(target, paged_decode.join_parts_kernel, types, constants, num_warps=1)


def build_plan_decode(target: Target, has_prefix: bool = False) -> Built:
    types = pointers("i32", "parts", "of_request", "arrived", "seq_lens", "prefix_tokens")
    types |= dict.fromkeys(("window", "num_requests", "num_arrivals", "most_parts"), "i32:odd")
    constants = {"requests_padded": 4096, "tile": 64, "has_prefix": has_prefix}
    return build(target, paged_decode.plan_decode_kernel, types, constants, num_warps=16)


def build_plan_ranges(target: Target) -> Built:
    types = pointers("i32", "ranges", "of_request", "arrived", "seq_lens")
    types |= dict.fromkeys(("window", "num_requests", "num_ranges"), "i32:odd")
    constants = {"sections": 2, "requests_padded": 4096, "tile": hopper_decode.TILE}
    return build(target, hopper_decode.plan_ranges_kernel, types, constants, num_warps=16)


def build_prefill(
    target: Target,
    head_dim: int = 128,
    group: int = 2,
    longest: int = 4096,
    kind: str = "bf16",
    kv: str = "bf16",
    window: bool = False,
    fresh: bool = False,
    boxed: bool = False,
    block_size: int = 16,
) -> Built:
    types = pointers(kind, "out", "query") | pointers(fp8(target) if kv == "fp8" else kv, "key", "value")
    types |= pointers("i32:odd", "block_table", "query_start_loc", "seq_lens")
    types |= {"score_scale": "fp32", "value_scale": "fp32"}
    types |= dict.fromkeys(("window", "num_requests", "table_stride"), "i32:odd")
    tiling = paged_prefill.prefill_tiling(GPUS[target], group, longest, head_dim, ITEMSIZE[kind])
    constants: dict[str, Any] = {
        "block_size": block_size,
        "group": group,
        "rows": tiling.rows,
        "head_dim": head_dim,
        "dim_padded": padded_size(head_dim),
        "tile": tiling.tile,
        "has_window": window,
        "is_fresh": fresh,
        "is_boxed": boxed and paged_prefill.are_boxes_worth_it(GPUS[target], longest, head_dim, ITEMSIZE[kind]),
    }
    boxes = ("key_boxes", "value_boxes")
    if constants["is_boxed"]:
        types |= dict.fromkeys(boxes, f"tensordesc<{kind}[{tiling.tile}, {head_dim}]>")
    else:
        constants |= dict.fromkeys(boxes)
    return build(target, paged_prefill.paged_prefill_kernel, types, constants, tiling.warps, tiling.stages)


def build_prefix(
    target: Target, head_dim: int = 128, group: int = 2, requests: int = 256, kind: str = "bf16", kv: str = "bf16"
) -> Built:
    types = pointers(kind, "query") | pointers(fp8(target) if kv == "fp8" else kv, "key", "value")
    types |= pointers("fp32", "partial_out", "partial_lse") | pointers("i32", "block_table", "seq_lens", "num_tokens")
    types |= {"score_scale": "fp32", "value_scale": "fp32", "num_requests": "i32:odd"}
    tiling = prefix_attention.prefix_tiling(GPUS[target], requests * group, head_dim, ITEMSIZE[kind])
    constants = {
        "block_size": 16,
        "group": group,
        "rows": tiling.rows,
        "head_dim": head_dim,
        "dim_padded": padded_size(head_dim),
        "tile": tiling.tile,
    }
    kernel = prefix_attention.prefix_attention_kernel
    return build(target, kernel, types, constants, tiling.warps, tiling.stages)


def build_rotary(target: Target, head_dim: int = 128, kv: str = "bf16") -> Built:
    types = pointers("bf16", "qkv", "query_norm", "key_norm") | pointers("fp32", "cos_sin")
    types |= pointers(fp8(target) if kv == "fp8" else kv, "key_cache", "value_cache")
    types |= pointers("i64", "positions", "slot_mapping")
    types |= dict.fromkeys(("eps", "inverse_key_scale", "inverse_value_scale"), "fp32")
    constants = {
        "block_size": 16,
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": head_dim,
        "half_padded": next_power_of_2(head_dim // 2),
        "head_tile": rotary_and_cache.HEAD_TILE,
        "has_norm": True,
        "fp8_limit": 448.0 if kv == "fp8" else 0.0,
    }
    kernel = rotary_and_cache.rotary_and_cache_kernel
    return build(target, kernel, types, constants, rotary_and_cache.NUM_WARPS)


def build_rms_norm(target: Target, size: int = 1024, warps: int = 4) -> Built:
    types = pointers("bf16", "out", "x", "residual", "weight") | {"eps": "fp32"}
    constants = {"size": size, "size_padded": next_power_of_2(size), "has_residual": True}
    return build(target, rms_norm.rms_norm_kernel, types, constants, warps)


def build_silu(target: Target) -> Built:
    constants = {"size": 3072, "tile": silu_and_mul.TILE}
    return build(target, silu_and_mul.silu_and_mul_kernel, pointers("bf16", "out", "gate_up"), constants, 4)


def build_gemv(target: Target, rows: int, size: int) -> Built:
    types = pointers("bf16", "out", "x", "weight", "bias") | {"num_rows": "i32:odd"}
    tiling = skinny_linear.gemv_tiling(rows, 4096, size)
    constants = {
        "rows_padded": next_power_of_2(rows),
        "size": size,
        "weight_rows": tiling.weight_rows,
        "tile": tiling.tile,
        "has_bias": True,
    }
    return build(target, skinny_linear.gemv_kernel, types, constants, tiling.warps)


def build_fused_gemv(target: Target, rows: int, size: int, gated: bool) -> Built:
    types = pointers("bf16", "out", "x", "weight", "bias", "norm") | {"eps": "fp32", "num_rows": "i32:odd"}
    tiling = fused_linear.fused_tiling(rows, 4096, size, gated)
    constants = {
        "rows_padded": next_power_of_2(rows),
        "size": size,
        "weight_rows": tiling.weight_rows,
        "tile": tiling.tile,
        "has_bias": False,
        "has_norm": True,
        "is_gated": gated,
        "has_residual": not gated,
    }
    return build(target, fused_linear.fused_gemv_kernel, types, constants, tiling.warps)


def build_skinny_gemm(target: Target, rows: int = 16, outputs: int = 1024) -> Built:
    types = pointers("bf16", "out", "x", "weight", "bias") | {"partial_ptr": "*fp32", "ticket_ptr": "*i32"}
    tiling = skinny_linear.gemm_tiling(outputs, 2048, 2, GPUS[target].processors)
    constants = {
        "rows_padded": rows,
        "weight_rows": tiling.weight_rows,
        "tile": tiling.tile,
        "splits": tiling.splits,
        "has_bias": True,
    }
    types |= {"num_rows": "i32:odd"}
    return build(target, skinny_linear.skinny_gemm_kernel, types, constants, tiling.warps, GPUS[target].stages + 1)


def build_pack(target: Target, kernel: Any, **constants: Any) -> Built:
    types = {name: "*i32" for name in kernel.arg_names if name.endswith("_ptr")}
    types |= {name: "*i64" for name in ("input_ids_ptr", "positions_ptr", "slot_mapping_ptr") if name in types}
    types |= {name: "i32:odd" for name in ("num_requests", "num_tokens", "halvings") if name in kernel.arg_names}
    return build(target, kernel, types, constants, num_warps=4)


def build_sampling(target: Target, kernel: Any, warps: int, has_history: bool = True, **constants: Any) -> Built:
    names = [name.removesuffix("_ptr") for name in kernel.arg_names if name.endswith("_ptr")]
    integers = {"last_tie", "history", "top_k", "slot", "position", "num_found", "ticket", "part_above"}
    wide = {"seed", "out", "candidate", "part_mass_above", "part_mass"}
    kinds = {name: "i32" if name in integers else "i64" if name in wide else "fp32" for name in names}
    kinds |= {"logits": "bf16", "token_ids": "i32"}
    types = {f"{name}_ptr": f"*{kinds[name]}" for name in names}
    types |= {"vocab_size": "i32:odd", "logits_stride": "i32:odd", "history_stride": "i32:odd"}
    return build(target, kernel, types, {"has_history": has_history, **constants}, warps)


def build_count_history(target: Target) -> Built:
    types = pointers("i32", "history_row", "token_ids") | {"num_prompt_tokens": "i32:odd", "num_tokens": "i32:odd"}
    return build(target, penalties.count_history_kernel, types, {"tile": 1024}, num_warps=4)


def build_logprobs(target: Target) -> Built:
    types = pointers("fp32", "logprob") | pointers("i64", "rank", "token_ids") | pointers("bf16", "logits")
    kernel, constants = logprobs.token_logprobs_kernel, {"tile": logprobs.TILE}
    return build(target, kernel, types | {"vocab_size": "i32:odd"}, constants, logprobs.NUM_WARPS)


SURVEY: dict[str, Any] = {
    "kernel": threshold.survey_kernel,
    "warps": threshold.NUM_WARPS,
    "tile": threshold.TILE,
    "room": threshold.ROOM,
    "parts_padded": 64,
}
COLLECT: dict[str, Any] = SURVEY | {"kernel": threshold.collect_kernel, "tile": threshold.COLLECT_TILE}
WEIGH: dict[str, Any] = {"kernel": sample.weigh_kernel, "warps": 4, "tile": sample.TILE}
FINISH: dict[str, Any] = WEIGH | {"kernel": sample.finish_kernel, "tiles_padded": 256}


# (how to build it, shared memory in bytes at most). Two programs of 114 KB fit into a Hopper's multiprocessor.
BUILDS: dict[str, tuple[Callable[[Target], Built], int]] = {
    # Each element is read once and written once: there is nothing to share.
    "reshape_and_cache": (build_reshape_and_cache, 0),
    "decode": (build_decode, 72 * KB),
    "decode, crowded": (partial(build_decode, is_crowded=True), 56 * KB),
    "decode, joined apart": (partial(build_decode, joined_apart=True), 72 * KB),
    "decode behind a prefix": (partial(build_decode, prefix_splits=8), 72 * KB),
    "decode, join": (build_join, 4 * KB),
    "decode, plan": (build_plan_decode, 8 * KB),
    "decode, plan of ranges": (build_plan_ranges, 40 * KB),
    "decode, head size 80, 7 heads a KV head": (partial(build_decode, head_dim=80, group=7), 72 * KB),
    "decode, head size 256": (partial(build_decode, head_dim=256), 80 * KB),
    "decode, FP8 cache": (partial(build_decode, kv="fp8"), 40 * KB),
    "decode, float32": (partial(build_decode, kind="fp32", kv="fp32", head_dim=64), 48 * KB),
    "prefix": (build_prefix, 130 * KB),
    "prefix, few requests": (partial(build_prefix, requests=8), 40 * KB),
    "prefix, 16 requests": (partial(build_prefix, requests=16), 44 * KB),
    "prefix, 32 requests": (partial(build_prefix, requests=32), 114 * KB),
    "prefix, head size 64": (partial(build_prefix, head_dim=64), 66 * KB),
    "prefix, head size 80, 7 heads a KV head": (partial(build_prefix, head_dim=80, group=7), 130 * KB),
    "prefix, head size 256": (partial(build_prefix, head_dim=256), 130 * KB),
    "prefix, FP8 cache": (partial(build_prefix, kv="fp8"), 82 * KB),
    "prefix, float32": (partial(build_prefix, kind="fp32", kv="fp32"), 44 * KB),
    "prefill": (build_prefill, TWO_PROGRAMS),
    "prefill, from the step's own tensors": (partial(build_prefill, fresh=True), TWO_PROGRAMS),
    "prefill, from the step's own tensors in boxes": (partial(build_prefill, fresh=True, boxed=True), TWO_PROGRAMS),
    "prefill, odd pages": (partial(build_prefill, block_size=3), TWO_PROGRAMS),
    "prefill, window": (partial(build_prefill, window=True), TWO_PROGRAMS),
    "prefill, short queries": (partial(build_prefill, longest=2), 72 * KB),
    "prefill, head size 80, 3 heads a KV head": (partial(build_prefill, head_dim=80, group=3), TWO_PROGRAMS),
    "prefill, head size 256": (partial(build_prefill, head_dim=256), 161 * KB),
    "norm, rotation and KV write": (build_rotary, 4 * KB),
    "norm, rotation and KV write, FP8 cache": (partial(build_rotary, kv="fp8"), 4 * KB),
    "RMS norm": (build_rms_norm, KB),
    "RMS norm of 8192": (partial(build_rms_norm, size=8192, warps=rms_norm.MOST_WARPS), KB),
    "SiLU and mul": (build_silu, 0),
    "GEMV, 1 row": (partial(build_gemv, rows=1, size=1024), 4 * KB),
    "GEMV, 4 rows": (partial(build_gemv, rows=4, size=3072), 8 * KB),
    "GEMV, long rows": (partial(build_gemv, rows=1, size=14336), 4 * KB),
    "fused GEMV": (partial(build_fused_gemv, rows=1, size=1024, gated=True), 4 * KB),
    "fused GEMV, 4 rows": (partial(build_fused_gemv, rows=4, size=3072, gated=True), 8 * KB),
    "fused GEMV, residual": (partial(build_fused_gemv, rows=2, size=3072, gated=False), 8 * KB),
    "skinny GEMM": (build_skinny_gemm, 66 * KB),
    "skinny GEMM, 32 rows": (partial(build_skinny_gemm, rows=32), 66 * KB),
    "skinny GEMM, head": (partial(build_skinny_gemm, rows=64, outputs=151936), 130 * KB),
    "append blocks": (partial(build_pack, kernel=append_blocks.append_blocks_kernel, tile=append_blocks.TILE), 4 * KB),
    "pack requests": (partial(build_pack, kernel=pack_inputs.pack_requests_kernel, requests_padded=512), 4 * KB),
    "pack tokens": (
        partial(build_pack, kernel=pack_inputs.pack_tokens_kernel, block_size=16, tile=pack_inputs.TILE),
        KB,
    ),
    "pack decodes": (
        partial(
            build_pack,
            kernel=pack_decodes.pack_decodes_kernel,
            block_size=16,
            tile=pack_decodes.TILE,
            requests_padded=512,
        ),
        KB,
    ),
    "gather block table": (
        partial(build_pack, kernel=pack_inputs.gather_block_table_kernel, block_size=16, tile=pack_inputs.TILE),
        0,
    ),
    # Sums over all threads only: their tokens stay with them.
    "sampling, survey": (partial(build_sampling, **SURVEY), KB),
    "sampling, survey without penalties": (partial(build_sampling, has_history=False, **SURVEY), KB),
    "sampling, collect": (partial(build_sampling, **COLLECT), KB),
    "sampling, collect without penalties": (partial(build_sampling, has_history=False, **COLLECT), KB),
    "sampling, weigh": (partial(build_sampling, **WEIGH), KB),
    "sampling, weigh without penalties": (partial(build_sampling, has_history=False, **WEIGH), KB),
    "sampling, finish": (partial(build_sampling, **FINISH), 8 * KB),
    "history": (build_count_history, 8 * KB),
    "scores of tokens": (build_logprobs, KB),
    "prefill, float32": (partial(build_prefill, kind="fp32", kv="fp32"), 48 * KB),
}

# Other tilings of what stands beside them: compiled only where a test may take long.
RARE = {
    "decode, crowded",
    "decode, joined apart",
    "prefix, few requests",
    "prefix, 16 requests",
    "prefix, 32 requests",
    "prefix, head size 64",
    "prefix, head size 256",
    "prefix, float32",
    "prefill, window",
    "prefill, short queries",
    "prefill, float32",
    "sampling, survey without penalties",
    "sampling, collect without penalties",
    "sampling, weigh without penalties",
}

# What takes part in a chain of early launches, and which of it may read before it waits: weights.
EARLY = {
    name: name.startswith(("GEMV", "fused GEMV"))
    for name in BUILDS
    if name.startswith(
        ("decode", "prefix", "join", "norm, rotation", "RMS", "SiLU", "GEMV", "fused GEMV", "skinny GEMM", "sampling")
    )
}
