"""Owns where a symbol of ours stands in the API reference of the documentation: its page, and the heading there."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

from minivllm.sourcemap.locate import file_of

# Each of these has a page of its own, docs/reference/NAME.md; modules above them are on the page of LLM.
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
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES and is_public else None


def _child(node: _Documented, name: str) -> _Documented | None:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name == name:
            return child
    return None


@lru_cache(maxsize=512)
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
