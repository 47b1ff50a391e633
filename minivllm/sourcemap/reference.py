"""Owns where a symbol of ours stands in the API reference of the documentation: its page, and the heading there."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

from minivllm.sourcemap.locate import file_of

# Each of these has a page, docs/reference/NAME.md; modules above them are on the page of LLM.
PACKAGES = (
    "engine",
    "core",
    "executor",
    "worker",
    "attention",
    "models",
    "layers",
    "sample",
    "kernels",
    "trace",
    "scenarios",
    "maps",
    "analysis",
    "export",
    "sourcemap",
    "learning",
    "bench",
)
# Packages too large for one page: the modules that a further page, PACKAGE_WORD.md, takes from the first.
FURTHER_PAGES = {
    ("engine", "core"): ("core", "core_client", "core_launch", "core_main", "core_proc", "mailbox", "wire"),
    ("engine", "output"): (
        "detokenizer",
        "logprobs",
        "output_collector",
        "output_processor",
        "parallel_sampling",
        "step_stats",
    ),
    ("core", "blocks"): ("block_hash", "block_pool", "free_block_queue", "integrity", "kv_cache_manager"),
    ("worker", "start"): ("compile_ahead", "cpu_threads", "kv_cache_sizing", "memory_profile", "runner_choice"),
    ("worker", "batch"): (
        "batch_state",
        "block_table",
        "device_mirror",
        "device_requests",
        "input_batch",
        "prepared_batch",
        "request_columns",
        "request_slots",
        "sampling_rows",
        "staging",
    ),
    ("kernels", "attention"): (
        "hopper_decode",
        "hopper_prefill",
        "paged",
        "paged_decode",
        "paged_prefill",
        "prefix_attention",
    ),
    ("kernels", "pages"): (
        "append_blocks",
        "fp8",
        "pack_decodes",
        "pack_inputs",
        "reshape_and_cache",
        "rotary_and_cache",
    ),
    ("kernels", "sampling"): (
        "bracket",
        "gumbel",
        "keys",
        "logprobs",
        "penalties",
        "row_search",
        "sample",
        "scores",
        "threshold",
    ),
    ("trace", "recording"): (
        "device_clock",
        "device_times",
        "install",
        "probes",
        "projection",
        "recorder",
        "snapshot",
        "wrap",
    ),
    ("maps", "drawing"): ("render",),
    ("analysis", "diff"): (
        "diff",
        "diff_metric",
        "diff_numbers",
        "diff_said",
        "diff_tokens",
        "diff_words",
        "whatif",
        "whatif_knobs",
        "words_diff",
    ),
    ("analysis", "invariants"): ("invariants", "iteration", "moments"),
    ("models", "files"): (
        "gguf_file",
        "gguf_header",
        "gguf_tokenizer",
        "hub_cache",
        "loader",
        "model_zoo",
        "safetensors_file",
        "weights",
    ),
    ("learning", "facts"): ("facts",),
    ("bench", "generation"): ("generation", "generation_plan", "generation_script", "workloads"),
    ("bench", "kernels"): ("decode_step", "floor", "kernel_cases", "kernels", "machine", "shapes", "tuning"),
}
TOP = "llm"
# Modules on the page of LLM.
TOP_MODULES = (
    "minivllm.entrypoints.llm",
    "minivllm.sampling_params",
    "minivllm.outputs",
    "minivllm.logprobs",
    "minivllm.config",
    "minivllm.tokenizer",
    "minivllm.metrics",
)

_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def reference_link(symbol: str) -> str | None:
    """The link to "module:qualname" in the reference, below docs/; None where its module has no page.

    A name that has no heading (it is private, a field, or has no words of its own) is told by what it stands in.
    """
    module, _, qualname = symbol.partition(":")
    page = _page_of(module)
    if page is None:
        return None
    heading = module
    node: _Documented = _tree(file_of(symbol))
    for name in filter(None, qualname.split(".")):
        child = _child(node, name)
        if child is None or name.startswith("_") or ast.get_docstring(child) is None:
            break
        heading, node = f"{heading}.{name}", child
    return f"reference/{page}.md#{heading}"


def _page_of(module: str) -> str | None:
    if module in TOP_MODULES:
        return TOP
    parts = module.split(".")
    # Private modules and functions that a package keeps to itself are not told.
    is_public = not any(part.startswith("_") for part in parts)
    if len(parts) < 2 or parts[1] not in PACKAGES or not is_public:
        return None
    for (package, word), modules in FURTHER_PAGES.items():
        if package == parts[1] and parts[2:3] and parts[2] in modules:
            return f"{package}_{word}"
    return parts[1]


def modules_of(package: str) -> list[str]:
    """The public modules and packages right in a package, by name."""
    folder = file_of(f"minivllm.{package}").parent
    found = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    return sorted(name for name in found if not name.startswith("_"))


def _child(node: _Documented, name: str) -> _Documented | None:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name == name:
            return child
    return None


@lru_cache(maxsize=512)
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
