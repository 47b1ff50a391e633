"""Owns the small operations of a layer on a CPU in one call each: compiles native.c once, and calls it.

Nothing depends on it. Where there is no C compiler, or MINIVLLM_NATIVE=0 says so, PyTorch's own operations compute the
same numbers in more calls; `availability` tells which it is, and why.

Upstream: vllm/_custom_ops.py and csrc/cpu/.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

# The whole of native.c takes a second or two.
_COMPILE_TIMEOUT_S = 60
_SOURCE = Path(__file__).with_name("native.c")
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
# Sums in any order make loops over numbers fast; NaN and infinity stay what they are.
_FLAGS = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math"]
_FLAGS += ["-fassociative-math", "-fno-signed-zeros"]
_P, _I, _F, _N = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_SIGNATURES: dict[str, list[Any]] = {
    "rms_norm": [_P, _P, _P, _P, _I, _I, _I, _I, _F, _N],
    "rotate": [_P, _P, _P, _I, _I, _I, _I, _N],
    "silu_and_mul": [_P, _P, _I, _I, _N],
    "write_cache": [_P, _P, _P, _P, _P, _I, _I, _I, _I],
    "paged_decode": [_P, _P, _P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _I, _I, _I, _F, _N],
}


class NativeOps:
    """The functions of native.c for one precision. Callers see to the shapes; every tensor is on the CPU.

    Args:
        library: The compiled file.
        dtype: The precision it was compiled for.
    """

    def __init__(self, library: Path, dtype: str) -> None:
        functions = ctypes.CDLL(str(library))
        for name, arguments in _SIGNATURES.items():
            function = getattr(functions, f"{name}_{dtype}")
            function.argtypes, function.restype = arguments, None
            setattr(self, f"_{name}", function)

    _rms_norm: Any
    _rotate: Any
    _silu_and_mul: Any
    _write_cache: Any
    _paged_decode: Any

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Normalise the last dimension of x, (rows, size) or heads (tokens, heads, size) of a larger product.

        A residual, (rows, size), first takes x up, in place.
        """
        out = torch.empty(x.shape, dtype=x.dtype)
        size = x.shape[-1]
        group = x.shape[1] if x.dim() == 3 else 1
        added = None if residual is None else residual.data_ptr()
        rows, threads = out.numel() // size, torch.get_num_threads()
        inputs = (out.data_ptr(), x.data_ptr(), added, weight.data_ptr())
        self._rms_norm(*inputs, rows, size, x.stride(0), group, eps, threads)
        return out

    def rotate_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate the heads of x, (tokens, heads, head_dim), in place."""
        tokens, heads, head_dim = x.shape
        inputs = (x.data_ptr(), cos.data_ptr(), sin.data_ptr())
        self._rotate(*inputs, tokens, heads, head_dim // 2, x.stride(0), torch.get_num_threads())
        return x

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, (rows, size), of contiguous (rows, 2 * size)."""
        rows, both = gate_up.shape
        out = torch.empty((rows, both // 2), dtype=gate_up.dtype)
        self._silu_and_mul(out.data_ptr(), gate_up.data_ptr(), rows, both // 2, torch.get_num_threads())
        return out

    def write_cache(
        self, keys: torch.Tensor, values: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Put each token's key and value, (tokens, kv_heads, head_dim), into its slot; keys, values: all slots."""
        tokens, kv_heads, head_dim = key.shape
        places = (keys.data_ptr(), values.data_ptr(), key.data_ptr(), value.data_ptr(), slots.data_ptr())
        self._write_cache(*places, tokens, kv_heads * head_dim, key.stride(0), value.stride(0))

    def paged_decode(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        block_table: torch.Tensor,
        first: torch.Tensor,
        seq_lens: torch.Tensor,
        block_size: int,
        longest: int,
    ) -> torch.Tensor:
        """Attention of one query token per request, (requests, heads, head_dim), over its pages.

        Args:
            query: (requests, heads, head_dim).
            keys, values: (slots, kv_heads, head_dim).
            block_table: (requests, blocks), int32.
            first: (requests,), int32: the first token that is seen.
            seq_lens: (requests,), int32.
            block_size: Tokens per block.
            longest: Most tokens that a request sees; only a hint.
        """
        requests, heads, head_dim = query.shape
        kv_heads = keys.shape[1]
        out = torch.empty((requests, heads, head_dim), dtype=query.dtype)
        tensors = (out, query, keys, values, block_table, first, seq_lens)
        sizes = (requests, kv_heads, heads // kv_heads, head_dim, block_table.shape[1], block_size, query.stride(0))
        places = (tensor.data_ptr() for tensor in tensors)
        self._paged_decode(*places, *sizes, longest, head_dim**-0.5, torch.get_num_threads())
        return out


def native_ops(like: torch.Tensor) -> NativeOps | None:
    """The functions for a tensor's device and precision, if there are any."""
    return _load(like.dtype)[0] if like.is_cpu else None


def availability() -> tuple[bool, str]:
    """Whether the compiled operations are used, and the reason."""
    ops, reason = _load(torch.float32)
    return ops is not None, reason


@cache
def _load(dtype: torch.dtype) -> tuple[NativeOps | None, str]:
    if dtype not in _DTYPES:
        return None, f"there are none for {dtype}"
    if os.environ.get("MINIVLLM_NATIVE") == "0":
        return None, "MINIVLLM_NATIVE=0 leaves them off"
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if sys.platform != "linux" or compiler is None:
        return None, "they need a C compiler on Linux: install gcc"
    try:
        return _kept(compiler, _DTYPES[dtype]) or _compiled(compiler, _DTYPES[dtype]), f"compiled by {compiler}"
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        return None, f"{compiler} cannot compile them: {_last_line(error)}"


def _kept(compiler: str, dtype: str) -> NativeOps | None:
    """What this compiler has made for this processor before; None if there is nothing, or it is damaged."""
    try:
        return NativeOps(_place(compiler, dtype), dtype)
    except (OSError, AttributeError):
        return None


def _compiled(compiler: str, dtype: str) -> NativeOps:
    """Compile, load, and keep the file for the next process if the user's folder can be written and run from."""
    kept = _place(compiler, dtype)
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _compiled_in(kept.parent, compiler, dtype, kept)
    except OSError:
        return _compiled_in(Path(tempfile.gettempdir()), compiler, dtype, None)


def _compiled_in(folder: Path, compiler: str, dtype: str, kept: Path | None) -> NativeOps:
    # What is loaded stays loaded when its file is gone, so a process leaves no folder behind.
    with tempfile.TemporaryDirectory(prefix="minivllm-native-", dir=folder) as scratch:
        made = Path(scratch) / "native.so"
        defines = ["-DBFLOAT16"] if dtype == "bfloat16" else []
        command = [compiler, *_FLAGS, *defines, str(_SOURCE), "-o", str(made), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)
        ops = NativeOps(made, dtype)
        if kept is not None:
            made.replace(kept)  # whole or not at all: other processes may be looking
    return ops


def _place(compiler: str, dtype: str) -> Path:
    """Where the library is kept: its name changes with all that it depends on."""
    from minivllm.models.model_zoo import data_home

    what = (_SOURCE.read_bytes(), dtype, compiler, _FLAGS, _processor(), sys.version)
    return data_home() / "native" / f"native-{dtype}-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.so"


def _last_line(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took more than {_COMPILE_TIMEOUT_S} s"
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or "").strip().splitlines()
        return lines[-1] if lines else f"it ended with exit code {error.returncode} and said nothing"
    return str(error)


def _processor() -> str:
    """What the instructions of this machine depend on: a folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
    except OSError:
        return platform.processor()
