"""The process map says what crossed which boundary, and who waited for whom, and admits what a log cannot know."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from minivllm.maps.lifecycle import transitions
from minivllm.maps.process import in_order, messages_of, process_map
from minivllm.maps.render.mermaid import sequence_diagram, state_diagram
from minivllm.maps.render.process import ProcessRenderer
from minivllm.maps.tell_process import tell
from minivllm.trace.reader import Log, read_log
from tests.maps.hand_made import US, LogBuilder, gpu_log
from tests.trace.workloads import mixed_workload, simulated_log

WIDTHS = [40, 60, 80, 100, 120, 140, 160]


def logical_log(device: str = "cpu") -> Log:
    """One step of a log without clocks: R0 decodes, R1 enters."""
    builder = LogBuilder("logical", device)
    builder.step = 0
    builder.arrive("R1")
    builder.schedule([("R0", 1), ("R1", 3)], new=["R1"], running=["R0"])
    builder.add("worker", "prepare_inputs", data={"order": ["R0", "R1"]}, src="m:GPUModelRunner.prepare_inputs")
    builder.update({"R0": [5], "R1": [6]})
    builder.text("R0", 1)
    builder.text("R1", 1)
    return builder.log()


def drawn(log: Log, width: int, *, ascii_only: bool = False) -> str:
    process = process_map(log)
    out = io.StringIO()
    renderer = ProcessRenderer(process, log.header, Console(file=out, width=width), ascii_only=ascii_only)
    renderer.draw_header()
    for iteration in process["iterations"]:
        renderer.draw(iteration)
    return out.getvalue()


def told(log: Log, iteration: int) -> list[str]:
    process = process_map(log)
    entry = process["iterations"][iteration]
    return tell(process, entry, messages_of(process, entry), log.header)


def waits(log: Log, iteration: int) -> dict[tuple[str, str], int | None]:
    return {(w["process"], w["for"]): w["dur_ns"] for w in process_map(log)["iterations"][iteration]["waits"]}


def test_processes_have_their_pids_and_loops() -> None:
    processes = {entry["name"]: entry for entry in process_map(gpu_log().log())["processes"]}
    assert list(processes) == ["frontend", "engine_core", "worker", "device"]
    assert [entry["pid"] for entry in processes.values()] == [41, 42, 42, None]
    assert processes["engine_core"]["loops"] == ["run_busy_loop", "process_input_sockets"]


def test_messages_have_the_keys_of_the_contract() -> None:
    messages = process_map(gpu_log().log())["messages"]
    keys = {"iteration", "boundary", "channel", "from", "to", "type", "bytes", "requests", "send_ns", "recv_ns"}
    assert all(keys <= set(message) for message in messages)
    [first, *_] = [m for m in messages if m["type"] == "SchedulerOutput"]
    assert (first["boundary"], first["from"], first["to"], first["bytes"]) == (2, "engine_core", "worker", 1900)
    assert first["recv_ns"] - first["send_ns"] == US
    assert first["src"] == "minivllm.core.scheduler_output:SchedulerOutput"


def test_what_crossed_while_the_core_started_stands_with_the_first_iteration() -> None:
    builder = gpu_log()
    builder.step = -1
    builder.message(1, ("engine_core", "frontend"), "EngineCoreReadyResponse", 0, 1, 16, channel="zmq")
    log = builder.log()
    process = process_map(log)
    shown = [[m["type"] for m in messages_of(process, entry)] for entry in process["iterations"]]
    assert ["EngineCoreReadyResponse" in types for types in shown] == [True, False, False]
    assert "EngineCoreReadyResponse" in drawn(log, 120)


def test_who_waits_for_whom_is_the_time_between_its_own_work_and_what_comes() -> None:
    """The numbers stand in hand_made.gpu_step: all follow from its times."""
    found = waits(gpu_log().log(), 1)
    assert found[("engine_core", "worker")] == (3991 - 95) * US, "from the plan that it sent to the answer"
    assert found[("worker", "device")] == 3600 * US, "the sync"
    last_step_began, this_step_began, sync = 1000, 6000, 4320
    frontend_idle_since = last_step_began + 370 + sync + 260
    assert found[("frontend", "engine_core")] == (this_step_began + 3970 + 180 - frontend_idle_since) * US


def test_nobody_waits_while_it_works() -> None:
    builder = gpu_log(1)
    builder.span("engine_core", "schedule", 1200, 5000)  # a plan made ahead, while the worker's answer comes
    assert ("engine_core", "worker") not in waits(builder.log(), 0)


def test_a_log_without_clocks_tells_the_order_and_no_times() -> None:
    process = process_map(logical_log())
    assert process["clock"] == "logical"
    assert not process["recorded"]
    assert [(m["type"], m["boundary"], m["from"], m["to"]) for m in process["messages"]] == [
        ("EngineCoreRequest", 1, "frontend", "engine_core"),
        ("SchedulerOutput", 2, "engine_core", "worker"),
        ("ModelRunnerOutput", 2, "worker", "engine_core"),
        ("EngineCoreOutputs", 1, "engine_core", "frontend"),
    ]
    assert {message[key] for message in process["messages"] for key in ("bytes", "send_ns", "recv_ns")} == {None}
    assert waits(logical_log(), 0) == {("engine_core", "worker"): None, ("frontend", "engine_core"): None}
    assert any("keeps no clocks" in sentence for sentence in told(logical_log(), 0))
    assert " ms" not in drawn(logical_log(), 120)


def test_an_abort_while_the_model_runs_stands_before_its_output_is_committed() -> None:
    builder = LogBuilder("logical", "cpu")
    builder.step = 0
    builder.schedule([("R0", 1)])
    builder.add("worker", "prepare_inputs", data={"order": ["R0"]})
    builder.update({"R0": [5]})
    builder.add("frontend", "requests.aborted", data={"phase": "mid", "asked": ["R0"], "ended": ["R0"]})
    process = process_map(builder.log())
    [entry] = process["iterations"]
    order = [item.get("type") or item.get("name") for _, item in in_order(entry, messages_of(process, entry))]
    assert order.index("ModelRunnerOutput") < order.index("AbortRequests") < order.index("update_from_output")


def test_an_output_of_an_earlier_plan_is_told() -> None:
    builder = LogBuilder("logical", "cpu")
    builder.step = 4
    builder.schedule([("R0", 1)])
    builder.update({"R0": [5]}, update_of=3)
    assert any("was computed for the plan of iteration 3" in sentence for sentence in told(builder.log(), 0))
    assert not any("was computed for" in sentence for sentence in told(logical_log(), 0))


def test_without_clocks_nobody_waits_if_nobody_else_did_anything() -> None:
    builder = LogBuilder("logical", "cpu")
    builder.step = 0
    builder.arrive("R0")
    builder.update({"R0": [5]})
    assert waits(builder.log(), 0) == {}


def test_a_log_without_clocks_says_how_to_get_times() -> None:
    log = logical_log()
    assert not any("--fresh" in sentence for sentence in told(log, 0)), "prompts are not a scenario"
    log.header.scenario = "hello"
    assert any("minivllm map process -s hello --fresh" in sentence for sentence in told(log, 0))


def test_only_a_device_of_its_own_has_a_third_boundary() -> None:
    def crossings(device: str) -> list[str]:
        return [m["type"] for m in process_map(logical_log(device))["messages"] if m["boundary"] == 3]

    assert crossings("cpu") == []
    assert crossings("cuda") == ["inputs", "sampled ids"]


def test_a_simulated_run_has_no_worker_and_says_so() -> None:
    log = read_log(simulated_log(mixed_workload()))
    process = process_map(log)
    assert [entry["name"] for entry in process["processes"]] == ["frontend", "engine_core"]
    assert {message["boundary"] for message in process["messages"]} == {1}
    assert any("simulated" in sentence for sentence in told(log, 0))
    assert "worker" not in drawn(log, 120).replace("no worker", "")


def test_sentences_name_the_longest_wait_first() -> None:
    [sentence] = [s for s in told(gpu_log().log(), 1) if s.startswith("Who waits")]
    places = [sentence.index(part) for part in ("frontend waited", "EngineCore waited", "worker waited 3.60 ms")]
    assert places == sorted(places)


def test_roles_of_one_process_are_told_of() -> None:
    [sentence] = [s for s in told(gpu_log().log(), 0) if "One process" in s]
    assert sentence.startswith("One process (pid 42) is EngineCore and worker:")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_picture_keeps_to_its_width_and_characters(width: int, ascii_only: bool) -> None:
    for log in (gpu_log().log(), logical_log("cuda")):
        picture = drawn(log, width, ascii_only=ascii_only)
        assert max(map(cell_len, picture.splitlines())) <= width
        assert picture.isascii() or not ascii_only


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_shows_every_message_stage_and_place(width: int) -> None:
    picture = drawn(gpu_log(1).log(), width)
    for name in ("SchedulerOutput", "ModelRunnerOutput", "EngineCoreOutputs", "update_from_output", "forward", "sync"):
        assert name in picture
    assert "core/scheduler.py:" in picture
    assert ("core/sched/output.py::SchedulerOutput" in picture) == (width >= 100)


def test_an_arrow_points_to_the_receiver() -> None:
    lines = drawn(gpu_log().log(), 120, ascii_only=True).splitlines()
    [plan, *_] = [line for line in lines if "1.9 kB" in line]
    assert plan.rindex(".>") > plan.index("1.9 kB")
    [answer, *_] = [line for line in lines if "200 B" in line]
    assert answer.index("<.") < answer.index("200 B")
    [text, *_] = [line for line in lines if "300 B" in line]
    assert "<-" in text, "a message between processes is solid, a call dotted"


def test_a_waiting_column_is_dotted_until_the_answer() -> None:
    lines = drawn(gpu_log(1).log(), 120, ascii_only=True).splitlines()
    start = next(k for k, line in enumerate(lines) if "waits for worker" in line)
    end = next(k for k, line in enumerate(lines) if "200 B" in line)
    column = lines[start].index(": waits for worker")
    assert {lines[k][column] for k in range(start, end - 1)} == {":"}
    assert lines[end][column] != ":"


def test_the_same_log_gives_the_same_picture(tmp_path: Path) -> None:
    assert drawn(gpu_log().log(), 120) == drawn(gpu_log().log(tmp_path / "elsewhere.jsonl"), 120)


def test_a_sequence_diagram_has_every_message_in_order() -> None:
    process = process_map(gpu_log(2).log())
    lines = sequence_diagram(process, process["iterations"][1:]).splitlines()
    assert lines[0] == "sequenceDiagram"
    assert "    participant engine_core as EngineCore (pid 42)" in lines
    arrows = [line.split(":")[0].strip() for line in lines if "->>" in line]
    assert arrows == [
        "engine_core->>worker",
        "worker->>device",
        "worker-->>engine_core",
        "engine_core-->>frontend",
    ]
    assert any("SchedulerOutput · 1.9 kB · 0.001 ms" in line for line in lines)


def test_a_state_diagram_counts_each_change() -> None:
    builder = LogBuilder("logical")
    for step, (request, kind) in enumerate([("R0", "new"), ("R1", "new"), ("R0", "resumed")]):
        builder.step = step
        if kind == "new":
            builder.arrive(request)
        entered: dict[str, Any] = {kind: [request]}
        builder.schedule([(request, 1)], preempted=["R0"] if step == 1 else [], **entered)
        builder.update({request: [7]}, finished={"R0": ["length", None]} if step == 2 else {})
    builder.add("frontend", "requests.aborted", data={"phase": "before", "asked": ["R1"], "ended": ["R1"]})
    changes = transitions(builder.events)
    found: dict[tuple[str, str], Any] = {(change["from"], change["to"]): change["count"] for change in changes}
    assert found == {
        ("[*]", "WAITING"): 2,
        ("WAITING", "RUNNING"): 2,
        ("RUNNING", "PREEMPTED"): 1,
        ("PREEMPTED", "RUNNING"): 1,
        ("RUNNING", "FINISHED_LENGTH_CAPPED"): 1,
        ("RUNNING", "FINISHED_ABORTED"): 1,
    }
    text = state_diagram(changes)
    assert text.splitlines()[0] == "stateDiagram-v2"
    assert "    WAITING --> RUNNING: scheduled, new ×2" in text
    assert "    FINISHED_ABORTED --> [*]" in text
    only = transitions(builder.events, "R1")
    assert {request for change in only for request in change["requests"]} == {"R1"}
