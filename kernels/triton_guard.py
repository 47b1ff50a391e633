"""Owns whether Triton is here. Kernels take `jit`, `tl` and `cdiv` from this module instead of importing Triton.

Triton has wheels for Linux only, and a CPU has no use for it, so its absence must break nothing but a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

__all__ = ["HAS_TRITON", "KernelWithoutTriton", "TritonMissingError", "cdiv", "jit", "tl"]


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


try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
    jit: Callable[..., Any] = triton.jit
except ImportError:
    HAS_TRITON = False
    tl = SimpleNamespace(constexpr=int)
    jit = KernelWithoutTriton


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient, rounded up: how many tiles cover a row."""
    return -(-numerator // denominator)
