"""Text that comes in pieces, characters that take several tokens, and stop strings that are never half sent."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.exercises.bench import Bench, Run

_SMILE = "a🙂b"
_WORDS = {1: " Once", 2: " upon", 3: " a", 4: " time"}


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run("stop-strings"), bench.run("utf8-split")]


def _bytes(ids: list[int]) -> str:
    """Each token is a byte."""
    return bytes(ids).decode("utf-8", "replace")


def _words(ids: list[int]) -> str:
    """Each token is a word with a space before it, which the first one of a text loses."""
    return "".join(_WORDS[token] for token in ids).removeprefix(" ")


def _sent(bench: Bench, decode: Callable[[list[int]], str], prompt: list[int], tokens: list[int]) -> tuple[str, list]:
    stream = bench.call("TextStream", decode, prompt, text=f"TextStream(decode, {prompt})").value
    pieces = []
    for place in range(len(tokens)):
        text = f"TextStream(decode, {prompt}), then step for each of {tokens[: place + 1]}"
        pieces.append(bench.call("", stream.step, tokens[place], text=text).value)
    return f"TextStream(decode, {prompt}), then step for each of {tokens}", pieces


def test_text_comes_at_once(bench: Bench) -> None:
    """A token that is whole characters gives its text at once."""
    text, pieces = _sent(bench, _bytes, list(b"Hi"), list(b" you"))
    bench.same(text, pieces, [" ", "y", "o", "u"])


def test_a_character_in_pieces_waits(bench: Bench) -> None:
    """A character made of four tokens comes with the fourth."""
    text, pieces = _sent(bench, _bytes, list(b"x"), list(_SMILE.encode()))
    bench.same(text, pieces, ["a", "", "", "", "🙂", "b"])


def test_a_token_is_read_in_its_context(bench: Bench) -> None:
    """A token's space is not lost because it is decoded alone."""
    text, pieces = _sent(bench, _words, [1], [2, 3, 4])
    bench.same(f"{text}   1: ' Once', 2: ' upon', 3: ' a', 4: ' time'", pieces, [" upon", " a", " time"])


def test_a_long_text_is_not_decoded_again(bench: Bench) -> None:
    """However long the text is, decode gets a short window."""
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return _bytes(ids)

    text, pieces = _sent(bench, decode, list(b"x" * 300), list(b"abcdefghij" * 10))
    bench.same(text[:40] + "... (300 tokens), then 100 steps; the text", "".join(pieces), "abcdefghij" * 10)
    got = "at most 20" if longest <= 20 else f"{longest} at once"
    bench.same(text[:40] + "...; how many tokens decode got", got, "at most 20")


def test_nothing_of_a_stop_string_is_sent(bench: Bench) -> None:
    """All but one character of the longest stop string are kept back."""
    for text, stop, expected in (
        ("the pigeon", ["pigeon and"], 1),
        ("the pigeon", ["."], 10),
        ("the pigeon", ["ab", "abcd"], 7),
        ("th", ["pigeon and"], 0),
        ("", ["x"], 0),
    ):
        bench.call("sendable", text, stop, False).gives(expected)


def test_at_the_end_everything_is_sent(bench: Bench) -> None:
    """At the end, and without stop strings, everything is sent."""
    bench.call("sendable", "the pigeon", ["pigeon and"], True).gives(10)
    bench.call("sendable", "the pigeon", [], False).gives(10)


def test_the_engine_holds_back(bench: Bench) -> None:
    """In the engine: a caller with a stop string gets every piece when it always did."""
    _same_texts(bench, bench.run("stop-strings"))


def test_the_engine_sends_whole_characters(bench: Bench) -> None:
    """In the engine: a smile of four tokens, and Chinese of eighteen."""
    _same_texts(bench, bench.run("utf8-split"))


def _deltas(run: Run) -> dict[tuple[int, str | None], str]:
    """What was sent, by iteration and request."""
    return {(e.step, e.request): e.data["delta"] for e in run.log.events if e.kind == "output.text"}


def _same_texts(bench: Bench, run: Run) -> None:
    expected, got = _deltas(bench.reference(run)), _deltas(run)
    for key in sorted(expected.keys() | got.keys(), key=str):
        if got.get(key) != expected.get(key):
            step, request = key
            call = f"{run.call}, iteration {step}: text sent to {request}"
            told = {"call": call, "expected": repr(expected.get(key)), "got": repr(got.get(key))}
            raise bench.wrong(run, step, "Another piece of text.", request=request, **told)
    bench.sound(run)
    bench.same_plans(run)
