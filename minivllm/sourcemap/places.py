"""Owns the table from a part of the package to its layer, domain, process, plane, and who owns its state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module stands.

    Attributes:
        layer: The part of the engine.
        domain: What it is about: "request", "scheduling", "memory", "model", or "tool" for what only reads.
        process: Which process runs it: "frontend", "engine_core", "worker", or "reader" (no engine at all).
        plane: "control" (decides who and how much) or "data" (organises tensors).
        owner: Who owns the state that is changed here.
    """

    layer: str
    domain: str
    process: str
    plane: str
    owner: str


_FRONTEND = Place("frontend", "request", "frontend", "control", "frontend")
_CORE = Place("engine core", "scheduling", "engine_core", "control", "engine core")
_SCHEDULER = Place("scheduler", "scheduling", "engine_core", "control", "Scheduler")
_KV_MANAGER = Place("KV cache", "memory", "engine_core", "control", "KVCacheManager")
_BLOCK_POOL = Place("KV cache", "memory", "engine_core", "control", "BlockPool")
_RUNNER = Place("runner", "model", "worker", "data", "worker")
_MESSAGE = Place("messages", "scheduling", "engine_core", "control", "nobody (a message)")
_TOOL = Place("tools", "tool", "reader", "control", "the log")

# The longest entry that a module starts with holds.
PLACES = {
    "": Place("configuration", "request", "frontend", "control", "configuration"),
    "entrypoints": _FRONTEND,
    "entrypoints.cli": Place("command line", "tool", "reader", "control", "the log"),
    "engine": _FRONTEND,
    "engine.core": _CORE,
    "engine.core_proc": _CORE,
    "engine.core_main": _CORE,
    "engine.step_stats": _CORE,
    "engine.wire": _MESSAGE,
    "core": _SCHEDULER,
    "core.messages": _MESSAGE,
    "core.scheduler_output": _MESSAGE,
    "core.request": Place("scheduler", "request", "engine_core", "control", "Scheduler"),
    "core.kv_cache_manager": _KV_MANAGER,
    "core.block_hash": _KV_MANAGER,
    "core.block_pool": _BLOCK_POOL,
    "core.free_block_queue": _BLOCK_POOL,
    "executor": Place("executor", "scheduling", "engine_core", "control", "executor"),
    "worker": _RUNNER,
    "worker.block_table": Place("runner", "memory", "worker", "data", "worker"),
    "worker.kv_cache_sizing": Place("runner", "memory", "worker", "data", "worker"),
    "models": Place("model", "model", "worker", "data", "worker"),
    "layers": Place("model", "model", "worker", "data", "worker"),
    "attention": Place("attention", "model", "worker", "data", "worker"),
    "kernels": Place("kernels", "model", "worker", "data", "worker"),
    "sample": Place("sampling", "model", "worker", "data", "worker"),
    "sourcemap": _TOOL,
    "trace": Place("trace", "tool", "engine_core", "control", "the log"),
    "maps": _TOOL,
    "analysis": _TOOL,
    "scenarios": Place("scenarios", "tool", "frontend", "control", "scenarios"),
    "exercises": _TOOL,
    "learning": _TOOL,
    "walkthroughs": _TOOL,
    "bench": Place("benchmarks", "tool", "frontend", "control", "benchmarks"),
    "assets": _TOOL,
}


def place_of(module: str) -> Place:
    """The place of "minivllm.core.scheduler", or of a folder "minivllm.core"."""
    below = module.removeprefix("minivllm").lstrip(".")
    while below not in PLACES:
        below = below.rpartition(".")[0]
    return PLACES[below]
