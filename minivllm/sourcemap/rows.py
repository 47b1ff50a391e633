"""Owns the rows of the source map: what stands beside the code (`@on_map`), and what concepts.tsv says of it.

The decorators are read from the files' text, so that asking where something is imports neither engine nor torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from minivllm.sourcemap.definitions import Definition
from minivllm.sourcemap.locate import PACKAGE, definition, file_of, source_files
from minivllm.sourcemap.places import place_of
from minivllm.sourcemap.registry import MapEntry

PINNED = "0.27.1"
NEWER = "0.32.0"
VERSIONS = (PINNED, NEWER)

# Every idea that the three articles name has a number, in the order of its topic. Each is in one of the two tables.
NUM_IDEAS = 280

ARTICLES = {
    "1": "vLLM 请求到 GPU Kernel 的执行路径",
    "2": "vLLM 源码完全拆解（十六）：把十五篇机制拼成一张可执行的源码阅读地图",
    "3": "大模型推理系统揭秘（14）：从源码对象到调用链",
}

_CONCEPTS = Path(__file__).with_name("concepts.tsv")
_NOT_BUILT = Path(__file__).with_name("not_built.tsv")
_HEAD = ("chinese", "number", "articles", "ours", "vllm_0.27.1", "vllm_0.32.0", "owner", "says", "differs", "also")


# A decorator, the decorators below it, and the line of the definition.
_ON_MAP = re.compile(
    r"^(?P<indent>[ ]*)@(?P<call>on_map\((?:[^\n]+\)$|\n.*?^(?P=indent)\)$))\n"
    r"(?:(?P=indent)@[^\n]*\n)*(?P=indent)(?:async )?def (?P<name>\w+)",
    re.MULTILINE | re.DOTALL,
)
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_CONSTANT = re.compile(r"^([A-Z_]\w*) = (\"[^\"\n]*\")$", re.MULTILINE)
_DOC = re.compile(r'[ ]+"""(.+?)(?:\n\s*\n|""")', re.DOTALL)


class SourceMapError(ValueError):
    """The tables and the code contradict each other."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One concept.

    Attributes:
        concept: Its name; the phrase in `@on_map`, if our symbol carries one.
        chinese: Its name in the articles.
        numbers: Which ideas of the articles it stands for.
        articles: Keys of `ARTICLES`.
        layer, domain, process, plane, owner: See `places.Place`.
        ours: Our symbol, "module:qualname"; None if it is not built yet.
        vllm: Version to vLLM's symbol, "path::qualname"; None if that version has none.
        says: What it is responsible for, in a sentence.
        differs: What differs: from vLLM, between its versions, or in an article. "" if nothing does.
        also: Other names, for the search.
        is_registered: Our symbol carries `@on_map`: a trace can follow it.
    """

    concept: str
    chinese: str
    numbers: tuple[int, ...]
    articles: tuple[str, ...]
    layer: str
    domain: str
    process: str
    plane: str
    owner: str
    ours: str | None
    vllm: dict[str, str | None]
    says: str
    differs: str = ""
    also: str = ""
    is_registered: bool = False

    @property
    def path(self) -> Path | None:
        """Our file."""
        return file_of(self.ours) if self.ours else None

    @property
    def defined(self) -> Definition | None:
        """What defines our symbol."""
        return definition(self.ours) if self.ours else None


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    """Every concept that has code, in the order of concepts.tsv.

    Raises:
        SourceMapError: A line of the table names no symbol, and no decorator has its phrase.
    """
    decorated = {entry.concept: (entry, doc) for entry, doc in decorated_entries()}
    found = [_row(line, *decorated.pop(line["concept"], (None, ""))) for line in _table(_CONCEPTS)]
    # A symbol that someone has just put on the map has no words yet; it is found all the same.
    found += [
        _row(dict.fromkeys(_HEAD, "") | {"concept": entry.concept}, entry, doc) for entry, doc in decorated.values()
    ]
    return tuple(found)


@lru_cache(maxsize=1)
def not_built() -> tuple[Row, ...]:
    """Concepts of the articles that have no code here yet."""
    return tuple(
        Row(
            *_words(line),
            layer="not built yet",
            domain="",
            process="",
            plane="",
            owner="",
            ours=None,
            vllm=_symbols(line, None),
            says=line["instead"],
            also=line["also"],
        )
        for line in _table(_NOT_BUILT)
    )


def decorated_entries() -> Iterator[tuple[MapEntry, str]]:
    """What `registry.entries` would hold if every module were imported, and each symbol's first sentence.

    The files are searched, not parsed: that is ten times faster, and `where` has to answer at once. A test compares
    the result with the registry itself.
    """
    for path in source_files():
        source = path.read_text(encoding="utf-8")
        if "@on_map(" in source and path.parent != Path(__file__).parent:
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            yield from _decorated(source, module)


def _decorated(source: str, module: str) -> Iterator[tuple[MapEntry, str]]:
    constants = {name: ast.parse(value, mode="eval").body for name, value in _CONSTANT.findall(source)}
    classes = list(_CLASS.finditer(source))
    for found in _ON_MAP.finditer(source):
        call = ast.parse(found["call"].strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        given = {keyword.arg: _text(keyword.value, constants) for keyword in call.keywords}
        owner = next((each[1] for each in reversed(classes) if each.start() < found.start()), "")
        qualname = f"{owner}.{found['name']}" if found["indent"] else found["name"]
        entry = MapEntry(
            _text(call.args[0], constants),
            given.get("plane", "control"),
            given.get("process", "engine_core"),
            f"{module}:{qualname}",
            given["vllm"],
        )
        doc = _DOC.match(source, source.index(":\n", found.end()) + 2)
        yield entry, " ".join(doc[1].split()) if doc else ""


def _text(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """A string that is written out, a constant of the module, or an f-string of both."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return _text(constants[node.id], constants)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, constants)
    assert isinstance(node, ast.JoinedStr), "@on_map takes strings that can be read without running the module"
    return "".join(_text(part, constants) for part in node.values)


def _row(line: dict[str, str], entry: MapEntry | None, doc: str) -> Row:
    ours = line["ours"] or (entry.ours if entry else None)
    if ours is None:
        raise SourceMapError(f"{_CONCEPTS.name}: no symbol carries @on_map({line['concept']!r}), and none is named")
    place = place_of(ours.partition(":")[0])
    return Row(
        *_words(line),
        layer=place.layer,
        domain=place.domain,
        process=entry.process if entry else place.process,
        plane=entry.plane if entry else place.plane,
        owner=line["owner"] or place.owner,
        ours=ours,
        vllm=_symbols(line, entry),
        says=line["says"] or doc,
        differs=line["differs"],
        also=line["also"],
        is_registered=entry is not None,
    )


def _words(line: dict[str, str]) -> tuple[str, str, tuple[int, ...], tuple[str, ...]]:
    numbers = tuple(int(number) for number in line["number"].split(",") if number)
    return line["concept"], line["chinese"], numbers, tuple(line["articles"])


def _symbols(line: dict[str, str], entry: MapEntry | None) -> dict[str, str | None]:
    """An empty cell of the newer version means that nothing has changed; "-" that it has no such symbol."""
    pinned = line[f"vllm_{PINNED}"] or (entry.vllm if entry else "-")
    newer = line[f"vllm_{NEWER}"] or pinned
    return {PINNED: None if pinned == "-" else pinned, NEWER: None if newer == "-" else newer}


def _table(path: Path) -> list[dict[str, str]]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    names = head.split("\t")
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]
