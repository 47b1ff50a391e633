"""Owns what an answer is: a sentence, the numbers of this run behind it, and where the rule stands in the source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minivllm.trace.events import Event


class CannotKnowError(ValueError):
    """The log does not hold what the answer would need; the message names it."""


@dataclass(slots=True)
class Answer:
    """The answer to one question.

    Attributes:
        request: Whom it is about.
        question: Which question.
        iteration: When.
        answer: In a sentence.
        reason: The rule, by its name.
        arithmetic: The numbers that the rule compared, by name.
        steps: The arithmetic line by line: (what, number, what is left or what it means).
        more: Further sentences.
        ours, vllm: Where the rule stands: our symbol, and vLLM 0.27.1's.
        hint: The next useful command, without the log's option.
    """

    request: str
    question: str
    iteration: int
    answer: str
    reason: str
    arithmetic: dict[str, Any] = field(default_factory=dict)
    steps: list[tuple[str, str, str]] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    ours: str = ""
    vllm: str = ""
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        from minivllm.sourcemap.locate import shown

        return {
            "request": self.request,
            "question": self.question,
            "iteration": self.iteration,
            "answer": self.answer,
            "reason": self.reason,
            "arithmetic": self.arithmetic,
            "steps": [list(step) for step in self.steps],
            "more": self.more,
            "source": {"ours": shown(self.ours), "vllm": self.vllm},
        }


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 block", "3 blocks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def needed(event: Event | None, what: str) -> Event:
    """An event that the answer rests on. Raises CannotKnowError if the log does not hold it."""
    if event is None:
        raise CannotKnowError(f"the log cannot say: it does not hold {what}")
    return event
