"""Owns reading what a Python file defines, and on which line, from its text. Nothing is imported or run.

Names are qualified as Python does, without "<locals>": "Class.method", "Class.field", "function.nested", "CONSTANT".
A name that a class sets on `self` in any of its methods is a field of the class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef
_WITH_BODY = (ast.If, ast.Try, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While, ast.Match)


@dataclass(slots=True)
class Definition:
    """One name that a file defines.

    Attributes:
        line: Where it stands.
        kind: "class", "function", "value" (an assignment or a field) or "import".
        parameters: Of a function, in order, without self and cls.
        bases: Of a class, as they are written, without type arguments.
        origin: Of an import: (module, name); module "." for a relative one of the same package.
        body_line: Of a function: its first line behind the docstring, where a debugger can stop.
        doc: The first paragraph of its docstring, on one line.
        node: Its syntax tree.
    """

    line: int
    kind: str
    node: ast.AST
    parameters: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    origin: tuple[str, str] | None = None
    body_line: int = 0
    doc: str = ""


@dataclass(slots=True)
class Definitions:
    """Everything that one file defines, by qualified name, and the file's own docstring."""

    names: dict[str, Definition] = field(default_factory=dict)
    doc: str = ""

    def members(self, class_name: str) -> list[str]:
        """Names right below a class."""
        prefix = f"{class_name}."
        return [
            name[len(prefix) :] for name in self.names if name.startswith(prefix) and "." not in name[len(prefix) :]
        ]


def read_definitions(source: str) -> Definitions:
    """What a file defines.

    Raises:
        SyntaxError: It is not Python.
    """
    tree = ast.parse(source)
    found = Definitions(doc=_first_paragraph(tree))
    _visit_body(tree.body, "", found.names)
    return found


def _visit_body(body: list[ast.stmt], prefix: str, names: dict[str, Definition]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = tuple(filter(None, map(_dotted, node.bases)))
            # An overload, or the other branch of an if, does not hide the first.
            names.setdefault(
                prefix + node.name, Definition(node.lineno, "class", node, bases=bases, doc=_first_paragraph(node))
            )
            _visit_body(node.body, f"{prefix}{node.name}.", names)
            _add_slots(f"{prefix}{node.name}.", names)
        elif isinstance(node, Function):
            names.setdefault(prefix + node.name, _function(node))
            _visit_body(node.body, f"{prefix}{node.name}.", names)
            if prefix:
                _add_own_fields(node.body, prefix, names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name, origin in _imports(node):
                names.setdefault(prefix + name, Definition(node.lineno, "import", node, origin=origin))
        else:
            for name in _assigned(node):
                names.setdefault(prefix + name, Definition(node.lineno, "value", node))
            for inner in _inner_bodies(node):
                _visit_body(inner, prefix, names)


def _function(node: Function) -> Definition:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters = tuple(argument.arg for argument in every if argument.arg not in ("self", "cls"))
    is_doc = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
    first = node.body[1] if is_doc and len(node.body) > 1 else node.body[0]
    return Definition(node.lineno, "function", node, parameters, body_line=first.lineno, doc=_first_paragraph(node))


def _add_own_fields(body: list[ast.stmt], prefix: str, names: dict[str, Definition]) -> None:
    for node in body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        else:
            # Statements only: walking every expression takes most of the time.
            for inner in _inner_bodies(node):
                _add_own_fields(inner, prefix, names)
            continue
        for target in _attributes(targets):
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                names.setdefault(prefix + target.attr, Definition(node.lineno, "value", node))


def _add_slots(prefix: str, names: dict[str, Definition]) -> None:
    """Names in `__slots__` that no method sets: a line that sets a field says more about it."""
    slots = names.get(f"{prefix}__slots__")
    if slots is not None and isinstance(slots.node, ast.Assign):
        for part in ast.walk(slots.node.value):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                names.setdefault(prefix + part.value, Definition(part.lineno, "value", part))


def _attributes(targets: list[ast.expr]) -> Iterator[ast.Attribute]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _attributes(target.elts)
        elif isinstance(target, ast.Attribute):
            yield target


def _assigned(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, getattr(ast, "TypeAlias", ())):
        yield node.name.id  # type: ignore[attr-defined]


def _inner_bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """What stands below if, try and with belongs to the same scope."""
    if isinstance(node, _WITH_BODY):
        for name in ("body", "orelse", "finalbody"):
            yield getattr(node, name, [])
        for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield handler.body


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname or alias.name.partition(".")[0]), (alias.name, "")
    else:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            yield (alias.asname or alias.name), (module, alias.name)


def _dotted(node: ast.expr) -> str:
    """A base class as it is written: "Base", "module.Base"; Base[T] is Base."""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _first_paragraph(node: Function | ast.ClassDef | ast.Module) -> str:
    first = node.body[0] if node.body else None
    if (
        not isinstance(first, ast.Expr)
        or not isinstance(first.value, ast.Constant)
        or not isinstance(first.value.value, str)
    ):
        return ""
    # Cleaning a docstring (ast.get_docstring) takes longer than parsing its file; white space is all that differs.
    return " ".join(re.split(r"\n\s*\n", first.value.value, maxsplit=1)[0].split())
