"""A log can be read back: whole, cut off anywhere, and not mistaken for something else."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.maps.plan import plan_map
from minivllm.trace import events as trace_events
from minivllm.trace.events import EventLog, Header
from minivllm.trace.plan_lines import plan_lines
from minivllm.trace.reader import Log, LogError, read_log
from minivllm.trace.store import new_log_path, newest_log, write_whole
from tests.trace.workloads import mixed_workload, simulated_log


def small_log(path: Path, num_events: int = 5, kind: str = "update", **options: bool) -> EventLog:
    log = EventLog(Header(model="tiny", versions={"minivllm": "1"}, device="cpu"), path, **options)
    for step in range(num_events):
        log.step = step
        log.add("worker", kind, request=f"R{step}", data={"text": "größer 日本 \n \x00"}, wall_ns=step, dur_ns=2)
    log.close()
    return log


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_log_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    written = small_log(tmp_path / name)
    log = read_log(tmp_path / name)
    assert (log.header, log.events) == (written.header, written.events)
    assert (log.num_dropped, log.truncated, log.path) == (0, False, tmp_path / name)


@functools.cache
def whole_run() -> bytes:
    """The bytes of a log with every kind of event that a simulation has."""
    return simulated_log(mixed_workload()).read_bytes()


@given(data=st.data(), compressed=st.booleans())
def test_a_log_that_was_cut_off_anywhere_is_read_up_to_the_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, compressed: bool
) -> None:
    text = whole_run()
    raw = gzip.compress(text, mtime=0) if compressed else text
    cut = data.draw(st.integers(0, len(raw)))
    path = tmp_path_factory.mktemp("cut") / ("cut.jsonl.gz" if compressed else "cut.jsonl")
    path.write_bytes(raw[:cut])
    whole = [line for line in text.split(b"\n") if line]
    try:
        log = read_log(path)
    except LogError:
        header_is_lost = cut < len(whole[0]) or compressed
        assert header_is_lost, "only a log without its header cannot be read"
        return
    assert log.events == read_whole(text).events[: len(log.events)]
    if not compressed:
        num_whole_lines = text[:cut].count(b"\n")
        assert len(log.events) in (num_whole_lines - 1, num_whole_lines)
    elif cut < len(raw):
        assert log.truncated or len(log.events) == len(read_whole(text).events), "only a check sum may be lost unseen"


@functools.cache
def read_whole(text: bytes) -> Log:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.jsonl"
        path.write_bytes(text)
        return read_log(path)


def test_whatever_is_left_of_a_log_can_be_drawn() -> None:
    log = read_whole(whole_run())
    for count in range(len(log.events) + 1):
        left = Log(log.header, log.events[:count], truncated=True)
        steps = {event.step for event in left.events if event.step >= 0}
        assert [entry["iteration"] for entry in plan_map(left)["iterations"]] == sorted(steps)
        whole_steps = {event.step for event in left.events if event.kind == "step.end"}
        assert [line["step"] for line in plan_lines(left.events, is_async=False)] == sorted(whole_steps)


def test_events_beyond_the_limit_are_counted_and_the_ends_of_steps_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_events, "MAX_EVENTS", 3)
    log = EventLog(Header(), tmp_path / "run.jsonl")
    for step in range(4):
        log.step = step
        log.add("engine_core", "update")
        log.add("engine_core", "step.end")
    log.close()
    read = read_log(tmp_path / "run.jsonl")
    assert [(e.seq, e.step, e.kind) for e in read.events] == [
        (0, 0, "update"),
        (1, 0, "step.end"),
        (2, 1, "update"),
        (3, 1, "step.end"),
        (4, 2, "step.end"),
        (5, 3, "step.end"),
    ]
    assert read.num_dropped == 2


def test_a_cut_in_the_last_line_loses_only_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_events, "MAX_EVENTS", 3)
    path = tmp_path / "run.jsonl"
    small_log(path, num_events=50)
    whole = path.read_bytes()
    for cut in (3, len(whole.splitlines()[-1]) + 1):
        path.write_bytes(whole[:-cut])
        log = read_log(path)
        assert (len(log.events), log.num_dropped, log.truncated) == (3, 0, True)


def test_what_a_step_brought_is_in_the_file_when_it_ends(tmp_path: Path) -> None:
    log = EventLog(Header(), tmp_path / "run.jsonl")
    log.add("engine_core", "update")
    log.add("engine_core", "step.end")
    read = read_log(tmp_path / "run.jsonl")  # the writer has not closed it: as if it had been killed
    assert [event.kind for event in read.events] == ["update", "step.end"]
    assert read.truncated


def test_a_log_without_clocks_says_where_it_ran_and_no_more_of_the_machine(tmp_path: Path) -> None:
    small_log(tmp_path / "run.jsonl", logical=True)
    log = read_log(tmp_path / "run.jsonl")
    assert log.header.versions == {}
    assert log.header.device == "cpu", "a GPU's numbers may be others, so this belongs to the run"
    assert all(event.wall_ns is None and event.dur_ns is None for event in log.events)


_EVENT = b'{"seq": %d, "step": 0, "process": "worker", "kind": "step.end"}\n'

NOT_LOGS = {
    "empty": (b"", "there is nothing in it"),
    "text": (b"# A title\n\nText.\n", "its first line is no header"),
    "binary": (bytes(range(256)), "its first line is no header"),
    "other JSON": (b"{}\n", "its first line is no header"),
    "a list": (b"[1, 2]\n", "its first line is no header"),
    "a workload": (b'{"config": {}, "requests": []}\n', "its first line is no header"),
    "another document": (b'{"schema": "minivllm.trace/1"}\n', "not a minivllm log, but 'minivllm.trace/1'"),
    "a later version": (
        b'{"schema": "minivllm.log/3"}\n',
        "this version reads 'minivllm.log/2'. Record it again with this one.",
    ),
    "a damaged line": (b'{"schema": "minivllm.log/2"}\n{"seq": 0}\n\n', "line 2: not an event"),
    "a lost line": (b'{"schema": "minivllm.log/2"}\n' + _EVENT % 0 + _EVENT % 2, "line 3: event 1 is missing"),
    "a strange header": (b'{"schema": "minivllm.log/2", "config": 3}\n', "its first line is no header"),
}


@pytest.mark.parametrize("name", NOT_LOGS)
def test_what_is_not_a_log_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    content, message = NOT_LOGS[name]
    path = tmp_path / "file.jsonl"
    path.write_bytes(content)
    with pytest.raises(LogError, match=r"file\.jsonl") as refusal:
        read_log(path)
    assert message in str(refusal.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="Is a directory"):
        read_log(tmp_path)
    with pytest.raises(LogError, match="No such file"):
        read_log(tmp_path / "nothing.jsonl")
    (tmp_path / "plain.gz").write_bytes(b"not compressed at all")
    with pytest.raises(LogError, match="not a gzip file"):
        read_log(tmp_path / "plain.gz")


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    log = small_log(tmp_path / "run.jsonl")
    log.close()
    assert len(read_log(tmp_path / "run.jsonl").events) == 5


def test_new_logs_have_names_of_their_own_and_the_newest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path))
    assert newest_log() is None
    first = new_log_path("hello")
    small_log(first)
    second = new_log_path("hello")
    assert first != second
    small_log(second)
    assert first.parent == second.parent == tmp_path / "logs"
    assert newest_log() in (first, second)  # a file system may give both the same time


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    def broken():
        yield "half"
        raise OSError(28, "No space left on device")

    path = tmp_path / "plans.jsonl"
    write_whole(path, ["old", "lines"])
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, broken())
    assert path.read_text() == "old\nlines\n"
    assert list(tmp_path.iterdir()) == [path], "nothing unfinished is left behind"
    write_whole(path, ["new"])
    assert path.read_text() == "new\n"
