"""What is said to a GPU, and in which order, with a GPU's calls replaced by a list of them."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minivllm.kernels.triton_guard import HAS_TRITON
from minivllm.worker import staging
from minivllm.worker.cuda_graphs import CudaGraphs, StepShape
from minivllm.worker.staging import SampledTokens, StagedRows

CPU = torch.device("cpu")
CUDA: Any = SimpleNamespace(type="cuda")


class Event:
    """An event that writes down when it is recorded and waited for."""

    def __init__(self, calls: list[str], name: str) -> None:
        self._calls, self._name = calls, name

    def record(self) -> None:
        self._calls.append(f"record {self._name}")

    def synchronize(self) -> None:
        self._calls.append(f"wait for {self._name}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call of an event, a stream or a graph."""
    said: list[str] = []

    def event(device: torch.device) -> Event:
        number = sum(call.startswith("make") for call in said)
        said.append(f"make {number}")
        return Event(said, str(number))

    @contextmanager
    def stream(which: Any) -> Any:
        said.append("on the second stream")
        try:
            yield
        finally:
            said.append("back")

    monkeypatch.setattr(staging, "_event", event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: "main")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: said.append(f"set {stream}"))
    return said


def test_a_buffer_is_filled_again_only_when_its_last_copy_is_done(calls: list[str]) -> None:
    rows = StagedRows(1, 4, CPU)
    calls.clear()
    for step in range(4):
        rows.stage([[step]], padding=[0])
    waits = [f"{what} {i}" for i in (0, 1, 2, 0) for what in ("wait for", "record")]
    assert calls == waits


def test_tokens_leave_by_the_second_stream_behind_the_step_that_samples_them(calls: list[str]) -> None:
    copies = SampledTokens(4, CPU)
    copies._stream = SimpleNamespace(wait_stream=lambda stream: calls.append(f"the second waits for {stream}"))  # type: ignore[assignment]
    calls.clear()
    sampled = torch.tensor([5, 6, 7])
    copy = copies.start(sampled[:2])
    sampled.fill_(9)  # the next step
    assert calls == ["the second waits for main", "on the second stream", "record 0", "back"]
    assert (copy.tolist(), calls[-1]) == ([5, 6], "wait for 0")
    assert copy.tolist() == [5, 6], "it waits once"
    assert calls.count("wait for 0") == 1
    unread = [copies.start(torch.tensor([i])) for i in range(3)]
    assert "wait for 1" not in calls
    copies.start(torch.tensor([8]))
    assert calls.count("wait for 1") == 1, "its buffer is taken again: what was in it is kept"
    assert [each.tolist() for each in unread] == [[0], [1], [2]]


class Graph:
    """A graph that runs what was recorded as a name."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def replay(self) -> None:
        self._calls.append("replay")

    def pool(self) -> str:
        return "pool"


@pytest.fixture
def graphs(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    @contextmanager
    def record(graph: Graph, pool: Any) -> Any:
        calls.append(f"record in {pool}")
        yield

    def run(shape: StepShape) -> None:
        calls.append(f"run {shape.num_requests}")
        if shape.num_requests == 3 and calls[-2:][0].startswith("record"):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(calls))
    monkeypatch.setattr(torch.cuda, "graph", record)
    return CudaGraphs(run, CUDA)


def test_a_shape_runs_before_it_is_recorded_and_is_replayed_from_then_on(graphs: CudaGraphs, calls: list[str]) -> None:
    graphs.capture([StepShape(8, 8, 1), StepShape(2, 2, 1)])
    assert calls == ["run 8", "record in None", "run 8", "run 2", "record in pool", "run 2"]
    calls.clear()
    graphs.replay(StepShape(2, 2, 1))
    graphs.replay(StepShape(4, 4, 1))
    graphs.replay(StepShape(4, 4, 1))
    assert calls == ["replay", "run 4", "record in pool", "run 4", "replay"]
    assert (len(graphs), StepShape(4, 4, 1) in graphs) == (3, True)


def test_no_time_at_the_start_leaves_the_recording_for_later(graphs: CudaGraphs, calls: list[str]) -> None:
    graphs.capture([StepShape(8, 8, 1)], seconds=-1.0)
    assert not calls
    assert (
        graphs.why_not(StepShape(8, 8, 1)) == "the first of its shape is launched kernel by kernel, and recorded then"
    )
    graphs.replay(StepShape(8, 8, 1))
    assert graphs.why_not(StepShape(8, 8, 1)) is None


def test_what_cannot_be_recorded_is_launched_and_says_why(graphs: CudaGraphs, calls: list[str]) -> None:
    with pytest.warns(UserWarning, match="operation not permitted when stream is capturing; its steps are launched"):
        graphs.replay(StepShape(3, 3, 1))
    assert calls[-1] == "set main", "not the recording's own stream"
    calls.clear()
    graphs.replay(StepShape(3, 3, 1))
    assert calls == ["run 3"]
    assert graphs.why_not(StepShape(3, 3, 1)) == (
        "it could not be recorded: operation not permitted when stream is capturing"
    )


class Piece:
    """A graph that is recorded by hand."""

    def __init__(self, calls: list[str], fails: list[bool]) -> None:
        self._calls, self._fails = calls, fails

    def capture_begin(self, pool: str) -> None:
        self._calls.append(f"begin in {pool}")

    def capture_end(self) -> None:
        self._calls.append("end")
        if self._fails:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")
@pytest.mark.parametrize("fails", [[], [True]])
def test_a_piece_that_fails_is_ended_on_the_stream_on_which_it_began(
    fails: list[bool], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from minivllm.worker.piecewise_graphs import CudaRecorder, PiecewiseGraphs

    def forward(num_tokens: int, attention: Any, batch: Any) -> torch.Tensor:
        calls.append(f"run {num_tokens}")
        if calls[-2:][0].startswith("begin"):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory\nmore")
        return torch.zeros(num_tokens, 1)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Piece(calls, fails))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "second")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait for all"))
    attention: Any = SimpleNamespace(scales=None)
    graphs = PiecewiseGraphs(forward, torch.zeros, attention, CudaRecorder(CPU))
    graphs.run(4, None)
    assert calls == ["run 4"]
    calls.clear()
    with pytest.warns(UserWarning, match="4 tokens: it could not be recorded: CUDA out of memory"):
        graphs.run(4, None)
    assert calls == ["wait for all", "on the second stream", "begin in pool", "run 4", "end", "back", "run 4"]
    calls.clear()
    graphs.run(4, None)
    assert (calls, graphs.why_not(4)) == (["run 4"], "it could not be recorded: CUDA out of memory")
