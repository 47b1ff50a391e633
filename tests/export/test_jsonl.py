"""A log that is exported is the same log, plain, and with an index that leads to its keyframes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from minivllm.export.jsonl import log_lines
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.trace.reader import Log, read_log, read_window
from tests.trace.workloads import simulated_log, workload_of

SCENARIOS = [scenario.name for scenario in all_scenarios()]


def long_log(name: str, tokens: int = 200) -> Path:
    """A run of one request, an iteration for each of its tokens."""
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "block_size": 4, "num_gpu_blocks": tokens // 4 + 8}
    request = {"id": "A", "arrival_step": 0, "prompt_token_ids": [1, 2, 3], "max_tokens": tokens}
    config = {**limits, "max_model_len": tokens + 16}
    return simulated_log(workload_of({"name": "long", "config": config, "requests": [request]}), name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_is_the_log_that_was_recorded(name: str) -> None:
    path = get_scenario(name).log_path
    assert b"".join(log_lines(read_log(path))) == gzip.decompress(path.read_bytes())


def test_its_index_leads_to_its_keyframes(tmp_path: Path) -> None:
    packed, plain = long_log("run.jsonl.gz"), tmp_path / "plain.jsonl"
    plain.write_bytes(b"".join(log_lines(read_log(packed))))
    keyframes = [event.step for event in read_log(packed).events if event.kind == "keyframe"]
    assert keyframes
    assert plain.read_bytes() == long_log("run.jsonl").read_bytes(), "as if it had been recorded without compression"
    window, same = (
        read_window(plain, keyframes[-1] + 1, keyframes[-1] + 3),
        read_window(packed, keyframes[-1] + 1, keyframes[-1] + 3),
    )
    assert (window.events, window.start) == (same.events, same.start)


def test_a_log_that_was_cut_off_stays_cut_off(tmp_path: Path) -> None:
    log = read_log(get_scenario("hello").log_path)
    cut = Log(log.header, log.events[:20], truncated=True)
    path = tmp_path / "cut.jsonl"
    path.write_bytes(b"".join(log_lines(cut)))
    assert read_log(path).truncated
    assert len(read_log(path).events) == 20


def test_a_window_is_no_log() -> None:
    with pytest.raises(ValueError, match="give a whole one"):
        list(log_lines(read_window(get_scenario("hello").log_path, 3, 5)))
