"""Bad workload files: each mistake is one line that names the file, the place, the value and what would be right."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minivllm.scenarios.workload import WorkloadError, load_workload

GOOD: dict[str, Any] = {
    "name": "good",
    "config": {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "block_size": 4,
        "num_gpu_blocks": 50,
        "max_model_len": 64,
    },
    "requests": [
        {"id": "a", "arrival_step": 0, "prompt_token_ids": [1, 2, 3], "max_tokens": 4},
        {"id": "b", "arrival_step": 1, "prompt_token_ids": [4, 5], "max_tokens": 4},
    ],
}


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "w.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(WorkloadError) as error:
        load_workload(path, "fixed")
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(str(path)), "the file is named first"
    assert error.value.__cause__ is None, "no chain of errors behind the one line"
    return message.removeprefix(str(path))


def test_a_good_file_is_read(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, json.dumps(GOOD)), "fixed")
    assert workload.name == "good"
    assert [arrival.request.request_id for arrival in workload.arrivals] == ["a", "b"]
    assert [arrival.request.arrival_time for arrival in workload.arrivals] == [0.0, 1001.0]
    assert workload.vllm_config.cache_config.num_gpu_blocks == 50


class TestNotAFileOfJson:
    def test_missing(self, tmp_path: Path) -> None:
        assert refusal(tmp_path / "nowhere.json") == ": cannot be read: No such file or directory"

    def test_a_folder(self, tmp_path: Path) -> None:
        assert "cannot be read" in refusal(tmp_path)

    def test_not_text(self, tmp_path: Path) -> None:
        assert "not a text file in UTF-8 (byte 0)" in refusal(write(tmp_path, b"\xff\xfe\x00"))

    def test_not_json_names_line_and_column(self, tmp_path: Path) -> None:
        message = refusal(write(tmp_path, '{\n  "config": {},\n  oops\n}'))
        assert message.startswith(", line 3, column 3: not valid JSON")

    def test_cut_off(self, tmp_path: Path) -> None:
        text = json.dumps(GOOD, indent=1)
        for length in (0, 1, len(text) // 2, len(text) - 1):
            message = refusal(write(tmp_path, text[:length]))
            assert re.match(r", line \d+, column \d+: not valid JSON", message)
            assert message.endswith("Is the file complete?")

    @pytest.mark.parametrize("content", ["[]", "3", "null", '"text"'])
    def test_not_an_object(self, tmp_path: Path, content: str) -> None:
        assert "a workload is a JSON object with 'config' and 'requests'" in refusal(write(tmp_path, content))


def change(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return apply


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return apply


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        # A key that is missing, or of another type.
        (drop("config"), ["config is missing; it must be an object (line 1)"]),
        (drop("requests"), ["requests is missing; it must be a list of objects (line 1)"]),
        (drop("config", "block_size"), ["config.block_size is missing; it must be a whole number (line 3)"]),
        (drop("requests", 1, "max_tokens"), ["requests[1].max_tokens is missing; it must be a whole number (line "]),
        (change("config", "block_size", to="16"), ['config.block_size must be a whole number, got "16" (line 6)']),
        (change("config", "policy", to="fair"), ['config.policy must be "fcfs" or "priority", got "fair" (line ']),
        (change("config", "watermark", to="x"), ['config.watermark must be a number, got "x"']),
        (change("config", "eos_token_id", to="x"), ['config.eos_token_id must be a whole number or null, got "x"']),
        (change("config", "async_scheduling", to=1), ["config.async_scheduling must be true or false, got 1"]),
        (change("config", to=[]), ["config must be an object, got [] (line 3)"]),
        (change("requests", to={}), ["requests must be a list of objects, got {}"]),
        (change("requests", 1, to=7), ["requests[1] must be an object, got 7"]),
        (change("requests", 1, "id", to=7), ["requests[1].id must be a text in quotes, got 7"]),
        (
            change("requests", 1, "prompt_token_ids", to=[1, "x"]),
            ['requests[1].prompt_token_ids[1] must be a whole number, got "x"'],
        ),
        (
            change("requests", 1, "stop_token_ids", to=[None]),
            ["requests[1].stop_token_ids[0] must be a whole number, got null"],
        ),
        (change("requests", 1, "prompt_token_ids", to="x" * 99), ["must be a list of whole numbers", "xxx..."]),
        (change("requests", 0, "max_tokens", to=1.5), ["requests[0].max_tokens must be a whole number, got 1.5"]),
        # A key that nobody knows.
        (change("config", "block_sizes", to=1), ["config.block_sizes", "did you mean 'block_size'?"]),
        (change("requests", 1, "max_token", to=1), ["requests[1].max_token", "did you mean 'max_tokens'?"]),
        (change("requests", 0, "zzz", to=1), ["requests[0].zzz", "known keys", "prompt_token_ids"]),
        # Values that cannot be.
        (change("requests", 1, "id", to="a"), ["requests[1]", "'a'", "used twice"]),
        (change("requests", 0, "prompt_token_ids", to=[]), ["'a'", "prompt_token_ids is empty", "at least one"]),
        (change("requests", 0, "prompt_token_ids", to=[1, -2]), ["'a'", "prompt_token_ids[1] is -2"]),
        (
            change("requests", 0, "prompt_token_ids", to=[1 << 40]),
            ["'a'", "prompt_token_ids[0] is 1099511627776; a token id is 0 to 2147483647"],
        ),
        (change("requests", 0, "stop_token_ids", to=[3, -1]), ["'a'", "stop_token_ids[1] is -1", "(line "]),
        (change("requests", 1, "arrival_step", to=-1), ["'b'", "arrival_step must be at least 0, got -1"]),
        (change("requests", 1, "abort_step", to=-1), ["'b'", "abort_step must be at least 0, got -1"]),
        (
            change("requests", 1, "abort_phase", to="late"),
            ['requests[1].abort_phase must be "before" or "mid", got "late"'],
        ),
        (change("requests", 1, "max_tokens", to=0), ["'b'", "max_tokens must be at least 1, got 0"]),
        (change("requests", 1, "min_tokens", to=-1), ["'b'", "min_tokens must be 0 or more, got -1"]),
        (change("requests", 1, "min_tokens", to=9), ["'b'", "min_tokens (9) must not exceed max_tokens (4)"]),
        (change("config", "block_size", to=0), ["block_size must be at least 1, got 0"]),
        (change("config", "num_gpu_blocks", to=1), ["num_gpu_blocks must be at least 2, got 1"]),
        (change("config", "max_num_seqs", to=0), ["max_num_seqs must be at least 1, got 0"]),
        (change("config", "max_model_len", to=-5), ["max_model_len must be at least 1, got -5"]),
        (change("config", "vocab_size", to=0), ["vocab_size must be at least 1, got 0"]),
        (change("config", "max_steps", to=0), ["max_steps must be at least 1, got 0"]),
        (change("config", "watermark", to=1.5), ["watermark must be in [0, 1), got 1.5"]),
        # Values that contradict each other.
        (change("config", "max_num_batched_tokens", to=3), ["max_num_batched_tokens (3)", "max_num_seqs (4)", "Raise"]),
        (
            lambda document: document["config"].update(enable_chunked_prefill=False, max_num_batched_tokens=32),
            ["without chunked prefill", "max_num_batched_tokens (32)", "max_model_len (64)", "enable chunked prefill"],
        ),
    ],
)
def test_a_mistake_is_told_with_its_place_and_the_remedy(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], parts: list[str]
) -> None:
    document = copy.deepcopy(GOOD)
    spoil(document)
    message = refusal(write(tmp_path, json.dumps(document, indent=1)))
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


def test_numbers_that_json_allows_and_a_workload_does_not(tmp_path: Path) -> None:
    for number in ("1e999", "NaN", "4.5", "true"):
        text = json.dumps(GOOD).replace('"block_size": 4', f'"block_size": {number}')
        assert "block_size" in refusal(write(tmp_path, text))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(GOOD, indent=1).replace('"block_size": 4', '"block_size": 4,\n  "block_size": 8')
    assert refusal(write(tmp_path, text)).startswith(", line 7: the key 'block_size' stands twice")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"config":' * 100_000])
def test_brackets_without_end_are_told_in_plain_words(tmp_path: Path, text: str) -> None:
    assert "nested too deeply" in refusal(write(tmp_path, text))


@pytest.mark.parametrize("text", ["{}", "[]", "\n3"])
def test_a_file_that_is_no_workload_at_all_has_a_line(tmp_path: Path, text: str) -> None:
    assert re.search(r"\(line [12]\)$", refusal(write(tmp_path, text)))


def test_keys_beside_config_and_requests_are_remarks(tmp_path: Path) -> None:
    load_workload(write(tmp_path, json.dumps({**GOOD, "remark": "from a bug report"})), "fixed")
