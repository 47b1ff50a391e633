"""Owns the question "why": which answer it asks for, and when the thing happened that is asked about."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.analysis.answer import Answer
from minivllm.analysis.moments import moments
from minivllm.analysis.why_ended import finished
from minivllm.analysis.why_no_hit import no_hit
from minivllm.analysis.why_waiting import not_scheduled, partial, preempted, waited
from minivllm.analysis.words_why import WHY_WORDS
from minivllm.maps.wording import Words
from minivllm.trace.reader import Log

QUESTIONS: dict[str, Callable[[Log, str, int | None, Words], Answer]] = {
    "not-scheduled": not_scheduled,
    "preempted": preempted,
    "no-hit": no_hit,
    "waited": waited,
    "partial": partial,
    "finished": finished,
}


def why(log: Log, request: str, question: str | None = None, iteration: int | None = None, lang: str = "en") -> Answer:
    """Answer a question about a request.

    Args:
        log: The run.
        request: Its id, one that the log knows.
        question: One of QUESTIONS; None for the one that the request's life, or that iteration, raises.
        iteration: When; None for the last time that it happened.
        lang: "en" or "zh".

    Raises:
        CannotKnowError: The log does not hold what the answer rests on.
        ValueError: It did not happen (in that iteration).
    """
    asked = question or _question(log, request, iteration)
    try:
        return QUESTIONS[asked](log, request, iteration, Words(lang, WHY_WORDS))
    except ValueError as error:
        if question is not None or iteration is None or asked != "finished":
            raise
        nothing = f"nothing kept {request} from going on in iteration {iteration}, so there is nothing to ask"
        raise type(error)(f"{nothing}: {error}") from None


def _question(log: Log, request: str, iteration: int | None) -> str:
    """What there is to ask: what kept it from going on, else how it ended."""
    for name in ("preempted", "not-scheduled", "partial"):
        found = moments(log, request, name)
        if found and (iteration is None or iteration in found):
            return name
    return "finished"
