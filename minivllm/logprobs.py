"""Owns the form in which callers get scores. Upstream: vllm/logprobs.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass(slots=True)
class Logprob:
    """The score of one token at one position.

    Attributes:
        logprob: Its log probability (or its logit: `logprobs_mode`).
        rank: Its place among all tokens; 1 is the most likely.
        decoded_token: Its text; None without a tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# By token id; the token that stands at the position comes first.
LogprobsOnePosition = dict[int, Logprob]


@dataclass(slots=True)
class FlatLogprobs(Sequence[LogprobsOnePosition]):
    """The scores of many positions in six long lists, where a list of dictionaries would be many small objects.

    It reads like that list: `flat[3]` makes the dictionary of position 3 (an empty one where nothing is known).
    Upstream: vllm/logprobs.py::FlatLogprobs.

    Attributes:
        start_indices, end_indices: Where each position's entries are in the other lists.
        token_ids, logprobs, ranks, decoded_tokens: The entries, position after position.
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, position: LogprobsOnePosition | None) -> None:
        """Add a position; None for one of which nothing is known."""
        entries = (position or {}).values()
        self.append_fast(
            list(position or {}),
            [entry.logprob for entry in entries],
            [entry.rank for entry in entries],
            [entry.decoded_token for entry in entries],
        )

    def append_fast(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        ranks: Sequence[int | None],
        decoded_tokens: Sequence[str | None],
    ) -> None:
        """Add a position, entry by entry. A token that comes twice, as itself and among the likeliest, stays twice."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)
        self.decoded_tokens.extend(decoded_tokens)
        self.end_indices.append(len(self.token_ids))

    def extend(self, positions: Iterable[LogprobsOnePosition | None]) -> None:
        """Add several positions."""
        if isinstance(positions, FlatLogprobs):
            for place in range(len(positions)):
                self._append_from(positions, place)
        else:
            for position in positions:
                self.append(position)

    def _append_from(self, other: FlatLogprobs, place: int) -> None:
        entries = slice(other.start_indices[place], other.end_indices[place])
        self.append_fast(
            other.token_ids[entries], other.logprobs[entries], other.ranks[entries], other.decoded_tokens[entries]
        )

    def __add__(self, others: Iterable[LogprobsOnePosition | None]) -> FlatLogprobs:
        together = self[:]
        together.extend(others)
        return together

    def __len__(self) -> int:
        return len(self.start_indices)

    def __iter__(self) -> Iterator[LogprobsOnePosition]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs:
        if isinstance(index, slice):
            part = FlatLogprobs()
            for place in range(*index.indices(len(self))):
                part._append_from(self, place)
            return part
        return {
            self.token_ids[entry]: Logprob(self.logprobs[entry], self.ranks[entry], self.decoded_tokens[entry])
            for entry in range(self.start_indices[index], self.end_indices[index])
        }


SampleLogprobs = list[LogprobsOnePosition] | FlatLogprobs
# Nothing comes before the first token of a prompt, so nothing is known of it: None.
PromptLogprobs = list[LogprobsOnePosition | None] | FlatLogprobs
