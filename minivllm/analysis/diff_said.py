"""Owns saying in plain sentences what two runs said, thought and made their callers feel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minivllm.analysis.answer import counted
from minivllm.analysis.diff_metric import MetricDiff
from minivllm.analysis.diff_numbers import RunNumbers
from minivllm.analysis.diff_tokens import LogitsDifference, token_differences

# Requests that one row of sentences names.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Sides:
    """What the two runs are called in a sentence: "in A"."""

    a: str = "in A"
    b: str = "in B"


def tokens_sentences(a: RunNumbers, b: RunNumbers, sides: Sides) -> Iterator[str]:
    """Whether requests were given the same tokens, and where not."""
    both = [i for i, entry in a.requests.items() if i in b.requests and entry.prompt == b.requests[i].prompt]
    differing = [d for d in token_differences(a, b) if d.request in both]
    if not differing:
        if any(a.requests[i].output for i in both):
            yield (
                f"All {counted(len(both), 'request')} of both runs get the same tokens."
                if len(both) > 1
                else (f"{both[0]} gets the same tokens in both runs.")
            )
        return
    for d in differing[:_NAMED]:
        sides_said = [
            f"{'its end' if token is None else f'token {token}'}{f' {text!r}' if text is not None else ''}"
            for token, text in ((d.a, d.text_a), (d.b, d.text_b))
        ]
        yield (
            f"{d.request} says something else from its output token {d.position} on: "
            f"{sides_said[0]} {sides.a}, {sides_said[1]} {sides.b}."
        )
    same = len(both) - len(differing)
    if len(differing) > _NAMED or same:
        more = f"{len(differing) - _NAMED} more differ; " if len(differing) > _NAMED else ""
        yield f"{more}{counted(same, 'request')} {'gets' if same == 1 else 'get'} the same tokens."


def logits_sentences(differences: list[LogitsDifference], sides: Sides) -> Iterator[str]:
    """How the logits differ, and whether that changed what was said."""
    if not differences:
        yield "The runs have no request in common whose logits both hold."
        return
    rows = sum(d.rows for d in differences)
    differing = [d for d in differences if d.differing]
    if not differing:
        yield f"All {counted(rows, 'row')} of logits are the same, to the last bit."
        return
    count = sum(d.differing for d in differing)
    largest = max(d.largest for d in differing)
    largest_said = f"the largest difference is {largest:.4g}" if largest else "no difference is as large as 0.0001"
    yield f"{count} of {counted(rows, 'row')} of logits are not the same to the last bit; {largest_said}."
    if any(d.a == d.b for d in differing):
        yield "A log keeps four digits of a logit, and a checksum of the whole row: what looks equal may differ behind."
    for d in differing[:_NAMED]:
        text = f"{d.request} differs from row {d.first} on (iteration {d.iteration} {sides.a})"
        if d.flipped is None:
            yield f"{text}; its likeliest token is the same in every row."
        else:
            yield f"{text}; in row {d.flipped} the likeliest token is another, and all that follows with it."
    if any(d.flipped is None for d in differing):
        yield (
            "A sum of floating-point numbers depends on the order of its terms, and the kernels choose it by the shape "
            "of the batch: chunks, prefix hits and batch sizes change the last bits, not the rule."
        )


def metric_sentences(metric: MetricDiff, sides: Sides) -> Iterator[str]:
    """How a metric differs."""

    def values(side: dict[str, float | None]) -> str:
        return ", ".join(f"{name} {value_of(side[name])}" for name in ("median", "p99", "max"))

    what = f"{metric.name} ({metric.meaning}, in {metric.unit})"
    yield f"{what}: {values(metric.a)} {sides.a}; {values(metric.b)} {sides.b}."
    changed = [(i, x, y) for i, (x, y) in metric.requests.items() if x != y and x is not None and y is not None]
    changed.sort(key=lambda change: -abs(change[1] - change[2]))
    for request, x, y in changed[:_NAMED]:
        yield f"{request}: at most {value_of(x)} {sides.a}, {value_of(y)} {sides.b}."


def value_of(value: float | None) -> str:
    """A number without digits that nobody needs."""
    return "–" if value is None else f"{value:.0f}" if value == int(value) else f"{value:.2f}"
