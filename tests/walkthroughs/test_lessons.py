"""Every lesson is carried out here: its numbers are computed, its claims hold, its commands work, its places exist."""

from __future__ import annotations

import re
from functools import cache

import pytest

from minivllm.entrypoints.cli.lesson_view import output_of, places, question_id
from minivllm.learning.facts import facts_of
from minivllm.learning.fill import Filler, filler_of
from minivllm.learning.lesson import Block, Lesson, lesson_heads, read_lesson
from minivllm.learning.question import read_question
from minivllm.learning.run_view import FactError
from minivllm.sourcemap.locate import locate

HEADS = lesson_heads()
NAMES = [head.name for head in HEADS]

# What may stand in a text although it has digits: names of requests, versions, articles' quotations, "V1", "UTF-8".
_NAMES_WITH_DIGITS = re.compile(
    r"\b[RW]\d+\b|\b\d_R\d\b|0\.27\.1|0\.32\.0|\bV1\b|\bUTF-8\b|\bINV-\d+\b|\bn[12]\b|\bsha256\b|\bmax_num_seqs=1\b|#0\b|`vllm/[\w/.]+`|\bPyBind11\b"
)


@cache
def lesson_of(name: str) -> Lesson:
    return read_lesson(next(head.path for head in HEADS if head.name == name))


@cache
def filler_for(name: str) -> Filler:
    lesson = lesson_of(name)
    return filler_of(lesson, facts_of(lesson.scenario))


def blocks(kind: str) -> list[tuple[str, Block]]:
    return [(name, block) for name in NAMES for block in lesson_of(name).blocks(kind)]


def block_id(value: object) -> str:
    return f"line-{value.line}" if isinstance(value, Block) else str(value)


def test_the_course_is_complete_and_numbered() -> None:
    assert len(HEADS) >= 17
    assert [head.number for head in HEADS] == list(range(1, len(HEADS) + 1))
    assert len({head.title for head in HEADS}) == len(HEADS)


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_has_all_its_parts(name: str) -> None:
    lesson = lesson_of(name)
    assert lesson.blocks("run"), "a map, cut to the point"
    assert len(lesson.blocks("ask")) >= 2, "a prediction"
    assert lesson.blocks("check"), "claims that the run must make true"
    assert lesson.blocks("where"), "places in the source"
    text = lesson.path.read_text(encoding="utf-8")
    assert "**The question:**" in text
    assert "## What the articles say" in text
    assert "whatif" in text, "one setting is changed"


@pytest.mark.parametrize(("name", "block"), blocks("text"), ids=block_id)
def test_every_number_of_a_text_is_computed(name: str, block: Block) -> None:
    lines = [line for line in block.body.splitlines() if not line.startswith(">")]
    plain = re.sub(r"\{[^{}\n]+\}", "", "\n".join(lines))
    plain = re.sub(r"^\d+\. ", "", plain, flags=re.MULTILINE)
    typed = re.findall(r"\S*\d\S*", _NAMES_WITH_DIGITS.sub("", plain))
    assert not typed, f"{name}: write these as {{expressions}} over the run: {typed}"


@pytest.mark.parametrize(("name", "block"), blocks("ask"), ids=block_id)
def test_every_number_of_a_question_is_computed(name: str, block: Block) -> None:
    lines = [line for line in block.body.splitlines() if not line.startswith(("answer:", "where:"))]
    plain = _NAMES_WITH_DIGITS.sub("", re.sub(r"\{[^{}\n]+\}", "", "\n".join(lines)))
    typed = [word for word in re.findall(r"\S*\d\S*", plain)]
    assert not typed, f"{name}: write these as {{expressions}} over the run: {typed}"


@pytest.mark.parametrize(("name", "block"), blocks("text"), ids=block_id)
def test_the_run_fills_a_text(name: str, block: Block) -> None:
    filled = filler_for(name).fill(block.body)
    assert "{" not in filled, "a placeholder stands on one line, without braces inside"
    assert "none tokens" not in filled


@pytest.mark.parametrize(("name", "block"), blocks("facts"), ids=block_id)
def test_the_run_gives_every_fact_and_the_text_uses_it(name: str, block: Block) -> None:
    text = lesson_of(name).path.read_text(encoding="utf-8")
    for line in block.body.splitlines():
        fact = line.partition(" = ")[0]
        filler_for(name).value(fact)
        assert len(re.findall(rf"\b{fact}\b", text)) >= 2, f"{fact} is never used"


@pytest.mark.parametrize(("name", "block"), blocks("check"), ids=block_id)
def test_the_run_makes_the_claims_true(name: str, block: Block) -> None:
    assert filler_for(name).broken(block) == []


@pytest.mark.parametrize("width", [60, 100, 140])
@pytest.mark.parametrize(("name", "block"), blocks("run"), ids=block_id)
def test_a_command_works_at_every_width(name: str, block: Block, width: int) -> None:
    _, lines = output_of(block, filler_for(name), width)
    assert 1 <= len(lines) <= 60, "a map is cut to the point"


@pytest.mark.parametrize(("name", "block"), blocks("run"), ids=block_id)
def test_words_to_cut_at_are_in_the_output(name: str, block: Block) -> None:
    command, *cuts = block.body.splitlines()
    _, lines = output_of(Block("run", command, block.line), filler_for(name), 100)
    for cut in cuts:
        side, _, words = cut.partition(": ")
        assert side in ("from", "to")
        assert any(words in line for line in lines[1:]), words


@pytest.mark.parametrize(("name", "block"), blocks("where"), ids=block_id)
def test_a_place_is_on_the_source_map(name: str, block: Block) -> None:
    assert all(":" in here for _, here, _ in places(block))


@pytest.mark.parametrize("name", NAMES)
def test_the_run_answers_every_question(name: str) -> None:
    lesson = lesson_of(name)
    for place, block in enumerate(lesson.blocks("ask")):
        question = read_question(block, filler_for(name), question_id(lesson, place))
        assert question.is_right(question.answer)
        assert question.why
        assert locate(question.ours), question.ours
        assert not question.choices or len(set(question.choices)) == len(question.choices) >= 2


@pytest.mark.parametrize("name", [name for name in NAMES if lesson_of(name).scenario != "hello"])
def test_another_run_breaks_the_lesson(name: str) -> None:
    """What holds in any run says nothing about this one."""
    lesson = lesson_of(name)
    filler = filler_of(lesson, facts_of("hello"))
    assert not all(holds(filler, block) for block in lesson.blocks("check"))


def holds(filler: Filler, block: Block) -> bool:
    try:
        return not filler.broken(block)
    except FactError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_not_typed_in(name: str) -> None:
    """An expression that asks the run for nothing is a typed answer."""
    facts = "|".join(facts_of("hello").words())
    known = {line.partition(" = ")[0] for block in lesson_of(name).blocks("facts") for line in block.body.splitlines()}
    for block in lesson_of(name).blocks("ask"):
        (answer,) = re.findall(r"^answer: (.+)$", block.body, re.MULTILINE)
        used = set(re.findall(r"\w+", answer))
        assert re.search(rf"\b({facts})\(", answer) or used & known, answer
