"""Values beyond what can be counted, drawn or written get one line with the bound or the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

# Command line, exit code, what the line must name.
BEYOND: dict[str, tuple[list[str], int, list[str]]] = {
    "more requests than can be counted": (
        ["trace", "a", "--max-num-seqs", "9" * 20],
        1,
        ["max_num_seqs must be at most 2147483647, got 999"],
    ),
    "more columns than a screen has": (["trace", "a", "--width", "100000000"], 2, ["--width", "equal to 1000"]),
    "biases with texts for keys": (
        ["generate", "a", "--sampling", '{"logit_bias": {"x": 1}}'],
        1,
        ["logit_bias must have token ids for keys, got {'x': 1}"],
    ),
    "a picture of points": (["map", "plan", "-s", "hello", "-o", "x.png"], 2, ["x.png", "take .svg or .html"]),
    "no name of a model to look at": (["model", "info", ""], 1, ["no model ''", "minivllm model list"]),
    "a file where a folder should be": (
        ["exercise", "start", "block-hash", "--dir", __file__],
        1,
        ["File exists; a file has that name; name another one"],
    ),
    "a full disk for a log": (["trace", "a", "--out", "/dev/full"], 1, ["/dev/full: No space left", "(--out)"]),
    "a full disk": (
        ["export", "html", "-s", "hello", "-o", "/dev/full"],
        1,
        ["/dev/full: No space left on device; make room"],
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_beyond_a_bound_is_told_in_one_line(run: Run, name: str) -> None:
    args, code, named = BEYOND[name]
    ended = run(*args)
    assert (ended.code, ended.out) == (code, "")
    assert ended.error.count("room") <= 1, "one remedy is enough"
    for words in named:
        assert words in ended.error
    assert not list(Path().iterdir()), "nothing is left behind"
