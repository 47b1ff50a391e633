"""The workloads are the ones that the notebook names, and equal on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from minivllm.bench.shapes import model_arguments, shape_names
from minivllm.bench.workloads import NAMED, Drawn, Workload, decode, notebook_batch, uneven
from minivllm.entrypoints.cli.bench_workloads import Sizes, choose_draws
from minivllm.models.config import from_folder


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return [(len(request.prompt), request.output_len) for request in workload.requests]


@pytest.mark.parametrize(
    ("name", "requests", "input_tokens", "output_tokens"),
    [
        ("W1", 256, 142_827, 133_966),
        ("W2", 1024, 1024 * 512, 1024 * 128),
        ("W4", 64, 64 * 4096, 64),
        ("W5", 256, 256 * 1856, 256 * 32),
    ],
)
def test_named_workloads_have_their_sizes(name: str, requests: int, input_tokens: int, output_tokens: int) -> None:
    workload = NAMED[name](0)
    assert len(workload.requests) == requests
    assert (workload.input_tokens, workload.output_tokens) == (input_tokens, output_tokens)


def test_the_batch_of_the_notebook() -> None:
    assert notebook_batch().input_tokens == 5775
    small = notebook_batch().in_vocabulary(200)
    assert max(max(request.prompt) for request in small.requests) < 200
    assert lengths(small) == lengths(notebook_batch())


@pytest.mark.parametrize("draw", [uneven, lambda repeat: decode(8, repeat), Drawn(5, (3, 9), (2, 4), 7, 10.0).draw])
def test_a_repeat_has_the_same_lengths_and_other_tokens(draw: object) -> None:
    first, again, other = draw(0), draw(0), draw(1)  # type: ignore[operator]
    assert first == again
    assert lengths(first) == lengths(other)
    assert [request.arrival for request in first.requests] == [request.arrival for request in other.requests]
    assert all(a.prompt != b.prompt for a, b in zip(first.requests, other.requests, strict=True))


def test_a_prefix_is_shared_and_what_follows_is_not() -> None:
    workload = Drawn(3, (4, 4), (1, 1), shared_prefix=6).draw()
    assert len({tuple(request.prompt[:6]) for request in workload.requests}) == 1
    assert len({tuple(request.prompt[6:]) for request in workload.requests}) == 3


def test_arrivals_follow_the_rate() -> None:
    workload = Drawn(2000, (1, 1), (1, 1), rate=50.0).draw()
    assert workload.requests[0].arrival == 0.0
    assert workload.requests[-1].arrival == pytest.approx(2000 / 50, rel=0.1)


def test_options_choose_and_cut() -> None:
    [draw] = choose_draws("throughput", "W1", Sizes([3], "16", "8"))
    assert [(n <= 16, out <= 8) for n, out in lengths(draw(0))] == [(True, True)] * 3
    assert [len(draw(0).requests) for draw in choose_draws("latency", "W3", Sizes(None, None, None))] == [1, 8, 64, 256]
    assert [len(draw(0).requests) for draw in choose_draws("latency", None, Sizes([2, 5], None, None))] == [2, 5]


@pytest.mark.parametrize(
    ("bench", "name", "sizes", "said"),
    [
        ("throughput", "W3", Sizes(None, None, None), "has no workload 'W3'; there are batch, W1"),
        ("latency", "w3", Sizes(None, None, None), "W3"),
        ("throughput", "W1", Sizes(None, None, None, rate=3.0), "--rate is for a workload of one's own"),
        ("throughput", None, Sizes(None, "8:4", None), "--input-len 8:4"),
        ("throughput", None, Sizes(None, "many", None), "expected a number"),
        ("throughput", None, Sizes(None, None, None, rate=0.0), "--rate must be a number above 0"),
        ("latency", None, Sizes(None, None, "1"), "--output-len 1: must be at least 2"),
    ],
)
def test_what_does_not_fit_is_said(bench: str, name: str | None, sizes: Sizes, said: str) -> None:
    with pytest.raises(typer.BadParameter) as error:
        choose_draws(bench, name, sizes)
    assert said in error.value.message


@pytest.mark.parametrize("name", shape_names())
def test_every_shape_is_a_model_that_can_be_run(name: str) -> None:
    arguments = model_arguments(name)
    assert arguments["load_format"] == "dummy"
    config = from_folder(Path(arguments["model"]))
    assert config.hidden_size % 64 == 0
    assert name in {"llama-3.1-8b", "llama-3.2-1b", "qwen2.5-1.5b", "qwen3-0.6b", "smollm2-135m"}
