"""A log that somebody changed: each reader either still draws it, or says in one line which event is not as written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from minivllm.scenarios import definition
from tests.cli.conftest import Run

READERS = (["map", "plan"], ["map", "state"], ["map", "process"], ["check"])
KINDS = ("request.arrived", "update", "rows", "output.text")


def lines_of(scenario: str) -> list[dict[str, Any]]:
    text = gzip.decompress((definition.LOGS / f"{scenario}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def written(lines: list[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["lost", "other type"])
def test_a_changed_event_is_named_or_does_no_harm(run: Run, own_place: Path, kind: str, change: str) -> None:
    lines = lines_of("kv-pressure")
    event = next(line for line in lines if line.get("kind") == kind and line["data"])
    for key in list(event["data"]):
        kept = dict(event["data"])
        event["data"][key] = 1.5
        if change == "lost":
            del event["data"][key]
        path = written(lines, own_place / "changed.jsonl")
        for reader in READERS:
            ended = run(*reader, "--log", path)
            assert "Traceback" not in ended.err
            found_by_check = reader == ["check"] and "not hold" in ended.err
            assert ended.code == 0 or found_by_check or ended.error, (key, reader)
        event["data"] = kept


def test_the_event_that_is_not_as_written_is_named(run: Run, own_place: Path) -> None:
    lines = lines_of("kv-pressure")
    event = next(line for line in lines if line.get("kind") == "schedule")
    del event["data"]["new"]
    ended = run("map", "plan", "--log", written(lines, own_place / "changed.jsonl"))
    assert (ended.code, ended.out) == (1, "")
    assert f"event {event['seq']} ('schedule', iteration 0) is not as it was written" in ended.error
    assert "`new`" in ended.error
    assert "--debug" in ended.error


def test_events_that_contradict_each_other_are_told_in_one_line(run: Run, own_place: Path) -> None:
    lines = lines_of("kv-pressure")
    event = next(line for line in lines if line.get("kind") == "update" and line["data"]["emitted"])
    event["data"]["emitted"] = {"nobody": [1]}
    ended = run("map", "plan", "--log", written(lines, own_place / "changed.jsonl"))
    assert (ended.code, ended.out) == (1, "")
    assert "do not fit together" in ended.error


@pytest.mark.parametrize("is_first", [True, False])
def test_a_comparison_names_the_changed_event_of_either_log(run: Run, own_place: Path, is_first: bool) -> None:
    lines = lines_of("kv-pressure")
    next(line for line in lines if line.get("kind") == "schedule")["data"].pop("not_scheduled")
    path = written(lines, own_place / "changed.jsonl")
    ended = run("diff", *((path, "kv-pressure") if is_first else ("kv-pressure", path)))
    assert ended.code == 1
    assert "changed.jsonl: event" in ended.err
    assert "Traceback" not in ended.err


_NO_LOGS = [b"", b"\n", b"\0" * 99, b"\xff\xfe{", b"[1]\n", b'{"a": 1}\n', b'{"schema": "x/1"}\n']


@pytest.mark.parametrize("content", _NO_LOGS)
def test_a_file_that_is_no_log_is_told_with_where_logs_come_from(run: Run, content: bytes) -> None:
    for name in ("log.jsonl", "log.jsonl.gz"):
        Path(name).write_bytes(content)
        ended = run("map", "plan", "--log", name)
        assert (ended.code, ended.out) == (1, "")
        assert f"{name}: not a " in ended.error
        assert "Record one with: minivllm trace --out LOG" in ended.error
