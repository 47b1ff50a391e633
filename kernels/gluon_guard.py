"""Owns whether Gluon is here: Triton's language for kernels that place every warp, buffer and barrier themselves.

It came with Triton 3.4 and is called experimental there, so whoever uses it must have another way, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from minivllm.kernels.triton_guard import INTERPRETED, KernelWithoutTriton

__all__ = [
    "HAS_GLUON",
    "barrier_of_threads",
    "fetch_box",
    "gl",
    "gluon_jit",
    "gluon_jit_for_any",
    "heads_in_boxes",
    "hopper",
    "reinterpret",
    "tensor_in_boxes",
]

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    gluon_jit: Callable[..., Any] = gluon.jit
    # From a matrix to shared memory by the copy engine: (matrix, place, barrier, target). It was renamed on the way.
    fetch_box = getattr(hopper.tma, "async_load", None) or hopper.tma.async_copy_global_to_shared
    # All threads of a program wait for each other. Also renamed.
    barrier_of_threads = getattr(gl, "thread_barrier", None) or gl.barrier
    # A buffer in shared memory, taken for one of another shape: (buffer, dtype, shape, layout). Also renamed.
    _Buffer = gl.shared_memory_descriptor
    reinterpret = getattr(_Buffer, "reinterpret", None) or _Buffer._reinterpret
    # Triton's interpreter does not know it.
    HAS_GLUON = not INTERPRETED and hasattr(gl, "warp_specialize")
except ImportError:
    HAS_GLUON = False
    gl = SimpleNamespace(constexpr=int)
    hopper = SimpleNamespace()
    fetch_box = barrier_of_threads = reinterpret = None
    gluon_jit = KernelWithoutTriton


def gluon_jit_for_any(*names: str) -> Callable[..., Any]:
    """`gluon_jit` for a kernel that is compiled once for all values of the named arguments."""
    return partial(gluon_jit, do_not_specialize=names) if HAS_GLUON else gluon_jit


def tensor_in_boxes(tensor: torch.Tensor, rows: int, columns: int) -> Any:
    """What the copy engine must know of a matrix to fetch boxes of rows x columns from it; beyond its end are zeros.

    Args:
        tensor: (any number of rows, any number of columns), bfloat16 or float16; numbers of a row contiguous.
        rows: Of a box.
        columns: Of a box.
    """
    layout = _layout_of_boxes((rows, columns), tensor.dtype)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns], layout)


def heads_in_boxes(tensor: torch.Tensor, heads: int, rows: int, columns: int) -> Any:
    """The same for boxes of several heads: (heads, rows, columns), one head behind the other.

    Args:
        tensor: (any number of rows, any multiple of heads, any multiple of columns), bfloat16 or float16, contiguous.
        heads, rows: Of a box.
        columns: Of a box, from each head.
    """
    (num_rows, num_heads, size), (row_stride, head_stride, _) = tensor.shape, tensor.stride()
    layout = _layout_of_boxes((heads, rows, columns), tensor.dtype)
    strides = [head_stride, row_stride, 1]
    return TensorDescriptor(tensor, [num_heads, num_rows, size], strides, [heads, rows, columns], layout)


@cache
def _layout_of_boxes(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """How a box lies in shared memory. To find out takes far longer than the rest of a launch: it is kept."""
    return gl.NVMMASharedLayout.get_default_for(list(shape), getattr(gl, str(dtype).split(".")[-1]))
