"""How the kernel gets into the engine: decode tokens of the CPU's backend go through its launch."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from minivllm.exercises.decode_seam import decode_with


def seam(part: ModuleType) -> dict[str, Any]:
    """What takes the place of which symbol."""
    return decode_with(part.paged_decode)
