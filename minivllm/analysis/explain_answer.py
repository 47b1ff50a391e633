"""Owns what an explanation is: a formula, this run's numbers in it, its result, and where the rule stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.words_explain import EXPLAIN_WORDS
from minivllm.maps.wording import Words
from minivllm.trace.events import Event
from minivllm.trace.reader import Log


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked beside the topic.

    Attributes:
        request: About whom; None leaves it to the topic.
        pos: Which position of its sequence.
        iteration: When; None leaves it to the topic.
        bytes_per_s, flops_per_s: What the machine can do at best, if it is known.
        lang: Language of the answer: "en" or "zh".
    """

    request: str | None = None
    pos: int | None = None
    iteration: int | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    lang: str = "en"

    def words(self) -> Words:
        """The sentences of its language."""
        return Words(self.lang, EXPLAIN_WORDS)


@dataclass(slots=True)
class Table:
    """Rows of an explanation. Numbers stand at the right, but for the columns whose places are in `at_left`."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    at_left: tuple[int, ...] = ()


@dataclass(slots=True)
class Explanation:
    """How one number came about.

    Attributes:
        topic: What it is about.
        answer: In a sentence.
        formula: With names.
        filled: With this run's numbers.
        values: The numbers, by the names of the formula.
        result: What comes out.
        request, iteration: About whom, and when, if it is about one.
        tables: The parts, line by line.
        more: Further sentences.
        ours, vllm: Where the rule stands.
        hint: The next useful command, without the log's option.
    """

    topic: str
    answer: str
    formula: str
    filled: str
    values: dict[str, Any]
    result: Any
    ours: str
    vllm: str
    request: str | None = None
    iteration: int | None = None
    tables: list[Table] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        from minivllm.sourcemap.locate import shown

        return {
            "topic": self.topic,
            "request": self.request,
            "iteration": self.iteration,
            "answer": self.answer,
            "formula": self.formula,
            "filled": self.filled,
            "values": self.values,
            "result": self.result,
            "tables": [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in self.tables],
            "more": self.more,
            "source": {"ours": shown(self.ours), "vllm": self.vllm},
        }


def plans(log: Log) -> list[Event]:
    """All plans. Raises CannotKnowError if the log holds none."""
    found = [e for e in log.events if e.kind == "schedule" and (log.window is None or e.step <= log.window[1])]
    if not found:
        raise CannotKnowError("the log cannot say: it does not hold any plan (schedule)")
    return found


def plan_at(log: Log, iteration: int) -> Event:
    """The plan of an iteration.

    Raises:
        CannotKnowError: The log has lost it.
        ValueError: The engine had nothing to plan then.
    """
    found = next((e for e in plans(log) if e.step == iteration), None)
    if found is None:
        if any(e.kind == "step.idle" and e.step == iteration for e in log.events):
            raise ValueError(f"iteration {iteration} planned nothing: no request could run")
        raise CannotKnowError(f"the log cannot say: it does not hold the plan (schedule) of iteration {iteration}")
    return found


def busiest(log: Log, request: str | None = None) -> int:
    """The iteration with the most scheduled tokens (of those in which a request ran); the first of several.

    Raises:
        ValueError: The request never ran.
    """
    found = [e for e in plans(log) if request is None or request in dict(e.data["scheduled"])]
    if not found:
        raise ValueError(f"{request} was never scheduled in this run")
    return max(found, key=lambda e: (sum(n for _, n in e.data["scheduled"]), -e.step)).step


def arrival(log: Log, request: str) -> dict[str, Any]:
    """The data of a request's arrival. Raises CannotKnowError if the log does not hold it."""
    for event in log.events:
        if event.kind == "request.arrived" and event.request == request:
            return event.data
    raise CannotKnowError(f"the log cannot say: it does not hold the arrival (request.arrived) of {request}")


def settings(log: Log, part: str) -> dict[str, Any]:
    """Settings of the run. Raises CannotKnowError if the header has none."""
    found: dict[str, Any] | None = log.header.config.get(part)
    if not found:
        raise CannotKnowError(f"the log cannot say: its header holds no settings ({part})")
    return found


def shape_of(log: Log) -> dict[str, Any]:
    """The model's shape. Raises CannotKnowError if the header has none."""
    if not log.header.model_shape:
        why = "no model ran" if log.header.model == "simulated" else "record it anew"
        raise CannotKnowError(f"the log cannot say: its header holds no shape of a model (model_shape); {why}")
    return log.header.model_shape


def divided_up(count: int, size: int) -> int:
    """How many parts of a size hold so many."""
    return -(-count // size)


def blocks_text(blocks: list[int], limit: int = 3) -> str:
    """Blocks in few characters: "#3–#7, #9"; a dash for none."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    shown = [f"#{a}" if a == b else f"#{a}–#{b}" for a, b in runs[:limit]]
    return (", ".join(shown) + (" …" if len(runs) > limit else "")) or "–"


def summed(numbers: list[int], limit: int = 8) -> str:
    """The terms of a sum; of many the first ones and the last."""
    terms = [str(number) for number in numbers]
    if len(terms) > limit:
        terms = [*terms[: limit - 1], "…", terms[-1]]
    return " + ".join(terms) or "0"


def share_text(share: float) -> str:
    """A share of the whole: "23 %"; what is there but small is "<1 %"."""
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def size_text(num_bytes: float) -> str:
    """Bytes for a reader: "96 KiB", "19.8 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} {unit}" if num_bytes == int(num_bytes) else f"{num_bytes:.1f} {unit}"
