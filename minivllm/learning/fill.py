"""Owns carrying out a lesson's expressions on a run, and writing their values into its text."""

from __future__ import annotations

import re
from typing import Any

from minivllm.learning.facts import Facts
from minivllm.learning.lesson import Block, Lesson
from minivllm.learning.run_view import FactError

_PLACEHOLDER = re.compile(r"\{([^{}\n]+)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_FACT = re.compile(r"(\w+) = (.+)")


class Filler:
    """The names and values of one lesson's run.

    Args:
        facts: The run.
        place: What the expressions stand in, for messages: a file.
    """

    def __init__(self, facts: Facts, place: str) -> None:
        self._words = facts.words()
        self._place = place
        # Facts that nothing has asked for yet: a reader of the first page need not wait for the last one's runs.
        self._pending: dict[str, str] = {}

    def learn(self, block: Block) -> None:
        """Take in a block of facts: each line gives a value a name. It is computed when it is first asked for.

        Raises:
            FactError: A line is not `NAME = EXPRESSION`, or its name is taken.
        """
        for number, line in enumerate(block.body.splitlines()):
            if not line.strip():
                continue
            match = _FACT.fullmatch(line.strip())
            if match is None:
                raise FactError(f"{self._place}, line {block.line + 1 + number}: not NAME = EXPRESSION: {line}")
            if match[1] in self._pending or match[1] in self._words:
                raise FactError(
                    f"{self._place}, line {block.line + 1 + number}: {match[1]} is taken: choose another name"
                )
            self._pending[match[1]] = match[2]

    def value(self, expression: str) -> Any:
        """The value of an expression.

        Raises:
            FactError: The run has no answer to it.
        """
        for name in _NAME.findall(expression):
            if name in self._pending:
                self._words[name] = self.value(self._pending.pop(name))
        try:
            # Lessons are files of this package; the words are all that they need.
            return eval(expression, {"__builtins__": {}, **self._words})
        except Exception as error:
            raise FactError(f"{self._place}: {expression}: {type(error).__name__}: {error}") from None

    def fill(self, text: str) -> str:
        """A text with the value of every {expression} in its place.

        Raises:
            FactError: The run has no answer to one.
        """
        return _PLACEHOLDER.sub(lambda match: shown(self.value(match[1])), text)

    def broken(self, block: Block) -> list[str]:
        """The lines of a block of checks that this run does not make true."""
        return [line for line in block.body.splitlines() if line.strip() and self.value(line) is not True]


def filler_of(lesson: Lesson, facts: Facts) -> Filler:
    """A filler that knows all facts of a lesson, wherever in it they stand."""
    filler = Filler(facts, f"{lesson.path.parent.name}/{lesson.path.name}")
    for block in lesson.blocks("facts"):
        filler.learn(block)
    return filler


def shown(value: Any) -> str:
    """A value as it is written in a text: yes and no for truths, names and numbers in a row for lists."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return ", ".join(value)
        return "[" + ", ".join(shown(item) for item in value) + "]" if value else "none"
    return str(value)
