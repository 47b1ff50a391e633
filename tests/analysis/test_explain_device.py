"""What a device's own clock and profiled steps tell, where a log has them."""

from __future__ import annotations

import pytest

from minivllm.analysis.explain import explain
from minivllm.analysis.explain_answer import Ask
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from tests.analysis.logs import changed, event_of, recorded

ASK = Ask(iteration=5, bytes_per_s=1e10, flops_per_s=1e11)
KERNELS = [["matmul", 142, 900_000, 400_000], ["norm", 57, 100_000, 100_000], ["aten::add", 9, 50_000, 0]]


def on_gpu(step: int = 5, profiled_at: int = 3) -> Log:
    """A recorded run as if its step had been one graph: 0.5 ms by the device's clock."""

    def as_graph(events: list[Event]) -> None:
        batch = event_of(events, "prepare_inputs", step).data
        batch.update(graph_mode="FULL", num_tokens_padded=8, graph_reason="2 decodes, padded to 8")
        forward = next(e for e in events if e.kind == "span" and e.step == step and e.data["name"] == "forward")
        forward.data = {"name": "replay", "device_ns": 500_000}
        forward.dur_ns = 20_000
        whole = next(e for e in events if e.kind == "span" and e.step == step and e.data["name"] == "step")
        whole.dur_ns = 800_000
        last = next(e for e in events if e.kind == "step.end" and e.step == profiled_at)
        profile = Event(last.seq, profiled_at, "worker", "kernels", data={"of": "replay", "kernels": KERNELS})
        events.insert(events.index(last), profile)

    log = changed(recorded("two-processes"), as_graph)
    log.header.device = "cuda"
    return log


def test_a_graphs_reason_and_its_kernels_are_told() -> None:
    answer = explain(on_gpu(), "graph", ASK)
    assert "in one graph (FULL): 2 decodes, padded to 8." in answer.answer
    assert answer.values["profiled"]["iteration"] == 3
    assert any("199 kernels of 2 kinds that one replay starts, 0.500 ms" in line for line in answer.more)
    table = next(table for table in answer.tables if table.title.startswith("kernels of the replay of iteration 3"))
    assert table.rows[0] == ("matmul", "142", "0.400 ms", "80%")


def test_the_floor_is_held_against_the_devices_own_time() -> None:
    ask = Ask(iteration=ASK.iteration, bytes_per_s=4e12, flops_per_s=7e14)
    answer = explain(on_gpu(), "roofline", ask)
    assert answer.values["device_phases_ms"] == {"replay": 0.5}
    assert answer.values["model_ms"] == answer.values["device_ms"] == 0.5
    assert answer.values["reached_gb_s"] == pytest.approx(answer.values["bytes"] / 0.5e6)
    assert any("The device took 0.500 ms" in line for line in answer.more)
    assert any("0.300 ms in the host's" in line for line in answer.more)
    assert "profiled" in answer.values


def test_a_profile_of_another_kind_of_step_tells_nothing() -> None:
    assert "profiled" not in explain(on_gpu(), "graph", Ask(iteration=4)).values
    answer = explain(recorded("two-processes"), "roofline", ASK)
    assert "device_ms" not in answer.values
    assert "profiled" not in answer.values
