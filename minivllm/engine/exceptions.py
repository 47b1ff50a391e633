"""Owns what a caller is told when the engine itself is gone. Upstream: vllm/v1/engine/exceptions.py."""

from __future__ import annotations


class EngineDeadError(RuntimeError):
    """The engine core has ended and will answer nobody again; the message says how it ended. Make a new engine."""
