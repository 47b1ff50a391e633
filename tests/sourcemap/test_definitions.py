"""What a file defines is known from its text alone."""

from __future__ import annotations

import pytest

from minivllm.sourcemap.definitions import read_definitions

SOURCE = '''\
"""Owns an example.

More words.
"""
import os.path
from a.b import c as d
from . import sibling

LIMIT = 3
LEFT, RIGHT = 1, 2
typed: int = 4

if LIMIT:
    def conditional(self, x, /, y, *, z): ...
else:
    conditional = None

def outer(a, b=1):
    """Does one thing.

    And more.
    """
    def inner(): ...
    return inner

class Base(list[int], mod.Mixin):
    __slots__ = ("slotted", "other")
    field: str
    MEMBER = 1

    def __init__(self):
        self.plain, (self.nested, self.deep) = 1, (2, 3)
        with open("x") as f:
            self.under_with: int = 1
        local = 5
        self.other = 0

    @property
    def prop(self):
        return 1

    class Inner:
        def method(self): ...
'''


def test_every_kind_of_name_is_found_on_its_line() -> None:
    names = read_definitions(SOURCE).names
    lines = SOURCE.splitlines()
    for name, word in {
        "LIMIT": "LIMIT = 3",
        "LEFT": "LEFT, RIGHT",
        "RIGHT": "LEFT, RIGHT",
        "typed": "typed: int",
        "conditional": "def conditional",
        "outer": "def outer",
        "outer.inner": "def inner",
        "Base": "class Base",
        "Base.slotted": "__slots__",
        "Base.other": "self.other = 0",
        "Base.field": "field: str",
        "Base.MEMBER": "MEMBER = 1",
        "Base.plain": "self.plain",
        "Base.nested": "self.plain",
        "Base.deep": "self.plain",
        "Base.under_with": "self.under_with",
        "Base.prop": "def prop",
        "Base.Inner.method": "def method",
    }.items():
        assert word in lines[names[name].line - 1], name
    assert "local" not in names
    assert "Base.local" not in names
    assert "Base.Inner.local" not in names


def test_the_first_definition_holds() -> None:
    assert read_definitions(SOURCE).names["conditional"].kind == "function"


def test_parameters_bases_and_docs() -> None:
    found = read_definitions(SOURCE)
    assert found.doc == "Owns an example."
    assert found.names["conditional"].parameters == ("x", "y", "z")
    assert found.names["Base"].bases == ("list", "mod.Mixin")
    assert found.names["outer"].doc == "Does one thing."
    assert found.members("Base.Inner") == ["method"]
    assert "return inner" not in SOURCE.splitlines()[found.names["outer"].body_line - 1]
    assert "def inner" in SOURCE.splitlines()[found.names["outer"].body_line - 1]


def test_imports_know_where_from() -> None:
    names = read_definitions(SOURCE).names
    assert names["os"].origin == ("os.path", "")
    assert names["d"].origin == ("a.b", "c")
    assert names["sibling"].origin == (".", "sibling")


def test_text_that_is_not_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        read_definitions("def (")
