"""Owns what is run: which prompts, how much output, when each request arrives. Knows no engine and no torch.

A repeat changes the tokens and never the lengths, so that nothing of it is found in a prefix cache. Lengths and tokens
are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

# Tokens are drawn below this, whatever the model's vocabulary is.
_MOST_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its prompt's tokens, how many it gets, and when it arrives, in seconds from the start."""

    prompt: list[int]
    output_len: int
    arrival: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, and how they are sampled.

    Attributes:
        name: For a reader.
        requests: In the order of their arrival.
        temperature: 0 is greedy.
        prefix_caching: Whether the engine may keep prefixes, as it does unless told otherwise.
    """

    name: str
    requests: list[Request]
    temperature: float = 0.0
    prefix_caching: bool = True

    @property
    def input_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_len for request in self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return max(len(request.prompt) + request.output_len for request in self.requests)

    def first(self, count: int) -> Workload:
        """The first requests only."""
        return replace(self, requests=self.requests[:count])

    def cut(self, input_len: int | None, output_len: int | None) -> Workload:
        """The same with prompts and outputs that are no longer than this."""
        return replace(
            self,
            requests=[
                Request(
                    request.prompt[-input_len:] if input_len is not None else request.prompt,
                    request.output_len if output_len is None else min(output_len, request.output_len),
                    request.arrival,
                )
                for request in self.requests
            ],
        )

    def only_first_token(self) -> Workload:
        """The same, and each request gets one token."""
        return self.cut(None, 1)

    def in_vocabulary(self, vocab_size: int) -> Workload:
        """The same with tokens that a model has. Those of a small vocabulary repeat."""
        if max(max(request.prompt) for request in self.requests) < vocab_size:
            return self
        requests = [replace(r, prompt=[token % vocab_size for token in r.prompt]) for r in self.requests]
        return replace(self, requests=requests)

    def described(self) -> dict[str, int | float | str]:
        """For a report."""
        lengths, outputs = ([f(r) for r in self.requests] for f in (lambda r: len(r.prompt), lambda r: r.output_len))
        return {
            "workload": self.name,
            "requests": len(self.requests),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "prompt_len": _range(lengths),
            "output_len": _range(outputs),
            "temperature": self.temperature,
            "last_arrival_s": round(self.requests[-1].arrival, 3),
        }


def uneven(repeat: int = 0) -> Workload:
    """W1: 256 requests with prompts and outputs of 100 to 1024 tokens, drawn (all equally likely)."""
    rng = Random(0)
    prompts = []
    for _ in range(256):
        length = rng.randint(100, 1024)
        prompts.append(_tokens(rng, length))
    outputs = [rng.randint(100, 1024) for _ in prompts]
    if repeat:
        rng = Random(1000 + repeat)
        prompts = [_tokens(rng, len(prompt)) for prompt in prompts]
    return Workload("W1", list(map(Request, prompts, outputs)), temperature=0.6)


def burst(repeat: int = 0) -> Workload:
    """W2: 1024 requests at once, 512 prompt and 128 output tokens each."""
    rng = Random(2000 + repeat)
    return Workload("W2", [Request(_tokens(rng, 512), 128) for _ in range(1024)], temperature=0.6)


def decode(batch: int, repeat: int = 0, input_len: int = 32, output_len: int = 256) -> Workload:
    """W3: short prompts that decode together; what counts is the time of a step."""
    rng = Random(3000 + 97 * repeat + batch)
    return Workload("W3", [Request(_tokens(rng, input_len), output_len) for _ in range(batch)])


def prefill(repeat: int = 0) -> Workload:
    """W4: 64 prompts of 4096 tokens, and one token each."""
    rng = Random(4000 + repeat)
    return Workload("W4", [Request(_tokens(rng, 4096), 1) for _ in range(64)])


def shared_prefix(repeat: int = 0) -> Workload:
    """W5: 256 prompts that share 1792 tokens and have 64 of their own; 32 output tokens each."""
    prefix = _tokens(Random(5000 + repeat), 1792)
    rng = Random(6000 + repeat)
    return Workload("W5", [Request(prefix + _tokens(rng, 64), 32) for _ in range(256)])


def notebook_batch(repeat: int = 0, vocab_size: int = 49_000) -> Workload:
    """The batch of `docs/performance.md` on a CPU: 32 requests with 64 to 256 prompt tokens, 64 output tokens each."""
    prompts = _tokens_between(Random(100 * repeat), 32, (64, 256), vocab_size)
    return Workload("batch", [Request(prompt, 64) for prompt in prompts], prefix_caching=False)


def notebook_single(repeat: int = 0, vocab_size: int = 49_000) -> Workload:
    """One request there: 64 prompt tokens, then 128 more tokens after the first."""
    prompts = _tokens_between(Random(5 + 100 * repeat), 1, (64, 64), vocab_size)
    return Workload("single", [Request(prompt, 129) for prompt in prompts], prefix_caching=False)


NAMED: dict[str, Callable[[int], Workload]] = {
    "W1": uneven,
    "W2": burst,
    "W4": prefill,
    "W5": shared_prefix,
}
# Batches of W3.
BATCHES = (1, 8, 64, 256)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A workload of one's own.

    Attributes:
        requests: How many.
        input_len, output_len: Fewest and most tokens of a prompt and of an output.
        shared_prefix: Tokens that all prompts begin with, before their own.
        rate: Requests a second, at random moments (a Poisson process); None: all at once.
        temperature: 0 is greedy.
    """

    requests: int
    input_len: tuple[int, int]
    output_len: tuple[int, int]
    shared_prefix: int = 0
    rate: float | None = None
    temperature: float = 0.0

    def draw(self, repeat: int = 0) -> Workload:
        """Lengths and moments are always the same; only tokens are of the repeat."""
        lengths, tokens = Random(7000), Random(8000 + repeat)
        prefix = _tokens(tokens, self.shared_prefix)
        requests, now = [], 0.0
        for index in range(self.requests):
            if self.rate is not None and index:
                now += lengths.expovariate(self.rate)
            prompt = prefix + _tokens(tokens, lengths.randint(*self.input_len))
            requests.append(Request(prompt, lengths.randint(*self.output_len), now))
        return Workload("drawn", requests, self.temperature)


def _tokens(rng: Random, count: int) -> list[int]:
    return [rng.randint(0, _MOST_TOKENS) for _ in range(count)]


def _tokens_between(rng: Random, count: int, lengths: tuple[int, int], vocab_size: int) -> list[list[int]]:
    return [[rng.randrange(100, vocab_size) for _ in range(rng.randint(*lengths))] for _ in range(count)]


def _range(numbers: list[int]) -> str:
    return str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
