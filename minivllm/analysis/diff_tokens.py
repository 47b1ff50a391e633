"""Owns comparing what each request of two runs said, and what the model thought before it said it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.diff import First, token_position
from minivllm.analysis.diff_numbers import RunNumbers
from minivllm.trace.reader import Log

# Tokens on each side of the first one that differs.
_AROUND = 4


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """Where a request's output differs.

    Attributes:
        request: Whose.
        position: Of the first output token that differs.
        a, b: The tokens there; None where an output has ended.
        text_a, text_b: The text from a few tokens before it on; None if the log has no texts.
    """

    request: str
    position: int
    a: int | None
    b: int | None
    text_a: str | None
    text_b: str | None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def token_differences(a: RunNumbers, b: RunNumbers) -> list[TokenDifference]:
    """The first position at which each request of both runs differs, in order of arrival."""
    found = []
    for request, ours in a.requests.items():
        theirs = b.requests.get(request)
        position = None if theirs is None else token_position(ours.output, theirs.output)
        if theirs is None or position is None:
            continue
        tokens = [run.output[position] if position < len(run.output) else None for run in (ours, theirs)]
        texts = [_around(run.logged_text, position) if run.logged_text else None for run in (ours, theirs)]
        found.append(TokenDifference(request, position, tokens[0], tokens[1], texts[0], texts[1]))
    return found


def _around(texts: list[str], position: int) -> str:
    start = max(position - _AROUND, 0)
    return ("…" if start else "") + "".join(texts[start : position + _AROUND])


@dataclass(frozen=True, slots=True)
class LogitsDifference:
    """How a request's logits differ.

    Attributes:
        request: Whose.
        rows: Rows of logits that both runs have, and how many of them are not the same to the last bit.
        differing: How many of them differ.
        first: Number of the first one that differs, counted in what the request sampled; None if none does.
        iteration: When the first run computed it.
        largest: Largest difference among the likeliest tokens that both name, in any row up to the first at which the
            likeliest token is another.
        flipped: The first row in which the likeliest token is another; None if it is the same in all.
        a, b: The likeliest tokens of the first row that differs, with their logits.
    """

    request: str
    rows: int
    differing: int
    first: int | None
    iteration: int | None
    largest: float
    flipped: int | None
    a: list[list[float]] | None
    b: list[list[float]] | None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def logits_differences(a: Log, b: Log, names: tuple[str, str] = ("A", "B")) -> list[LogitsDifference]:
    """Compare the logits of two runs, request by request.

    Raises:
        CannotKnowError: A log holds none.
    """
    rows_a, rows_b = _rows(a), _rows(b)
    missing = [name for name, rows in zip(names, (rows_a, rows_b), strict=True) if not rows]
    if missing:
        lacks = " and ".join(missing)
        raise CannotKnowError(
            f"the log cannot say: {lacks} {'holds' if len(missing) == 1 else 'hold'} no logits; record them with: "
            "minivllm trace … --logits --out LOG"
        )
    return [_compared(request, rows, rows_b[request]) for request, rows in rows_a.items() if request in rows_b]


def _rows(log: Log) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """The rows of logits of each request, in the order in which it sampled: (iteration, summary)."""
    rows: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for event in log.events:
        if event.kind == "logits" and event.request is not None:
            rows.setdefault(event.request, []).append((event.step, event.data))
    return rows


def _compared(
    request: str, rows_a: list[tuple[int, dict[str, Any]]], rows_b: list[tuple[int, dict[str, Any]]]
) -> LogitsDifference:
    pairs = [(step, x, y) for (step, x), (_, y) in zip(rows_a, rows_b, strict=False)]
    differing = [n for n, (_, x, y) in enumerate(pairs) if x["checksum"] != y["checksum"]]
    if not differing:
        return LogitsDifference(request, len(pairs), 0, None, None, 0.0, None, None, None)
    flipped = next((n for n in differing if pairs[n][1]["top"][0][0] != pairs[n][2]["top"][0][0]), None)
    # Beyond the first other token the two say different things, and their logits have nothing to do with each other.
    comparable = [n for n in differing if flipped is None or n <= flipped]
    largest = max(_distance(pairs[n][1]["top"], pairs[n][2]["top"]) for n in comparable)
    step, x, y = pairs[differing[0]]
    return LogitsDifference(
        request, len(pairs), len(differing), differing[0], step, largest, flipped, x["top"], y["top"]
    )


def _distance(a: list[list[float]], b: list[list[float]]) -> float:
    of_b = {int(token): logit for token, logit in b}
    return max((abs(logit - of_b[int(token)]) for token, logit in a if int(token) in of_b), default=0.0)


def first_logits(differences: list[LogitsDifference]) -> First | None:
    """The first row of logits, by iteration of the first run, that differs."""
    differing = [d for d in differences if d.iteration is not None]
    if not differing:
        return None
    first = min(differing, key=lambda d: d.iteration or 0)
    more = {"request": first.request, "position": first.first}
    return First(first.iteration or 0, "logits", first.a, first.b, more)
