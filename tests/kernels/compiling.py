"""Compiles a kernel for a GPU that is not here, and reads what the compiler says about it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Target:
    """A GPU: Triton's backend and name for it, threads of a warp, and the shared memory of one thread block.

    With `early`, for launches before the kernel in front has ended.
    """

    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int
    early: bool = False

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


SM80 = Target("cuda", 80, 32, 163 * 1024)
SM90 = Target("cuda", 90, 32, 227 * 1024)
SM90_EARLY = replace(SM90, early=True)
GFX942 = Target("hip", "gfx942", 64, 64 * 1024)
TARGETS = [SM80, SM90, GFX942]


@dataclass(frozen=True)
class Built:
    """What came out: shared memory in bytes, spilled bytes or registers, and the text of the assembly."""

    shared: int
    spilled: int
    registers: int
    assembly: str


def build(
    target: Target, kernel: Any, types: dict[str, str], constants: dict[str, Any], num_warps: int, num_stages: int = 3
) -> Built:
    """Compile a kernel as a launch would.

    Args:
        target: For which GPU.
        kernel: The decorated function.
        types: Triton's name of the type of each argument ("*bf16", "i32", "fp32"); what is not named is "i32". Pointers
            and integers are taken to be divisible by 16, as they are in a real launch; "i32:odd" says otherwise.
        constants: The `tl.constexpr` arguments.
        num_warps: Warps of a program.
        num_stages: Buffers of a pipelined loop.
    """
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    if ("amd" if target.backend == "hip" else "nvidia") not in backends:
        pytest.skip(f"this Triton wheel was built without the {target.backend} backend")
    if "early" in kernel.arg_names:
        constants = {**constants, "early": target.early}
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        kind, _, odd = types.get(name, "i32").partition(":")
        signature[name] = "constexpr" if name in constants else kind
        if name not in constants and not odd and not kind.startswith("fp"):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    if target.early:
        options["launch_pdl"] = True
    compiled = triton.compile(source, target=gpu, options=options)
    if target.backend == "hip":
        assembly = compiled.asm["amdgcn"]
        spills = re.findall(r"\.(?:vgpr|sgpr)_spill_count:\s*(\d+)", assembly)
        registers = re.findall(r"\.vgpr_count:\s*(\d+)", assembly)
    else:
        assembly = compiled.asm["ptx"]
        report = _assemble(target, assembly)
        spills = re.findall(r"(\d+) bytes spill", report)
        registers = re.findall(r"Used (\d+) registers", report)
    assert len(spills) > 0 < len(registers), "the assembler says nothing about registers"
    return Built(compiled.metadata.shared, sum(map(int, spills)), max(map(int, registers)), assembly)


def _assemble(target: Target, ptx: str) -> str:
    """What NVIDIA's assembler says about registers that did not fit."""
    from triton.backends.nvidia.compiler import get_ptxas  # which of its assemblers Triton takes for this GPU

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        machine = f"sm_{target.arch}a" if target.arch == 90 else f"sm_{target.arch}"
        command = [get_ptxas(target.arch).path, "-v", f"--gpu-name={machine}", str(source), "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr
