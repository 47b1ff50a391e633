"""The products that read their weights ahead: right on a CPU that plays the GPU, and compiled for Hopper as meant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minivllm.kernels import hopper_linear
from minivllm.kernels.gluon_guard import HAS_GLUON, gl
from minivllm.kernels.hopper_linear import LEAST_PARTS, SHARED_BYTES, Tiling, tiling_for
from minivllm.kernels.launch import INTERPRETER
from minivllm.layers import kernel_ops
from tests.kernels.compiling import SM90, _assemble
from tests.kernels.grids.hopper_linear_grid import KINDS, TILINGS, compare
from tests.kernels.pretend_gluon import pretend

pytestmark = pytest.mark.skipif(not HAS_GLUON, reason="this Triton has no Gluon")
H200 = 132
# Of layers of Qwen3-0.6B, Llama-3.2-1B, Qwen2.5-1.5B and Llama-3.1-8B: outputs, size, whether it is gated.
QKV, OUT, GATE_UP, DOWN = (4096, 1024, False), (1024, 2048, False), (3072, 1024, True), (1024, 3072, False)
QKV_1B, OUT_1B, GATE_UP_1B, DOWN_1B = (3072, 2048, False), (2048, 2048, False), (8192, 2048, True), (2048, 8192, False)
OUT_2B, GATE_UP_2B, DOWN_2B = (1536, 1536, False), (8960, 1536, True), (1536, 8960, False)
QKV_8B, OUT_8B = (6144, 4096, False), (4096, 4096, False)
GATE_UP_8B, DOWN_8B = (14336, 4096, True), (4096, 14336, False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tiling", TILINGS)
def test_it_equals_its_reference(kind: str, tiling: Tiling, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch.setattr, processors=H200)
    torch.manual_seed(0)
    for rows, shape, has_bias in ((33, (40, 104), True), (130, (136, 320), False)):
        compare(torch.device("cpu"), torch.bfloat16, kind, rows, shape, tiling, has_bias)


@pytest.mark.parametrize(
    ("num_rows", "product", "tiling"),
    [  # what was fastest, or within 5 % of it
        (32, QKV, Tiling(64, 32, 128, 4, 8)),
        (64, QKV, Tiling(64, 32, 128, 4, 8)),
        (128, QKV, Tiling(64, 64, 128, 4, 6)),
        (192, QKV, Tiling(128, 64, 64, 8, 8)),
        (256, QKV, Tiling(128, 64, 64, 8, 8)),
        (64, OUT, Tiling(64, 64, 128, 4, 4, splits=4)),
        (128, OUT, Tiling(64, 32, 128, 4, 8)),
        (256, OUT, Tiling(64, 32, 128, 4, 8)),
        (64, GATE_UP, Tiling(64, 32, 128, 4, 6)),
        (128, GATE_UP, Tiling(64, 64, 64, 4, 8)),
        (192, GATE_UP, Tiling(64, 32, 64, 4, 4)),
        (256, GATE_UP, Tiling(64, 32, 64, 4, 4)),
        (64, DOWN, Tiling(64, 32, 128, 4, 6, splits=4)),
        (128, DOWN, Tiling(64, 32, 128, 4, 8)),
        (192, DOWN, Tiling(64, 32, 128, 4, 8)),
        (256, DOWN, Tiling(64, 32, 128, 4, 8)),
        (64, QKV_1B, Tiling(64, 32, 128, 4, 8)),
        (128, QKV_1B, Tiling(64, 64, 128, 4, 6)),
        (64, OUT_1B, Tiling(64, 32, 128, 4, 8)),
        (128, OUT_1B, Tiling(64, 32, 128, 4, 8)),
        (64, GATE_UP_1B, Tiling(64, 64, 64, 4, 8)),
        (128, GATE_UP_1B, Tiling(128, 64, 64, 8, 6)),
        (64, DOWN_1B, Tiling(64, 64, 128, 4, 6, splits=4)),
        (128, DOWN_1B, Tiling(128, 64, 64, 8, 8, splits=4)),
        (64, OUT_2B, Tiling(64, 32, 128, 4, 6, splits=2)),
        (128, OUT_2B, Tiling(64, 32, 128, 4, 8)),
        (64, GATE_UP_2B, Tiling(64, 64, 64, 4, 4)),
        (128, GATE_UP_2B, Tiling(128, 64, 64, 8, 3)),
        (64, DOWN_2B, Tiling(64, 64, 128, 4, 6, splits=4)),
        (128, DOWN_2B, Tiling(128, 64, 64, 8, 8, splits=4)),
        (16, QKV_8B, Tiling(64, 64, 128, 4, 6)),
        (128, QKV_8B, Tiling(128, 64, 64, 8, 8)),
        (64, OUT_8B, Tiling(64, 32, 128, 4, 8)),
        (128, OUT_8B, Tiling(128, 64, 64, 8, 8, splits=2)),
        (64, GATE_UP_8B, Tiling(64, 64, 64, 4, 4)),
        (128, GATE_UP_8B, Tiling(128, 64, 64, 8, 3)),
        (16, DOWN_8B, Tiling(64, 32, 128, 4, 8)),
        (128, DOWN_8B, Tiling(128, 64, 64, 8, 8, splits=2)),
    ],
)
def test_the_rule_finds_the_fastest_tilings(num_rows: int, product: Any, tiling: Tiling) -> None:
    assert tiling_for(num_rows, *product, H200) == tiling


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("processors", [8, 78, 114, H200])
def test_every_tiling_can_run(processors: int, is_gated: bool) -> None:
    """In shared memory and in the workspace, and with a buffer beside the one that is multiplied."""
    for num_rows in (1, 17, 64, 65, 128, 129, 192, 193, 256):
        for outputs in (8, 64, 576, 960, 2048, 4864, 14336):
            for size in (8, 576, 896, 1024, 1536, 3072, 8960):
                tiling = tiling_for(num_rows, outputs, size, is_gated, processors)
                wide = tiling.weight_rows * (2 if is_gated else 1)
                assert tiling.stages * (tiling.rows + wide) * tiling.tile * 2 <= SHARED_BYTES
                assert tiling.stages >= min(2, -(-size // tiling.tile // tiling.splits))
                tiles = -(-outputs // tiling.weight_rows) * -(-num_rows // tiling.rows)
                if tiling.splits > 1:
                    assert tiles <= processors
                    assert tiles * tiling.splits * tiling.rows * wide <= processors * 2 * 64 * 64


@pytest.mark.parametrize(
    ("weight", "most"),
    [  # a small one, then gates and ups of 1B, 1.5B and 8B, and down of 8B
        ((6144, 1024), 256),
        ((16384, 2048), 128),
        ((17920, 1536), 64),
        ((28672, 4096), 64),
        ((4096, 14336), 128),
    ],
)
def test_large_weights_are_joined_where_that_is_faster(
    weight: tuple[int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_ops, "gpu_of", lambda device: INTERPRETER._replace(processors=H200))
    assert kernel_ops.KernelOps().most_joined(torch.empty(weight, dtype=torch.bfloat16, device="meta")) == most


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 2), (torch.float16, 4)])
def test_few_rows_are_fused_until_joining_is_faster(dtype: torch.dtype, most: int) -> None:
    assert kernel_ops.KernelOps().most_fused(torch.empty((64, 64), dtype=dtype, device="meta")) == most


def compiled(tiling: Tiling, is_gated: bool, has_residual: bool, early: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel = hopper_linear.hopper_linear_kernel
    constants = {
        "rows": tiling.rows,
        "weight_rows": tiling.weight_rows,
        "tile": tiling.tile,
        "stages": tiling.stages,
        "splits": tiling.splits,
        "tickets_of_tile": hopper_linear.MOST_SPLITS,
        "parts_padded": LEAST_PARTS,
        "has_bias": False,
        "is_gated": is_gated,
        "has_residual": has_residual,
        "early": early,
    }
    types = {f"{name}_ptr": "*bf16" for name in ("out", "bias", "gain", "next_rows")}
    types |= {f"{name}_ptr": "*fp32" for name in ("partial", "squares", "next_squares")}
    types |= {"ticket_ptr": "*i32", "eps": "fp32"}
    for name, height in {"x_desc": tiling.rows, "weight_desc": tiling.weight_rows}.items():
        layout = gl.NVMMASharedLayout.get_default_for([height, tiling.tile], gl.bfloat16)
        types[name] = f"tensordesc<bf16[{height}, {tiling.tile}],{layout!r}>"
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    source = GluonASTSource(kernel, signature, constants)
    options = {"num_warps": tiling.warps, "launch_pdl": bool(early)}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(
    ("num_rows", "product", "has_residual"),
    [
        (64, QKV, False),
        (256, QKV, False),
        (64, OUT, True),
        (256, GATE_UP, False),
        (128, DOWN, True),
        (128, GATE_UP_8B, False),
        (128, DOWN_8B, True),
    ],
)
def test_its_weights_come_before_it_waits(
    num_rows: int, product: Any, has_residual: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    built = compiled(tiling_for(num_rows, *product, H200), product[2], has_residual, early=2)
    ptx = built.asm["ptx"]
    assert built.metadata.shared <= SM90.shared_bytes
    assert "wgmma.mma_async" in ptx
    report = _assemble(SM90, ptx)
    assert "0 bytes spill stores, 0 bytes spill loads" in report
    assert "serialized" not in report, "the matrix unit would wait where it should run ahead"
    before, _, after = ptx.partition("griddepcontrol.wait")
    assert "cp.async.bulk.tensor" in before
    assert "cp.async.bulk.tensor" in after
    assert "ld.global" not in before
    assert "st.global" not in before
    assert "ret;" not in before, "a program that does not wait would let the next kernel run too early"
    assert "griddepcontrol.launch_dependents" in after, "the next kernel's weights come while this one works"
