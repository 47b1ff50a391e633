"""Owns what is left out of a picture of many requests: the first few are shown, all others are named in one line.

Data (JSON) is never folded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from minivllm.maps.wording import Words

# So many of one kind are told one by one; of more only the first few are.
_MOST_ALIKE = 6
_TOLD = 3
_MOST_NAMES = 4

_QUOTED = re.compile(r'["“].*["”]')
_BLOCKS = re.compile(r"#\d[\d#–, ]*(?: and \d+ more)?")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Folded:
    """Neighbours in a table that are not shown one by one."""

    entries: list[Any]


class Folding:
    """Folds what is said of the requests of one run.

    Args:
        requests: Ids in order of arrival.
        lang: Language of the sentences: "en" or "zh".
        keep: A request that somebody asked for: nothing of it is left out.
    """

    def __init__(self, requests: Sequence[str], lang: str = "en", keep: str | None = None) -> None:
        self._place = {request: place for place, request in enumerate(requests)}
        self._words = Words(lang)
        self._keep = keep
        # Longest first, so that R10 is never taken for R1.
        ids = sorted(map(re.escape, requests), key=len, reverse=True)
        self._any_request = re.compile(rf"(?<!\w)(?:{'|'.join(ids)})(?!\w)") if ids else None

    def sentences(self, sentences: Sequence[str]) -> list[str]:
        """A story in which no more than a few sentences differ in nothing but their request and its numbers."""
        alike: dict[str, list[int]] = {}
        for place, sentence in enumerate(sentences):
            if (kind := self._kind(sentence)) is not None:
                alike.setdefault(kind, []).append(place)
        after: dict[int, str] = {}
        left_out: set[int] = set()
        for places in alike.values():
            if len(places) > _MOST_ALIKE:
                names = [self._subject(sentences[place]) for place in places[_TOLD:]]
                after[places[_TOLD - 1]] = self._words("alike", count=len(names), names=self.names(names))
                left_out.update(places[_TOLD:])
        story: list[str] = []
        for place, sentence in enumerate(sentences):
            if place not in left_out:
                story.append(sentence)
            if place in after:
                story.append(after[place])
        return story

    def rows(self, entries: Sequence[Any], kind: Callable[[Any], Hashable], request: Callable[[Any], str]) -> list[Any]:
        """Entries of a table, in order; instead of many neighbours of one kind the first of them and a `Folded`."""
        runs: list[list[Any]] = []
        for entry in entries:
            is_kept = request(entry) == self._keep
            starts = not runs or is_kept or request(runs[-1][0]) == self._keep or kind(runs[-1][0]) != kind(entry)
            runs.append([entry]) if starts else runs[-1].append(entry)
        rows: list[Any] = []
        for run in runs:
            rows += run if len(run) <= _MOST_ALIKE else [*run[:_TOLD], Folded(run[_TOLD:])]
        return rows

    def names(self, requests: Sequence[str]) -> str:
        """Requests in few characters: those that arrived one after another as "R3–R63"."""
        runs: list[list[str]] = []
        for request in requests:
            if runs and self._place[request] == self._place[runs[-1][-1]] + 1:
                runs[-1].append(request)
            else:
                runs.append([request])
        shown = [run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:_MOST_NAMES]]
        return ", ".join([*shown, *(["…"] if len(runs) > _MOST_NAMES else [])])

    def _subject(self, sentence: str) -> str:
        found = self._any_request.search(sentence) if self._any_request else None
        return found[0] if found else ""

    def _kind(self, sentence: str) -> str | None:
        """The sentence without what is this request's own; None for one that is always told."""
        if self._any_request is None or not (named := self._any_request.findall(sentence)) or self._keep in named:
            return None
        bare = self._any_request.sub("@", _QUOTED.sub("''", sentence))
        return _NUMBER.sub("0", _BLOCKS.sub("#", bare))
