"""A log is read back whole, up to where it was cut off, or a few iterations of it; what is no log is refused."""

from __future__ import annotations

import functools
import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.maps.plan import plan_map
from minivllm.maps.state import state_map
from minivllm.maps.timeline import timeline_map
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.trace.events import End, Event, Header, Trailer
from minivllm.trace.plan_lines import plan_lines
from minivllm.trace.reader import Log, LogError, last_iteration, read_log, read_window
from minivllm.trace.replay import states
from minivllm.trace.snapshot import request_entry
from tests.trace.live_states import LiveStates, simulated
from tests.trace.workloads import mixed_workload, simulated_log

EVERY = 4  # steps from one keyframe of these tests to the next


@functools.cache
def run_with_keyframes(is_async: bool) -> Log:
    """A run with a bit of everything, and every few steps what the live engine was."""
    log, live = simulated(mixed_workload(async_scheduling=is_async))
    events: list[Event] = []
    arrived: dict[str, Event] = {}
    for step, inside in log.by_step().items():
        if step and step % EVERY == 0:
            state = live.by_step[step - 1] | {"requests": known_requests(arrived, live, step - 1)}
            events.append(Event(len(events), step, "engine_core", "keyframe", data={"state": state}))
        arrived.update({e.request: e for e in inside if e.kind == "request.arrived"})
        inside = [event for event in inside if event.kind != "keyframe"]
        events += [msgspec.structs.replace(event, seq=len(events) + k) for k, event in enumerate(inside)]
    return Log(log.header, events)


def known_requests(arrived: dict[str, Event], live: LiveStates, step: int) -> dict[str, dict]:
    """Everyone who has come, in that order: as the scheduler had them after a step, or as they had ended before."""
    known = {}
    for request_id, event in arrived.items():
        if request_id in live.requests:
            entry = live.by_step[step]["requests"].get(request_id) or request_entry(live.requests[request_id])
        else:
            count = len(event.data["prompt_token_ids"])
            entry = {"status": "REFUSED", "num_prompt_tokens": count, "num_tokens": count}
        known[request_id] = entry | {"arrived": event.step}
    return known


def written(log: Log, path: Path) -> Path:
    """Write a log, with its trailer and the index of its keyframes."""
    lines = [msgspec.json.encode(item) + b"\n" for item in (log.header, *log.events)]
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    is_compressed = path.suffix == ".gz"
    index = [
        (event.step, None if is_compressed else offsets[event.seq + 1], event.seq)
        for event in log.events
        if event.kind == "keyframe"
    ]
    text = b"".join(lines) + msgspec.json.encode(Trailer(End(len(log.events), 0, index))) + b"\n"
    path.write_bytes(gzip.compress(text, mtime=0) if is_compressed else text)
    return path


# ---- whole logs, and what is left of them ----------------------------------------------------------------------------


@functools.cache
def whole_run() -> bytes:
    """The bytes of a log with every kind of event that a simulation has."""
    return simulated_log(mixed_workload()).read_bytes()


@functools.cache
def read_whole(text: bytes) -> Log:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.jsonl"
        path.write_bytes(text)
        return read_log(path)


@given(data=st.data(), compressed=st.booleans())
def test_a_log_that_was_cut_off_anywhere_is_read_up_to_the_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, compressed: bool
) -> None:
    text = whole_run()
    raw = gzip.compress(text, mtime=0) if compressed else text
    cut = data.draw(st.integers(0, len(raw)))
    path = tmp_path_factory.mktemp("cut") / ("cut.jsonl.gz" if compressed else "cut.jsonl")
    path.write_bytes(raw[:cut])
    whole = read_whole(text)
    try:
        log = read_log(path)
    except LogError:
        header_is_lost = compressed or cut < text.index(b"\n")
        assert header_is_lost, "only a log without its header cannot be read"
        return
    assert log.events == whole.events[: len(log.events)]
    if not compressed:
        assert len(log.events) == events_in(text[:cut])
        assert log.truncated == (cut < len(text) - 1)
    elif cut < len(raw):
        assert log.truncated or len(log.events) == len(whole.events), "only a check sum may be lost unseen"


def events_in(text: bytes) -> int:
    """How many lines of a text are whole events; the newline of the last one may be missing."""
    lines = text.split(b"\n")
    return sum(line.startswith(b'{"seq":') and line.endswith(b"}") and is_event(line) for line in lines)


def is_event(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=Event)
    except msgspec.DecodeError:
        return False
    return True


def test_a_small_log_cut_at_every_byte(tmp_path: Path) -> None:
    whole = run_with_keyframes(False)
    small = Log(Header(model="tiny"), [msgspec.structs.replace(e, src=None, ref=None) for e in whole.events[:8]])
    text = written(small, tmp_path / "small.jsonl").read_bytes()
    path = tmp_path / "cut.jsonl"
    for cut in range(text.index(b"\n"), len(text)):
        path.write_bytes(text[:cut])
        log = read_log(path)
        assert log.events == small.events[: events_in(text[:cut])]
        assert log.truncated == (cut < len(text) - 1), "the last newline says nothing"
        if log.events:
            assert read_window(path, 0, 0).events == [event for event in log.events if event.step == 0]


def test_whatever_is_left_of_a_log_can_be_drawn() -> None:
    log = read_whole(whole_run())
    for count in range(len(log.events) + 1):
        left = Log(log.header, log.events[:count], truncated=True)
        steps = sorted({event.step for event in left.events if event.step >= 0})
        for draw in (plan_map, state_map):
            assert [entry["iteration"] for entry in draw(left)["iterations"]] == steps
        assert timeline_map(left)["iterations"] == steps
        whole_steps = {event.step for event in left.events if event.kind == "step.end"}
        assert [line["step"] for line in plan_lines(left.events, is_async=False)] == sorted(whole_steps)


# ---- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz", "cut.jsonl"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_window_says_what_the_whole_log_says_of_its_iterations(tmp_path: Path, name: str, is_async: bool) -> None:
    run = run_with_keyframes(is_async)
    path = written(run, tmp_path / name)
    if name == "cut.jsonl":
        path.write_bytes(path.read_bytes()[:-30])
    whole = read_log(path)
    after = {step: state.as_dict() for step, state in states(whole)}
    maps = {draw: draw(whole) for draw in (plan_map, state_map)}
    last_step = max(after)
    assert last_iteration(path) == last_step
    for first in range(0, last_step + 1, 3):
        last = min(first + first % 4, last_step)
        window = read_window(path, first, last)
        assert window.window == (first, last)
        assert window.truncated == (name == "cut.jsonl")
        assert {step: state.as_dict() for step, state in states(window)} == {
            step: after[step] for step in range(first, last + 1)
        }
        for draw, of_whole in maps.items():
            assert draw(window)["iterations"] == of_whole["iterations"][first : last + 1], draw.__name__
        timeline, of_whole = timeline_map(window), timeline_map(whole)
        assert timeline["iterations"] == list(range(first, last + 1))
        cells = {entry["request"]: entry["cells"] for entry in of_whole["requests"]}
        for entry in timeline["requests"]:
            assert entry["cells"] == cells[entry["request"]][first : last + 1]


def test_a_window_is_read_from_its_keyframe_and_nothing_before_it(tmp_path: Path) -> None:
    path = written(run_with_keyframes(False), tmp_path / "run.jsonl")
    text = path.read_bytes()
    header_end = text.index(b"\n") + 1
    keyframe = text.index(b'"step":12,"process":"engine_core","kind":"keyframe"')
    keyframe = text.rindex(b"\n", 0, keyframe) + 1
    expected = read_window(path, 13, 14)
    path.write_bytes(text[:header_end] + b"?" * (keyframe - header_end - 1) + b"\n" + text[keyframe:])
    assert read_window(path, 13, 14) == expected
    with pytest.raises(LogError, match="line 2: not an event"):
        read_window(path, 3, 4)
    damaged = text[:keyframe] + text[keyframe:].replace(b'"seq":', b'"sea":', 3)
    path.write_bytes(damaged)
    with pytest.raises(LogError, match="1 lines after the keyframe of iteration 12: not an event"):
        read_window(path, 13, 14)


def test_a_window_that_goes_beyond_the_end_ends_there(tmp_path: Path) -> None:
    path = written(run_with_keyframes(False), tmp_path / "run.jsonl")
    last = last_iteration(path)
    assert read_window(path, last - 1, 10**9).window == (last - 1, last)
    with pytest.raises(LogError, match=f"there is no iteration {last + 1}: this run has 0 to {last}"):
        read_window(path, last + 1, last + 5)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_run_without_iterations_has_no_window(tmp_path: Path, name: str) -> None:
    path = written(Log(Header(model="tiny"), []), tmp_path / name)
    assert read_log(path).events == []
    assert last_iteration(path) == -1
    with pytest.raises(LogError, match="there is no iteration 0: the run has no iterations"):
        read_window(path, 0, 0)


# ---- what is no log --------------------------------------------------------------------------------------------------

_EVENT = b'{"seq": %d, "step": 0, "process": "worker", "kind": "step.end"}\n'
_HEADER = b'{"schema": "minivllm.log/2"}\n'

NOT_LOGS = {
    "empty": (b"", "there is nothing in it"),
    "text": (b"# A title\n\nText.\n", "its first line is no header"),
    "binary": (bytes(range(256)), "its first line is no header"),
    "other JSON": (b"{}\n", "its first line is no header"),
    "a list": (b"[1, 2]\n", "its first line is no header"),
    "a workload": (b'{"config": {}, "requests": []}\n', "its first line is no header"),
    "another document": (b'{"schema": "minivllm.trace/1"}\n', "not a minivllm log, but 'minivllm.trace/1'"),
    "an older version": (
        b'{"schema": "minivllm.log/1"}\n',
        "written as 'minivllm.log/1'; this version reads 'minivllm.log/2'. Record it again with this one.",
    ),
    "a later version": (
        b'{"schema": "minivllm.log/3"}\n',
        "this version reads 'minivllm.log/2'. Record it again with this one.",
    ),
    "a damaged line": (_HEADER + b'{"seq": 0}\n\n', "line 2: not an event"),
    "a lost line": (_HEADER + _EVENT % 0 + _EVENT % 2, "line 3: event 1 is missing"),
    "lost last lines": (_HEADER + _EVENT % 0 + b'{"end":{"events":3}}\n', "line 3: event 1 is missing"),
    "a strange header": (b'{"schema": "minivllm.log/2", "config": 3}\n', "its first line is no header"),
}


@pytest.mark.parametrize("name", NOT_LOGS)
def test_what_is_not_a_log_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    content, message = NOT_LOGS[name]
    path = tmp_path / "file.jsonl"
    path.write_bytes(content)
    for read in (read_log, lambda path: read_window(path, 0, 1), last_iteration):
        with pytest.raises(LogError, match=r"file\.jsonl") as refusal:
            read(path)
        assert message in str(refusal.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="Is a directory"):
        read_log(tmp_path)
    with pytest.raises(LogError, match="No such file"):
        read_window(tmp_path / "nothing.jsonl", 0, 0)
    (tmp_path / "plain.gz").write_bytes(b"not compressed at all")
    with pytest.raises(LogError, match="not a gzip file"):
        read_log(tmp_path / "plain.gz")


def test_reading_and_drawing_need_no_torch() -> None:
    modules = "minivllm.trace.reader, minivllm.trace.replay, minivllm.maps.render.state, minivllm.maps.render.timeline"
    check = f"import sys, {modules}; assert not sys.modules.keys() & {{'torch', 'minivllm.engine', 'minivllm.core'}}"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize("name", [scenario.name for scenario in all_scenarios()])
def test_windows_of_the_recorded_runs(name: str) -> None:
    path = get_scenario(name).log_path
    whole = read_log(path)
    maps = {draw: draw(whole)["iterations"] for draw in (plan_map, state_map)}
    for first in range(0, last_iteration(path) + 1, 2):
        window = read_window(path, first, first + 1)
        for draw, of_whole in maps.items():
            assert draw(window)["iterations"] == of_whole[first : first + 2], draw.__name__
        if first == 0:
            assert window.events[0] == whole.events[0], "what came before the first iteration is in its window"
