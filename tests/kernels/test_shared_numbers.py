"""A number that programs change while others read it is read by one thread, which tells the others of its program.

Of a plain load every thread makes its own: warps of one program could see different numbers and part at the next
branch, and what they then compute together is nothing. No interpreter shows that: there programs run one by one.
"""

from __future__ import annotations

import ast
from pathlib import Path

import minivllm.kernels

KERNELS = sorted(Path(minivllm.kernels.__file__).parent.glob("*.py"))


def pointers_of(call: ast.Call) -> set[str]:
    """Names of the pointers in a call's address."""
    return {node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name) and node.id.endswith("_ptr")}


def calls(function: ast.FunctionDef, prefix: str) -> list[ast.Call]:
    """Calls of tl.<prefix>... in a function."""
    found = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return [c for c in found if isinstance(c.func, ast.Attribute) and ast.unparse(c.func).startswith(f"tl.{prefix}")]


def shared_and_loaded(source: str) -> tuple[set[str], set[str]]:
    """Pointers that a function of a source changes by atomic operations; those of them that it also loads plainly."""
    shared: set[str] = set()
    loaded: set[str] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            changed = {f"{function.name}: {name}" for c in calls(function, "atomic") for name in pointers_of(c)}
            read = {f"{function.name}: {name}" for c in calls(function, "load") for name in pointers_of(c)}
            shared |= changed
            loaded |= changed & read
    return shared, loaded


def test_what_atomic_operations_change_is_not_loaded_plainly() -> None:
    found = [shared_and_loaded(path.read_text()) for path in KERNELS]
    shared = set().union(*(names for names, _ in found))
    loaded = set().union(*(names for _, names in found))
    known = {"skinny_gemm_kernel: ticket_ptr", "collect_kernel: num_found_ptr"}
    assert known <= shared
    assert loaded == set()


def test_such_a_load_would_be_found() -> None:
    lines = ["def k(a_ptr, b_ptr):", " x = tl.load(a_ptr + 1)", " tl.atomic_max(a_ptr + 1, x)", " tl.load(b_ptr)"]
    assert shared_and_loaded("\n".join(lines)) == ({"k: a_ptr"}, {"k: a_ptr"})
