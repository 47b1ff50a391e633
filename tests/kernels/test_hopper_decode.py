"""The decode kernel for Hopper compiles without that GPU, and gets the instructions that it is written for."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.kernels import hopper_decode
from minivllm.kernels.gluon_guard import HAS_GLUON, gl
from minivllm.kernels.triton_guard import next_power_of_2
from tests.kernels.builds import TWO_PROGRAMS
from tests.kernels.compiling import SM90, _assemble


def compiled(kv_heads: int, group: int, head_dim: int, joined_apart: bool, early: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel, heads = hopper_decode.hopper_decode_kernel, hopper_decode.HEADS
    constants = {
        "heads": heads,
        "num_kv_heads": kv_heads,
        "group": group,
        "heads_padded": next_power_of_2(heads * group),
        "head_dim": head_dim,
        "stages": hopper_decode.stages_for(head_dim),
        "panels": head_dim // hopper_decode.PANEL,
        "panel_size": hopper_decode.PANEL,
        "tile": hopper_decode.TILE,
        "rows": hopper_decode.ROWS,
        "block_size": 16,
        "is_joined_apart": joined_apart,
        "registers": hopper_decode.PRODUCER_REGISTERS,
        "early": early,
    }
    types = dict.fromkeys(("score_scale", "value_scale"), "fp32")
    types |= {f"{name}_ptr": "*bf16" for name in ("out", "query")}
    types |= {f"{name}_ptr": "*fp32" for name in ("partial_out", "partial_lse")}
    types |= {f"{name}_ptr": "*i32" for name in ("arrived", "ranges", "of_request", "block_table", "seq_lens")}
    box = [heads, hopper_decode.TILE, hopper_decode.PANEL]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    types |= dict.fromkeys(("key_desc", "value_desc"), f"tensordesc<bf16{box},{layout!r}>")
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    options = {"num_warps": heads, "maxnreg": hopper_decode.REGISTERS}
    source = GluonASTSource(kernel, signature, constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.skipif(not HAS_GLUON, reason="this Triton has no Gluon")
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim", "joined_apart", "early"),
    [
        pytest.param(8, 2, 128, False, 2, id="many requests"),
        pytest.param(8, 4, 64, True, 0, id="few requests, head size 64"),
        pytest.param(4, 7, 128, False, 0, id="4 KV heads", marks=pytest.mark.slow),
        pytest.param(16, 1, 64, False, 2, id="16 KV heads", marks=pytest.mark.slow),
    ],
)
def test_it_compiles_for_the_copy_engine_with_room_for_a_second_program_and_no_spills(
    kv_heads: int,
    group: int,
    head_dim: int,
    joined_apart: bool,
    early: int,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    built = compiled(kv_heads, group, head_dim, joined_apart, early)
    ptx = built.asm["ptx"]
    assert built.metadata.shared <= TWO_PROGRAMS
    assert "cp.async.bulk.tensor.3d" in ptx
    # Keys and values go from shared memory to the matrix unit's registers as they lie there.
    assert ptx.count("ldmatrix") == 3 * head_dim // 16, "scores of the first tile, scores of the next, values"
    assert ("griddepcontrol.wait" in ptx) == (early > 0)
    assert "0 bytes spill stores, 0 bytes spill loads" in _assemble(SM90, ptx)


def test_both_programs_of_a_multiprocessor_have_registers() -> None:
    threads = hopper_decode.PROGRAMS_PER_PROCESSOR * 32 * (hopper_decode.HEADS + 4)
    assert threads * hopper_decode.REGISTERS <= 65536
