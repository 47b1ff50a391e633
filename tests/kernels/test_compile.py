"""Every kernel compiles for the GPUs it is written for, on a machine that has none, within their limits."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from minivllm.kernels import reshape_and_cache
from minivllm.kernels.triton_guard import HAS_TRITON

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")

# (backend, architecture, threads of a warp, shared memory of a thread block in bytes)
TARGETS = [("cuda", 80, 32, 163 * 1024), ("cuda", 90, 32, 227 * 1024), ("hip", "gfx942", 64, 64 * 1024)]

POINTERS = ("key_ptr", "value_ptr", "key_cache_ptr", "value_cache_ptr")


def compile_kernel(backend: str, arch: int | str, warp_size: int):
    """Compile `reshape_and_cache_kernel` for bf16, 8 heads x 128."""
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    if ("amd" if backend == "hip" else "nvidia") not in backends:
        pytest.skip(f"this Triton wheel was built without the {backend} backend")
    kernel = reshape_and_cache.reshape_and_cache_kernel
    constants = {"token_elements": 1024, "tile_elements": reshape_and_cache.TILE_ELEMENTS}
    signature = {name: "*bf16" if name in POINTERS else "i32" for name in kernel.arg_names if name not in constants}
    signature["slot_mapping_ptr"] = "*i64"
    signature.update(dict.fromkeys(constants, "constexpr"))
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
    target = GPUTarget(backend, arch, warp_size)
    return triton.compile(source, target=target, options={"num_warps": reshape_and_cache.NUM_WARPS})


@pytest.mark.parametrize(("backend", "arch", "warp_size", "shared_limit"), TARGETS)
def test_a_kernel_compiles_and_keeps_within_shared_memory(
    backend, arch, warp_size, shared_limit, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # nothing is multiplied here; 3.9 warns when it is not said
    compiled = compile_kernel(backend, arch, warp_size)
    # Each element is read once and written once: there is nothing to share.
    assert compiled.metadata.shared == 0 <= shared_limit
    spilled = spills_of(backend, arch, compiled, tmp_path)
    assert spilled == 0, f"{spilled} bytes or registers spilled"


def spills_of(backend: str, arch: int | str, compiled, tmp_path: Path) -> int:
    """What the assembler says about registers that did not fit."""
    if backend == "hip":
        counts = re.findall(r"\.(?:vgpr|sgpr)_spill_count:\s*(\d+)", compiled.asm["amdgcn"])
        assert counts, "the assembly names no spill count"
        return sum(map(int, counts))
    from triton.backends.nvidia.compiler import get_ptxas  # which of its assemblers Triton takes for this GPU

    source = tmp_path / "kernel.ptx"
    source.write_text(compiled.asm["ptx"])
    machine = f"sm_{arch}a" if arch == 90 else f"sm_{arch}"
    command = [get_ptxas(arch).path, "-v", f"--gpu-name={machine}", str(source), "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"(\d+) bytes spill", done.stderr)
    assert counts, done.stderr
    return sum(map(int, counts))
