"""The kernel for long prompts on Hopper compiles without that GPU, and gets the instructions that it is written for."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.kernels import hopper_prefill
from minivllm.kernels.gluon_guard import HAS_GLUON, gl
from tests.kernels.compiling import SM90, _assemble

pytestmark = pytest.mark.skipif(not HAS_GLUON, reason="this Triton has no Gluon")


def compiled(head_dim: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel = hopper_prefill.hopper_prefill_kernel
    rows, half = hopper_prefill.ROWS, hopper_prefill.HALF
    constants = {
        "group": 2,
        "rows": rows,
        "half": half,
        "head_dim": head_dim,
        "stages": hopper_prefill.STAGES,
        "consumer_registers": hopper_prefill.CONSUMER_REGISTERS,
        "producer_registers": hopper_prefill.PRODUCER_REGISTERS,
    }
    types = {"out_ptr": "*bf16", "query_start_loc_ptr": "*i32", "score_scale": "fp32"}
    for name, height in {"query_desc": half, "key_desc": rows, "value_desc": rows}.items():
        layout = gl.NVMMASharedLayout.get_default_for([height, head_dim], gl.bfloat16)
        types[name] = f"tensordesc<bf16[{height}, {head_dim}],{layout!r}>"
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    options = {"num_warps": hopper_prefill.CONSUMER_WARPS, "maxnreg": hopper_prefill.ENTRY_REGISTERS}
    source = GluonASTSource(kernel, signature, constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("head_dim", hopper_prefill.HEAD_DIMS)
def test_it_compiles_for_the_matrix_unit_and_the_copy_engine_without_spills(
    head_dim: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    built = compiled(head_dim)
    ptx = built.asm["ptx"]
    assert built.metadata.shared <= SM90.shared_bytes
    assert "wgmma.mma_async" in ptx
    assert "cp.async.bulk.tensor" in ptx
    report = _assemble(SM90, ptx)
    assert "0 bytes spill stores, 0 bytes spill loads" in report
    assert "serialized" not in report, "the matrix unit would wait where it should run ahead"
