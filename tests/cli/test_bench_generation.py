"""`bench throughput` and `bench latency` say what was run, on what, and what the machine allows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minivllm.bench.generation import Engine
from tests.cli.conftest import Run


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"minivllm could not be run with .*: minivllm.*no-such-model"):
        Engine("minivllm", Path(sys.executable), {"model": "no-such-model", "dtype": "float32"})
    with pytest.raises(ValueError, match="cannot be run: Permission denied"):
        Engine("vllm", tmp_path, {"model": "any", "dtype": "float32"})


def test_a_peer_that_is_not_there_is_lacking(run: Run) -> None:
    ended = run("bench", "latency", "--vllm-python", "/no/such/python")
    assert ended.code == 3
    assert ended.error.startswith("--vllm-python /no/such/python: there is no such program")


SMALL = ("--repeats", "2", "--input-len", "6", "--output-len", "4", "--bandwidth-gb-s", "10", "--tflops", "0.1")


@pytest.mark.parametrize(
    ("bench", "figure", "sizes"),
    [
        ("throughput", "output_tokens_per_s", ("--requests", "3", "--shared-prefix", "4", "--rate", "1000")),
        ("latency", "decode_tokens_per_s", ("--requests", "2")),
    ],
)
def test_json(run: Run, bench: str, figure: str, sizes: tuple[str, ...], tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    document = run("bench", bench, *SMALL, *sizes, "--trace", log, "--json").json
    assert document["bench"] == bench
    assert document["machine"].keys() == {"processor", "cores", "python", "minivllm"}
    (result,), (floor,) = document["results"], document["floor"]
    assert result[figure]["min"] <= result[figure]["median"] <= result[figure]["max"]
    assert result["host_ms"]["median"] > 0
    told = result["breakdown"]
    assert told["floor_s"] + told["beyond_floor_s"] + told["host_s"] == pytest.approx(told["seconds"])
    assert (floor["read_gb_per_s"], floor["multiply_gflops"], floor["are_given"]) == (10.0, 100.0, True)
    assert floor[figure] > 0
    assert result["trace"]["failures"] == {}
    assert result["trace"]["bytes"] == log.stat().st_size
    roofline = run("explain", "roofline", "--log", log, "--bandwidth-gb-s", "10", "--tflops", "0.1", "--json").json
    assert roofline["result"]["floor_ms"] > 0
    if bench == "throughput":
        assert result["trace"]["overhead"] > -1
        assert result["input_tokens"] == 3 * (4 + 6)
        assert floor["seconds"] == told["floor_s"]
        assert 0 < result["time_to_first_token_ms"]["median"] <= result["slowest_first_token_ms"]["max"]


def test_a_shape_runs_with_random_weights(run: Run) -> None:
    command = (
        "bench",
        "throughput",
        "--model",
        "smollm2-135m",
        "--requests",
        "1",
        "--input-len",
        "4",
        "--repeats",
        "1",
    )
    out = run(*command, "--output-len", "2", "--bandwidth-gb-s", "10", "--tflops", "0.1").out
    assert "drawn, 1" in out
    assert "the floor of its steps" in out
    assert "launched kernel by kernel (NONE)" in out


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("throughput", "--workload", "W9"), 2, "there are batch, W1, W2"),
        (("latency", "--tflops", "1"), 2, "belong together"),
        (("latency", "--trace", "x.jsonl", "--engine-arg", "multiprocess=true"), 2, "leave multiprocess out"),
        (("latency", "--workload", "W3", "--trace", "x.jsonl"), 2, "--trace is for one workload"),
        (("latency", "--engine-arg", "async_scheduling"), 2, "expected NAME=VALUE"),
        (("latency", "--engine-arg", "max_seqs=3", "--bandwidth-gb-s", "1", "--tflops", "1"), 1, "max_seqs"),
    ],
)
def test_mistakes_are_one_line(run: Run, options: tuple[str, ...], code: int, said: str) -> None:
    ended = run("bench", *options)
    assert ended.code == code
    assert said in ended.error
