"""The prefill kernel for Hopper compiles without that GPU, and gets the instructions that it is written for."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.kernels import hopper_prefill
from minivllm.kernels.gluon_guard import HAS_GLUON, gl
from minivllm.kernels.hopper_prefill import HALF, LOW, PANEL, TALL, Plan, is_faster
from tests.kernels.compiling import SM90, _assemble

needs_gluon = pytest.mark.skipif(not HAS_GLUON, reason="this Triton has no Gluon")


def compiled(plan: Plan, head_dim: int, block_size: int | None) -> Any:
    """For pages of a size, or for a step's own tensors."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel = hopper_prefill.hopper_prefill_kernel
    page_rows = min(block_size or plan.keys, plan.keys)
    constants = {
        "group": 2,
        "consumers": plan.consumers,
        "half": HALF,
        "keys": plan.keys,
        "head_dim": head_dim,
        "stages": hopper_prefill.STAGES,
        "page_rows": page_rows,
        "panel_size": PANEL,
        "block_size": block_size or plan.keys,
        "is_paged": block_size is not None,
        "consumer_registers": plan.consumer_registers,
        "producer_registers": hopper_prefill.PRODUCER_REGISTERS,
    }
    types = {"out_ptr": "*bf16", "score_scale": "fp32"}
    types |= {f"{name}_ptr": "*i32" for name in ("counters", "block_table", "query_start_loc", "seq_lens")}
    box = [page_rows, PANEL if block_size else head_dim]
    for name, shape in {"query_desc": [HALF, head_dim], "key_desc": box, "value_desc": box}.items():
        layout = gl.NVMMASharedLayout.get_default_for(shape, gl.bfloat16)
        types[name] = f"tensordesc<bf16{shape},{layout!r}>"
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    options = {"num_warps": hopper_prefill.CONSUMER_WARPS, "maxnreg": plan.entry_registers}
    source = GluonASTSource(kernel, signature, constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@needs_gluon
@pytest.mark.parametrize(
    ("plan", "head_dim", "block_size"),
    [
        pytest.param(TALL, 128, None, id="prompts"),
        pytest.param(LOW, 128, None, id="short prompts"),
        pytest.param(TALL, 128, 16, id="pages"),
        pytest.param(TALL, 64, 64, id="pages, head size 64", marks=pytest.mark.slow),
        pytest.param(TALL, 64, None, id="prompts, head size 64", marks=pytest.mark.slow),
        pytest.param(TALL, 128, 128, id="large pages", marks=pytest.mark.slow),
        pytest.param(TALL, 64, 16, id="small pages, head size 64", marks=pytest.mark.slow),
    ],
)
def test_it_compiles_for_the_matrix_unit_and_the_copy_engine_without_spills(
    plan: Plan, head_dim: int, block_size: int | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    built = compiled(plan, head_dim, block_size)
    ptx = built.asm["ptx"]
    assert built.metadata.shared * plan.per_processor <= SM90.shared_bytes
    assert "wgmma.mma_async" in ptx
    assert "cp.async.bulk.tensor" in ptx
    report = _assemble(SM90, ptx)
    assert "0 bytes spill stores, 0 bytes spill loads" in report
    assert "serialized" not in report, "the matrix unit would wait where it should run ahead"


@pytest.mark.parametrize("plan", [TALL, LOW])
def test_all_groups_of_warps_have_registers(plan: Plan) -> None:
    threads = 128 * plan.per_processor
    assert threads * (plan.consumers + 1) * plan.entry_registers <= 65536
    assert threads * (plan.consumers * plan.consumer_registers + hopper_prefill.PRODUCER_REGISTERS) <= 65536


@pytest.mark.parametrize(
    ("head_dim", "tokens", "requests", "longest", "is_fresh", "expected"),
    [
        (128, 16384, 32, 512, True, True),
        (128, 16384, 64, 256, True, True),
        (128, 16384, 128, 128, True, False),
        (64, 16384, 4, 4096, True, True),
        (64, 16384, 16, 1024, True, False),  # at this size plain Triton is as fast
        (128, 4096, 16, 256, False, True),
        (64, 4096, 16, 256, False, True),
        (128, 512, 1, 512, False, False),  # 64 tiles, 132 multiprocessors
        (128, 1024, 1, 1024, False, False),  # 128 tiles
        (128, 2048, 1, 2048, False, True),
        (128, 2304, 65, 2048, False, False),  # 64 requests of 4 tokens beside a chunk
        (128, 512, 256, 512, False, False),  # what a graph of mixed steps says of itself
    ],
)
def test_it_is_taken_where_it_is_faster(
    head_dim: int, tokens: int, requests: int, longest: int, is_fresh: bool, expected: bool
) -> None:
    assert is_faster(head_dim, tokens, 16, requests, longest, is_fresh, processors=132) == expected
