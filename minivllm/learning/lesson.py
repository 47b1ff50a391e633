"""Owns the format of a lesson: one Markdown file that a human writes, with a few fenced blocks that are carried out.

    # The mixed batch
    <!-- lesson 3, scenario mixed-batch, 10 minutes -->

    Text. A number that comes from a run stands as {budget} or {tokens("R1", 13)}, and is computed from the log.

Fenced blocks, by the word behind the fence:

    facts   NAME = EXPRESSION, one a line: names for the text below
    check   an expression a line, which the run must make true, or the text beside it would be wrong
    run     a command of ours; `from: WORDS` and `to: WORDS` below it cut its output to the point
    where   symbols of ours, one a line: their places here and in vLLM, from the source map
    ask     a question (see `minivllm.learning.question`)

Every other block is text. A heading of the second level begins a page.

`lesson.zh.md` beside it is the same lesson in Chinese: the same blocks, with other words around them. Where the output
to cut is Chinese, too, `to: WORDS | OTHER WORDS` has the words to look for.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "walkthroughs"

_HEAD = re.compile(
    r"# (?P<title>.+)\n<!-- lesson (?P<number>\d+), scenario (?P<scenario>[\w-]+), (?P<minutes>\d+) minutes -->\n"
)
_FENCE = re.compile(r"^```(?P<word>facts|check|run|where|ask)\n(?P<body>.*?)^```\n", re.MULTILINE | re.DOTALL)
_KINDS = ("facts", "check", "run", "where", "ask")
_FILES = {"en": "lesson.md", "zh": "lesson.zh.md"}


class LessonError(ValueError):
    """A lesson that does not exist, or whose file cannot be read; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a lesson.

    Attributes:
        kind: "text", or the word behind the fence.
        body: Its text, without the fences.
        line: Where it begins in the file.
    """

    kind: str
    body: str
    line: int


@dataclass(frozen=True, slots=True)
class Page:
    """What is shown at a time.

    Attributes:
        title: Its heading; that of the lesson for the first page.
        blocks: What it consists of, in order.
    """

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class LessonHead:
    """What a list of lessons needs to know of one.

    Attributes:
        name: Its folder's name, with hyphens: "mixed-batch".
        title: Its first heading.
        number: Its place in the course.
        scenario: The run that it is about.
        minutes: How long it takes.
        path: Its file.
    """

    name: str
    title: str
    number: int
    scenario: str
    minutes: int
    path: Path

    @property
    def lang(self) -> str:
        """The language that its file is in."""
        return "zh" if self.path.name == _FILES["zh"] else "en"


@dataclass(frozen=True, slots=True)
class Lesson(LessonHead):
    """A lesson with its pages."""

    pages: tuple[Page, ...] = field(default=())

    def blocks(self, kind: str) -> list[Block]:
        """All its blocks of a kind, in order."""
        return [block for page in self.pages for block in page.blocks if block.kind == kind]


def lesson_heads(folder: Path = FOLDER, lang: str = "en") -> list[LessonHead]:
    """Every lesson, in the order of the course; in English what has no file in that language."""
    paths = [path.with_name(_FILES[lang]) for path in folder.glob(f"*/{_FILES['en']}")]
    heads = [_head(path if path.exists() else path.with_name(_FILES["en"])) for path in paths]
    return sorted(heads, key=lambda head: head.number)


def find_lesson(name: str, lang: str = "en") -> Lesson:
    """A lesson by name, in a language if there is a file in it.

    Raises:
        LessonError: There is none of that name; the message names the nearest.
    """
    heads = lesson_heads(lang=lang)
    by_name = {head.name: head for head in heads}
    wanted = name.strip().replace("_", "-")
    if wanted not in by_name:
        close = difflib.get_close_matches(wanted, by_name, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(by_name)}"
        raise LessonError(f"no lesson is called {name!r}; {hint}")
    return read_lesson(by_name[wanted].path)


def read_lesson(path: Path) -> Lesson:
    """Read a lesson's file.

    Raises:
        LessonError: It is not in the form that the module's docstring tells.
    """
    head = _head(path)
    text = path.read_text(encoding="utf-8")
    match = _HEAD.match(text)
    assert match is not None, "_head has read it"
    start = match.end()
    if unknown := re.findall(r"^```(\w+)", re.sub(_FENCE, "", text), re.MULTILINE):
        wrong = [word for word in unknown if word in _KINDS]
        if wrong:
            raise LessonError(f"{path}: a block of {wrong[0]!r} does not end; close it with ``` on a line of its own")
    pages: list[Page] = []
    for part_start, part in _parts(text, start):
        title = part.splitlines()[0].removeprefix("## ") if part.startswith("## ") else head.title
        pages.append(Page(title, tuple(_blocks(part, text.count("\n", 0, part_start) + 1))))
    return Lesson(head.name, head.title, head.number, head.scenario, head.minutes, path, tuple(pages))


def _head(path: Path) -> LessonHead:
    with path.open(encoding="utf-8") as file:
        match = _HEAD.match(file.readline() + file.readline())
    if match is None:
        raise LessonError(
            f"{path}: its first two lines must be `# TITLE` and `<!-- lesson N, scenario NAME, M minutes -->`"
        )
    name = path.parent.name.replace("_", "-")
    return LessonHead(name, match["title"], int(match["number"]), match["scenario"], int(match["minutes"]), path)


def _parts(text: str, start: int) -> list[tuple[int, str]]:
    """What stands before the first heading of the second level, and from each on: (offset, text)."""
    inside = [(match.start(), match.end()) for match in re.finditer(r"^```.*?^```\n", text, re.MULTILINE | re.DOTALL)]
    starts = [start] + [
        match.start()
        for match in re.finditer(r"^## ", text, re.MULTILINE)
        if not any(a <= match.start() < b for a, b in inside)
    ]
    return [(a, text[a:b]) for a, b in zip(starts, [*starts[1:], len(text)], strict=True) if text[a:b].strip()]


def _blocks(part: str, first_line: int) -> list[Block]:
    blocks: list[Block] = []
    done = 0
    for match in _FENCE.finditer(part):
        blocks += _text(part, done, match.start(), first_line)
        blocks.append(Block(match["word"], match["body"], first_line + part.count("\n", 0, match.start())))
        done = match.end()
    return blocks + _text(part, done, len(part), first_line)


def _text(part: str, start: int, end: int, first_line: int) -> list[Block]:
    body = part[start:end].strip("\n")
    return [Block("text", body, first_line + part.count("\n", 0, start))] if body.strip() else []
