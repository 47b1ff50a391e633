"""The format of a lesson: what is read, and what is refused with a place and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from minivllm.learning.facts import Facts, facts_of
from minivllm.learning.fill import Filler, filler_of, shown
from minivllm.learning.lesson import Block, LessonError, find_lesson, lesson_heads, read_lesson
from minivllm.learning.run_view import FactError

TEXT = """\
# A small lesson
<!-- lesson 7, scenario hello, 3 minutes -->

It has {config("block_size")} tokens a block.

```facts
at = 3
both = scheduled(at)
```

## The second page

Iteration {at} has {both}.

```text
## no heading, but text in a fence: {at}
```

```ask
How many?
answer: len(both)
why: there are {len(both)}
where: minivllm.core.scheduler:Scheduler.schedule
```
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small_one" / "lesson.md"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def test_a_lesson_is_read_into_pages_and_blocks(file: Path) -> None:
    lesson = read_lesson(file)
    assert (lesson.name, lesson.title, lesson.number) == ("small-one", "A small lesson", 7)
    assert (lesson.scenario, lesson.minutes) == ("hello", 3)
    assert [page.title for page in lesson.pages] == ["A small lesson", "The second page"]
    assert [[block.kind for block in page.blocks] for page in lesson.pages] == [["text", "facts"], ["text", "ask"]]
    assert lesson.blocks("facts")[0].line == TEXT[: TEXT.index("```facts")].count("\n") + 1


def test_the_run_fills_the_text(file: Path) -> None:
    lesson = read_lesson(file)
    filler = filler_of(lesson, facts_of("hello"))
    assert filler.fill(lesson.pages[0].blocks[0].body) == "It has 16 tokens a block."
    assert "Iteration 3 has R0, R1." in filler.fill(lesson.pages[1].blocks[0].body)
    assert "in a fence: 3" in filler.fill(lesson.pages[1].blocks[0].body)


def test_another_run_gives_another_text(file: Path) -> None:
    log = facts_of("hello")._log
    for event in log.events:
        if event.kind == "schedule" and event.step == 3:
            event.data["scheduled"] = [["R1", 5]]
            event.data["running"] = []
    filler = filler_of(read_lesson(file), Facts(log))
    assert "Iteration 3 has R1." in filler.fill("Iteration {at} has {both}.")


@pytest.mark.parametrize("head", ["", "no heading\n", "# Title\n\n<!-- lesson 1, scenario hello, 1 minutes -->\n"])
def test_a_file_without_a_head_says_what_is_missing(file: Path, head: str) -> None:
    file.write_text(head)
    with pytest.raises(LessonError, match="first two lines must be"):
        read_lesson(file)


def test_a_block_without_an_end_is_named(file: Path) -> None:
    file.write_text(TEXT.rstrip().removesuffix("```"))
    with pytest.raises(LessonError, match="'ask' does not end"):
        read_lesson(file)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("tokens('R9', 0)", "the run has no request 'R9'; it has R0, R1"),
        ("tokens('R0', 99)", "no iteration 99; it has 0 to 12"),
        ("computed('R1', 0)", "R1 was not scheduled in iteration 0"),
        ("nothing", "nothing: NameError"),
        ("__import__('os')", "NameError"),
        ("told_at('kv.evicted', 3)", "no event kv.evicted in iteration 3"),
    ],
)
def test_what_the_run_cannot_answer_is_said(expression: str, said: str) -> None:
    with pytest.raises(FactError, match=said.replace("(", r"\(")):
        Filler(facts_of("hello"), "lesson").value(expression)


def test_a_fact_that_is_none_is_told_with_its_line() -> None:
    with pytest.raises(FactError, match=r"lesson, line 12: not NAME = EXPRESSION: budget is 3"):
        Filler(facts_of("hello"), "lesson").learn(Block("facts", "at = 3\nbudget is 3\n", 10))


def test_a_name_is_given_once() -> None:
    filler = Filler(facts_of("hello"), "lesson")
    filler.learn(Block("facts", "at = 3\n", 1))
    for taken in ("at = 4", "tokens = 4"):
        with pytest.raises(FactError, match="is taken"):
            filler.learn(Block("facts", taken, 7))


def test_a_fact_may_rest_on_another() -> None:
    filler = Filler(facts_of("hello"), "lesson")
    filler.learn(Block("facts", "both = scheduled(at)\nat = 3\n", 1))
    assert filler.fill("{both[1]}") == "R1"


def test_a_claim_that_does_not_hold_is_given_back() -> None:
    filler = Filler(facts_of("hello"), "lesson")
    block = Block("check", 'tokens("R0", 0) == 5\ntokens("R0", 0) == 6\n', 1)
    assert filler.broken(block) == ['tokens("R0", 0) == 6']


def test_values_as_they_are_written() -> None:
    values = [True, None, 7, 0.123456, ["R0", "R1"], [0, 1], [], "text"]
    assert [shown(value) for value in values] == ["yes", "none", "7", "0.123", "R0, R1", "[0, 1]", "none", "text"]


def test_a_lesson_is_found_by_its_name_or_its_folder() -> None:
    assert find_lesson("mixed-batch").name == find_lesson("mixed_batch").name == "mixed-batch"


def test_an_unknown_lesson_is_told_by_its_nearest() -> None:
    with pytest.raises(LessonError, match="did you mean 'mixed-batch'"):
        find_lesson("mixed-bach")
    with pytest.raises(LessonError, match="there are: request-in"):
        find_lesson("zzz")


def test_heads_are_in_the_order_of_the_course() -> None:
    numbers = [head.number for head in lesson_heads()]
    assert numbers == sorted(numbers)
