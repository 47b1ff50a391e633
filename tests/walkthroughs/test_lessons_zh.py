"""A lesson in Chinese is the lesson in English with other words: what is carried out is the same, line by line."""

from __future__ import annotations

import re

import pytest

from minivllm.entrypoints.cli.lesson_view import output_of, question_id
from minivllm.learning.facts import facts_of
from minivllm.learning.fill import filler_of
from minivllm.learning.lesson import FOLDER, Block, Lesson, lesson_heads, read_lesson
from minivllm.learning.question import read_question
from tests.walkthroughs.test_lessons import _NAMES_WITH_DIGITS

# Lessons that are not translated yet.
NOT_YET: set[str] = set()

HAN = "[\u4e00-\u9fff]"
TRANSLATED = [head.name for head in lesson_heads(lang="zh") if head.lang == "zh"]


def both(name: str) -> tuple[Lesson, Lesson]:
    folder = FOLDER / name.replace("-", "_")
    return read_lesson(folder / "lesson.md"), read_lesson(folder / "lesson.zh.md")


def executable(block: Block) -> str:
    """What of a block is carried out."""
    if block.kind == "text":
        return ""
    if block.kind != "ask":
        return re.sub(r" \| .*", "", block.body) if block.kind == "run" else block.body
    # A line that begins with none of its words goes on with the line before.
    lines: list[str] = []
    for line in block.body.splitlines():
        if re.match("(choice|answer|why|where): ", line) or not lines:
            lines.append(line)
        else:
            lines[-1] += f" {line.strip()}"
    kept = [line.partition(" | ")[0] for line in lines if line.startswith(("choice: ", "answer: ", "where: "))]
    return "\n".join(kept)


def values(block: Block) -> set[str]:
    """Expressions in a text, and names in the font of code."""
    prose = re.sub("^(answer|where): .*$", "", block.body, flags=re.MULTILINE)
    return set(re.findall(r"\{[^{}\n]+\}|`[^`\n]+`", prose))


def test_every_lesson_is_translated_but_those_that_are_listed() -> None:
    assert {head.name for head in lesson_heads()} - set(TRANSLATED) == NOT_YET


@pytest.mark.parametrize("name", TRANSLATED)
def test_what_is_carried_out_is_the_same(name: str) -> None:
    english, chinese = both(name)
    assert (english.number, english.scenario, english.minutes) == (chinese.number, chinese.scenario, chinese.minutes)
    assert len(english.pages) == len(chinese.pages)
    for one, other in zip(english.pages, chinese.pages, strict=True):
        assert [block.kind for block in one.blocks] == [block.kind for block in other.blocks], other.title
        for ours, theirs in zip(one.blocks, other.blocks, strict=True):
            where = f"{chinese.path.parent.name}/{chinese.path.name}, line {theirs.line}; in English line {ours.line}"
            assert executable(theirs) == executable(ours), where
            assert values(theirs) == values(ours), where


@pytest.mark.parametrize("name", TRANSLATED)
def test_it_is_told_in_chinese(name: str) -> None:
    _, chinese = both(name)
    text = chinese.path.read_text(encoding="utf-8")
    assert "**问题**：" in text
    assert "## 系列文章怎么说" in text
    assert "## 在源码的哪里" in text
    for block in (*chinese.blocks("text"), *chinese.blocks("ask")):
        for line in re.sub("^```.*?^```$", "", block.body, flags=re.MULTILINE | re.DOTALL).splitlines():
            prose = re.sub(r"`[^`]*`|\{[^{}]*\}", "", line)
            is_prose = line and not line.startswith(("choice: ", "answer: ", "where: ", "|", ">"))
            assert not is_prose or re.search(HAN, prose), line
            assert not re.search(rf"{HAN}[,;:?!]|{HAN}\.(?:\s|$)", prose), f"Chinese marks: {line}"


@pytest.mark.parametrize("name", TRANSLATED)
def test_every_number_is_computed(name: str) -> None:
    _, chinese = both(name)
    for block in (*chinese.blocks("text"), *chinese.blocks("ask")):
        lines = [line for line in block.body.splitlines() if not line.startswith((">", "answer: ", "where: "))]
        plain = _NAMES_WITH_DIGITS.sub("", re.sub(r"\{[^{}\n]+\}", "", "\n".join(lines)))
        assert not re.findall(r"\S*[0-9]\S*", plain), f"line {block.line}"


@pytest.mark.parametrize("name", TRANSLATED)
def test_the_run_fills_it_and_answers_its_questions_as_in_english(name: str) -> None:
    english, chinese = both(name)
    facts = facts_of(chinese.scenario)
    one, other = filler_of(english, facts), filler_of(chinese, facts)
    for block in chinese.blocks("text"):
        assert "{" not in other.fill(block.body)
    for place, (asked, told) in enumerate(zip(english.blocks("ask"), chinese.blocks("ask"), strict=True)):
        ours = read_question(asked, one, question_id(english, place))
        theirs = read_question(told, other, question_id(chinese, place))
        assert (theirs.letter, theirs.id) == (ours.letter, ours.id)
        assert theirs.letter or theirs.answer == ours.answer
        assert theirs.is_right(theirs.answer)


@pytest.mark.parametrize("name", TRANSLATED)
def test_words_to_cut_at_are_in_the_output_in_chinese(name: str) -> None:
    _, chinese = both(name)
    filler = filler_of(chinese, facts_of(chinese.scenario))
    for block in chinese.blocks("run"):
        command, *cuts = block.body.splitlines()
        _, lines = output_of(Block("run", command, block.line), filler, 100, lang="zh")
        for cut in cuts:
            english, _, own = cut.partition(": ")[2].partition(" | ")
            assert any((own or english) in line for line in lines[1:]), (command, cut)
