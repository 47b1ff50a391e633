"""Makes Triton's interpreter spend its time on kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minivllm.kernels.triton_guard import HAS_TRITON, tl


def hasten(checks_overflow: bool = True) -> None:
    """Let a kernel's helpers find the language as the kernel's launch has left it.

    The interpreter puts its own functions in the place of the language's when a kernel is launched, and once more at
    each call of a helper, though nothing has changed since: a third of its time with kernels as small as in tests.

    Args:
        checks_overflow: Whether each sum and product of integers is worked out once more, in 64 bits: a quarter of the
            time. Kernels' own grids keep that; whole engines on kernels need not repeat it.
    """
    if not HAS_TRITON:
        return
    from triton.runtime import interpreter

    interpreter.interpreter_builder.options = replace(
        interpreter.interpreter_builder.options, sanitize_overflow=checks_overflow
    )
    patch_lang = interpreter._patch_lang

    def patch_unless_patched(fn: Any) -> Any:
        seen = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        is_patched = seen and not any(tl.core.is_builtin(language.load) for language in seen)
        return interpreter._LangPatchScope() if is_patched else patch_lang(fn)

    interpreter._patch_lang = patch_unless_patched
