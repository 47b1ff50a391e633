"""Builds small trees that look like vLLM's: from files written out, or from what is known of vLLM 0.27.1's symbols."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from minivllm.sourcemap.signatures import pinned_signatures, pinned_symbols


def write_tree(root: Path, files: dict[str, str], version: str = "9.9.9") -> Path:
    """Write "vllm/..." files and a version; returns the root."""
    for path, text in {"vllm/__init__.py": "", "vllm/_version.py": f'__version__ = "{version}"\n', **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def pinned_files() -> dict[str, str]:
    """A tree in which every symbol of the map is where vLLM 0.27.1 has it, with its parameters and members."""
    scopes: dict[str, dict[str, str]] = defaultdict(dict)
    for symbol in pinned_symbols():
        path, _, qualname = symbol.partition("::")
        if path.endswith("/"):
            scopes[f"{path}__init__.py"] = {}
        elif not qualname:
            scopes[path] = {}
    signatures = pinned_signatures()
    for symbol, (kind, names) in signatures.items():
        path, _, qualname = symbol.partition("::")
        if "." not in qualname:
            scopes[path][qualname] = _text(path, qualname, kind, names)
    return {path: "\n\n".join(texts.values()) + "\n" for path, texts in scopes.items()}


def _text(path: str, qualname: str, kind: str, names: frozenset[str], indent: str = "") -> str:
    name = qualname.rpartition(".")[2]
    if kind == "function":
        parameters = ", ".join(sorted(names))
        return f"{indent}def {name}({parameters}):\n{indent}    return None"
    if kind == "value":
        return f"{indent}{name} = None"
    # A symbol of the map may be inherited: then the class's own names do not have it.
    prefix = f"{path}::{qualname}."
    inherited = {symbol[len(prefix) :] for symbol in pinned_signatures() if symbol.startswith(prefix)}
    members = []
    for member in sorted(names | inherited):
        below = pinned_signatures().get(f"{path}::{qualname}.{member}", ("function", frozenset()))
        members.append(_text(path, f"{qualname}.{member}", *below, indent=f"{indent}    "))
    return "\n".join([f"{indent}class {name}:", *(members or [f"{indent}    pass"])])
