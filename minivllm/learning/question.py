"""Owns a question: its words, its choices, the answer that a run gives, and judging the answer that somebody gave.

An `ask` block of a lesson:

    How many tokens does R1 get?          the question, on one or more lines
    choice: {owed}                        wrong answers and the right one, in the order in which they are shown;
    choice: {limit}                       without any the answer is typed: a number, a name, or several of them
    answer: tokens("R1", 13)              an expression
    why: {limit}, because ...             said after it, on one or more lines
    where: minivllm.core.scheduler:...    our symbol, whose place is shown with it

In another language than English, `choice: NAME | WORDS` shows words for what the run calls NAME.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from minivllm.learning.fill import Filler, shown
from minivllm.learning.lesson import Block
from minivllm.learning.run_view import FactError

_KEYS = ("choice", "answer", "why", "where")
_LETTERS = "abcdefgh"
_WORD = re.compile(r"-?\w+(?:[.\-]\w+)*")


@dataclass(frozen=True, slots=True)
class Question:
    """A question of one run.

    Attributes:
        id: The lesson's name and the question's number in it: "mixed-batch/2".
        text: What is asked.
        choices: What can be chosen; empty if the answer is typed.
        answer: What the run says.
        why: Explains it.
        ours: Where the rule stands: our symbol.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    answer: str
    why: str
    ours: str

    @property
    def letter(self) -> str:
        """The letter of the right choice; "" if the answer is typed."""
        return _LETTERS[self.choices.index(self.answer)] if self.choices else ""

    @property
    def right(self) -> str:
        """The right answer for a reader: with its letter, if there is one."""
        return f"{self.letter}) {self.answer}" if self.choices else self.answer

    def lines(self) -> list[str]:
        """The choices, each with its letter."""
        return [f"{letter}) {choice}" for letter, choice in zip(_LETTERS, self.choices, strict=False)]

    def is_right(self, given: str) -> bool:
        """Whether an answer is right: by letter or by its words; brackets, commas and case do not matter."""
        said = _words(given)
        if self.choices and said in ([self.letter], [self.letter + ")"]):
            return True
        return bool(said) and said == _words(self.answer)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        from minivllm.sourcemap.locate import shown as place

        return {
            "id": self.id,
            "question": self.text,
            "choices": list(self.choices),
            "answer": self.answer,
            "letter": self.letter or None,
            "why": self.why,
            "source": {"ours": place(self.ours), "vllm": vllm_place(self.ours)},
        }


def read_question(block: Block, filler: Filler, question_id: str) -> Question:
    """The question of an `ask` block, with the answer that the run gives.

    Raises:
        FactError: A part is missing, the run has no answer, or the answer is not among the choices.
    """
    parts: dict[str, list[str]] = {"text": []}
    choices: list[str] = []
    key = "text"
    for line in block.body.splitlines():
        head, colon, rest = line.partition(": ")
        if colon and head in _KEYS:
            key = head
            if key == "choice":
                choices.append(rest.strip())
                continue
            parts[key] = [rest.strip()]
        elif key == "choice":
            choices[-1] += " " + line.strip()
        else:
            parts[key].append(line.strip())
    missing = [name for name in ("answer", "why", "where") if name not in parts]
    if missing:
        raise FactError(f"question {question_id} has no line `{missing[0]}:`")
    filled = [filler.fill(choice).partition(" | ") for choice in choices]
    names = [name for name, _, _ in filled]
    answer = shown(filler.value(" ".join(parts["answer"])))
    if names and names.count(answer) != 1:
        raise FactError(f"question {question_id}: the run answers {answer!r}, once among {names}")
    told = tuple(words or name for name, _, words in filled)
    if told:
        answer = told[names.index(answer)]
    text, why = (filler.fill(" ".join(parts[name]).strip()) for name in ("text", "why"))
    return Question(question_id, text, told, answer, why, parts["where"][0].strip())


def vllm_place(ours: str) -> str | None:
    """Where vLLM has what a symbol of ours does; None if the source map says nothing."""
    from minivllm.sourcemap.rows import PINNED, rows

    found = [row.vllm.get(PINNED) for row in rows() if row.ours == ours]
    return next((symbol for symbol in found if symbol), None)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
