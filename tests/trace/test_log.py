"""A log holds what was written, whole or as far as there was room for it; and logs are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minivllm.trace import events as trace_events
from minivllm.trace.events import Event, EventLog, Header
from minivllm.trace.reader import read_log
from minivllm.trace.store import new_log_path, newest_log, write_whole


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


def test_beside_a_device_a_step_is_written_while_the_next_one_computes(tmp_path: Path) -> None:
    log = EventLog(Header(), tmp_path / "run.jsonl")
    log.write_beside_device()
    log.step = 0
    for count in range(40):
        log.add("engine_core", "span", data={"name": str(count)})
    log.add("engine_core", "step.end", data={"running_after": ["R0"]})
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines()
    assert len(lines) == 1, "the header"
    asked = iter([False, True])
    log.flush(lambda: next(asked))
    some = len((tmp_path / "run.jsonl").read_bytes().splitlines())
    assert 1 < some < 42, "the device was done before all was written"
    log.flush()
    assert len((tmp_path / "run.jsonl").read_bytes().splitlines()) == 42
    log.add("engine_core", "step.end", data={"running_after": []})
    assert len((tmp_path / "run.jsonl").read_bytes().splitlines()) == 43, "nobody runs: who knows when the next one is"
    assert [event.seq for event in log.events] == list(range(42))


def test_data_that_is_made_when_it_is_written_stands_where_it_happened(tmp_path: Path) -> None:
    def failing() -> Any:
        raise KeyError("its own")

    for path in (None, tmp_path / "run.jsonl", tmp_path / "run.jsonl.gz"):
        log = EventLog(Header(), path)
        log.add("engine_core", "span", data={"name": "before"})
        log.add("worker", "rows", data=lambda: {"taken": {}, "moved": [], "freed": {}})
        log.add("worker", "rows", data=failing, src="module:symbol")
        log.step += 1
        log.add_all([Event(-1, -1, "engine_core", "span", data={"name": str(count)}) for count in range(2)])
        assert [event.kind for event in log.events] == ["span", "rows", "probe.failed", "span", "span"]
        assert [event.seq for event in log.events] == list(range(5))
        assert [event.step for event in log.events] == [-1, -1, -1, 0, 0]
        assert log.events[2].data == {"symbol": "module:symbol", "message": "KeyError: 'its own'"}
        log.add("engine_core", "span", data={"name": "more"})
        assert len(log.events) == 6, "what was read before is not read again"


def test_who_is_interrupted_while_events_are_written_loses_none(tmp_path: Path) -> None:
    interrupts = iter([KeyboardInterrupt])

    def interrupted() -> dict[str, Any]:
        for interrupt in interrupts:
            raise interrupt
        return {"name": "1"}

    log = EventLog(Header(), tmp_path / "run.jsonl")
    log.add("engine_core", "span", data=lambda: {"name": "0"})
    log.add("engine_core", "span", data=interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    log.close()
    read = read_log(tmp_path / "run.jsonl")
    assert not read.truncated
    assert [event.data["name"] for event in read.events] == ["0", "1"]


def test_a_log_without_clocks_says_where_it_ran_and_no_more_of_the_machine(tmp_path: Path) -> None:
    small_log(tmp_path / "run.jsonl", logical=True)
    log = read_log(tmp_path / "run.jsonl")
    assert log.header.versions == {}
    assert log.header.device == "cpu", "a GPU's numbers may be others, so this belongs to the run"
    assert all(event.wall_ns is None and event.dur_ns is None for event in log.events)


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
