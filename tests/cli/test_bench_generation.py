"""`bench throughput` and `bench latency` say what was run, on what, and what the machine allows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minivllm.bench.generation import Engine, workload
from tests.cli.conftest import Run


def test_the_batch_is_that_of_the_notebook() -> None:
    prompts = workload(0, 32, 64, 256)
    assert sum(map(len, prompts)) == 5775
    assert prompts == workload(0, 32, 64, 256)
    assert max(max(prompt) for prompt in workload(0, 32, 64, 256, vocab_size=200)) < 200


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"minivllm could not be run with .*: minivllm.*no-such-model"):
        Engine("minivllm", Path(sys.executable), "no-such-model", "float32")
    with pytest.raises(ValueError, match="cannot be run: Permission denied"):
        Engine("vllm", tmp_path, "any", "float32")


def test_a_peer_that_is_not_there_is_lacking(run: Run) -> None:
    ended = run("bench", "latency", "--vllm-python", "/no/such/python")
    assert ended.code == 3
    assert ended.error.startswith("--vllm-python /no/such/python: there is no such program")


@pytest.mark.parametrize("bench", ["throughput", "latency"])
def test_json(run: Run, bench: str) -> None:
    document = run("bench", bench, "--repeats", "1", "--json").json
    assert document["bench"] == bench
    assert document["machine"].keys() == {"processor", "cores", "python", "minivllm"}
    (result,), (floor,) = document["results"], document["floor"]
    figure = "output_tokens_per_s" if bench == "throughput" else "decode_tokens_per_s"
    assert result[figure]["median"] > 0
    assert floor[figure] > 0
    if bench == "throughput":
        assert 0 < result["host_ms"]["median"] < result["decode_step_ms"]["median"]
