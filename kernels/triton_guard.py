"""Owns whether Triton is here. Kernels take `jit`, `tl` and `cdiv` from this module instead of importing Triton.

Triton has wheels for Linux only, and a CPU has no use for it, so its absence must break nothing but a launch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn

__all__ = [
    "HAS_TRITON",
    "INTERPRETED",
    "KernelWithoutTriton",
    "TensorDescriptor",
    "TritonMissingError",
    "cdiv",
    "jit",
    "jit_for_any",
    "next_power_of_2",
    "tl",
]


class TritonMissingError(ImportError):
    """A kernel was launched on a machine without Triton."""


class KernelWithoutTriton:
    """Stands in for a compiled kernel: can be imported and named, but not launched.

    Args:
        function: The kernel's source function.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __getitem__(self, grid: object) -> NoReturn:
        raise TritonMissingError(
            f"the kernel {self.__name__!r} needs Triton, which is not installed here. On Linux: pip install triton. "
            "Elsewhere, use the reference of the same name: it is plain PyTorch and runs on any device."
        )


def _let_the_interpreter_count() -> None:
    """Let a loaded number be a bound of `range` in Triton's interpreter.

    It keeps such a number as an array of one element, and gives that to int(), which NumPy allows no more since 2.4.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched


try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    HAS_TRITON = True
    INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
    jit: Callable[..., Any] = triton.jit
    if INTERPRETED:
        _let_the_interpreter_count()
except ImportError:
    HAS_TRITON = INTERPRETED = False
    tl = SimpleNamespace(constexpr=int)
    TensorDescriptor = KernelWithoutTriton
    jit = KernelWithoutTriton


def jit_for_any(*names: str) -> Callable[..., Any]:
    """`jit` for a kernel whose named arguments change from step to step: it is compiled once for all their values.

    Triton compiles a kernel anew for an integer of 1, and for one that 16 divides; for a pointer likewise. A step that
    waits for a compiler is a thousand times longer than one that does not.
    """
    return partial(jit, do_not_specialize=names) if HAS_TRITON else jit


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient, rounded up: how many tiles cover a row."""
    return -(-numerator // denominator)


def next_power_of_2(size: int) -> int:
    """The side of a tile that holds `size`: Triton's tiles are powers of two."""
    return 1 << max(0, size - 1).bit_length()
