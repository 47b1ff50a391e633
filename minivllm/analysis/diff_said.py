"""Owns saying in plain sentences what two runs said, thought and made their callers feel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minivllm.analysis.diff_metric import MetricDiff
from minivllm.analysis.diff_numbers import RunNumbers
from minivllm.analysis.diff_tokens import LogitsDifference, TokenDifference, token_differences
from minivllm.analysis.words_diff import DIFF_WORDS
from minivllm.maps.wording import Words

# Requests that one row of sentences names.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Sides:
    """What the two runs are called in a sentence: "in A"; and the language of the sentence."""

    a: str = "in A"
    b: str = "in B"
    lang: str = "en"

    def words(self) -> Words:
        """The sentences of its language."""
        return Words(self.lang, DIFF_WORDS)

    def both(self) -> dict[str, str]:
        """The names as values of a sentence."""
        return {"a": self.a, "b": self.b}


def sides_of(lang: str, a: str = "in_a", b: str = "in_b") -> Sides:
    """The sides in a language, by the names of their words."""
    words = Words(lang, DIFF_WORDS)
    return Sides(words(a), words(b), lang)


def tokens_sentences(a: RunNumbers, b: RunNumbers, sides: Sides) -> Iterator[str]:
    """Whether requests were given the same tokens, and where not."""
    words = sides.words()
    both = [i for i, entry in a.requests.items() if i in b.requests and entry.prompt == b.requests[i].prompt]
    differing = [d for d in token_differences(a, b) if d.request in both]
    if not differing:
        if any(a.requests[i].output for i in both):
            is_one = len(both) == 1
            yield words("one_same", request=both[0]) if is_one else words("all_same", count=len(both))
        return
    for d in differing[:_NAMED]:
        first, second = _said(d, words)
        yield words("says_else", request=d.request, position=d.position, first=first, second=second, **sides.both())
    same = len(both) - len(differing)
    if len(differing) > _NAMED or same:
        more = words("more_differ", count=len(differing) - _NAMED) if len(differing) > _NAMED else ""
        yield words("gets_same" if same == 1 else "get_same", more=more, count=same)


def _said(d: TokenDifference, words: Words) -> list[str]:
    """What each run said at a place where they differ."""
    told = []
    for token, text in ((d.a, d.text_a), (d.b, d.text_b)):
        said = words("its_end") if token is None else words("token", token=token)
        told.append(said if text is None else f"{said} {text!r}")
    return told


def logits_sentences(differences: list[LogitsDifference], sides: Sides) -> Iterator[str]:
    """How the logits differ, and whether that changed what was said."""
    words = sides.words()
    if not differences:
        yield words("no_logits")
        return
    rows = sum(d.rows for d in differences)
    differing = [d for d in differences if d.differing]
    if not differing:
        yield words("logits_same", rows=rows)
        return
    largest = max(d.largest for d in differing)
    said = words("largest", largest=f"{largest:.4g}") if largest else words("none_large")
    yield words("logits_differ", count=sum(d.differing for d in differing), rows=rows, largest=said)
    if any(d.a == d.b for d in differing):
        yield words("four_digits")
    for d in differing[:_NAMED]:
        where = {"request": d.request, "first": d.first, "step": d.iteration, "a": sides.a}
        yield words("differs_from", **where) if d.flipped is None else words("flips", **where, flipped=d.flipped)
    if any(d.flipped is None for d in differing):
        yield words("floating")


def metric_sentences(metric: MetricDiff, sides: Sides) -> Iterator[str]:
    """How a metric differs."""
    words = sides.words()

    def values(side: dict[str, float | None]) -> str:
        return ", ".join(f"{name} {value_of(side[name])}" for name in ("median", "p99", "max"))

    told = {"meaning": words(f"means_{metric.name}"), "unit": words(f"unit_{metric.unit}")}
    first, second = values(metric.a), values(metric.b)
    yield words("metric", name=metric.name, **told, first=first, second=second, **sides.both())
    changed = [(i, x, y) for i, (x, y) in metric.requests.items() if x != y and x is not None and y is not None]
    changed.sort(key=lambda change: -abs(change[1] - change[2]))
    for request, x, y in changed[:_NAMED]:
        yield words("metric_of", request=request, first=value_of(x), second=value_of(y), **sides.both())


def value_of(value: float | None) -> str:
    """A number without digits that nobody needs."""
    return "–" if value is None else f"{value:.0f}" if value == int(value) else f"{value:.2f}"
