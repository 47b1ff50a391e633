"""The invariants of the engine, each checked on the event log."""

from minivllm.analysis.invariants import batch, blocks, life, order, plan, text
from minivllm.analysis.invariants.registry import (
    Checker,
    Invariant,
    Verdict,
    all_invariants,
    check_log,
)

__all__ = [
    "Checker",
    "Invariant",
    "Verdict",
    "all_invariants",
    "batch",
    "blocks",
    "check_log",
    "life",
    "order",
    "plan",
    "text",
]
