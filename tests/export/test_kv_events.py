"""KV events have vLLM's names and fields, and whoever follows them knows what is cached."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minivllm.export.kv_events import as_json_lines, as_msgpack, kv_event_batches
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.scenarios.workload import load_workload
from minivllm.trace.events import Event, Header
from minivllm.trace.reader import Log, read_log, read_window
from minivllm.trace.replay import State
from tests.differential.workload_generator import generate_workload
from tests.trace.workloads import mixed_workload, simulated_log

SCENARIOS = [scenario.name for scenario in all_scenarios()]
PYTHON = os.environ.get("MINIVLLM_VLLM_PYTHON")

# The fields of vLLM 0.27.1 that are always sent.
STORED = {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"}
REMOVED = {"type", "block_hashes", "medium"}

DECODE = """
import sys, msgspec
from vllm.distributed.kv_events import KVEventBatch, BlockStored, BlockRemoved, AllBlocksCleared
data = open(sys.argv[1], "rb").read()
batches = msgspec.msgpack.Decoder(list[KVEventBatch]).decode(data)
for batch in batches:
    single = msgspec.msgpack.Decoder(KVEventBatch).decode(msgspec.msgpack.Encoder().encode(batch))
    assert single == batch
print(len(batches), [type(event).__name__ for batch in batches for event in batch.events])
"""


def log_of(name: str) -> Log:
    if name == "simulated":
        return read_log(simulated_log(mixed_workload()))
    return read_log(get_scenario(name).log_path)


def events_of(log: Log) -> list[dict[str, Any]]:
    return [event for line in as_json_lines(kv_event_batches(log)) for event in json.loads(line)["events"]]


@pytest.mark.parametrize("name", [*SCENARIOS, "simulated"])
def test_following_them_one_knows_what_is_cached(name: str) -> None:
    log = log_of(name)
    state = State(log.header)
    for event in log.events:
        state.apply(event)
    cached: dict[int, int] = {}
    for event in events_of(log):
        if event["type"] == "BlockStored":
            for block_hash in event["block_hashes"]:
                cached[block_hash] = cached.get(block_hash, 0) + 1
        elif event["type"] == "BlockRemoved":
            for block_hash in event["block_hashes"]:
                cached[block_hash] -= 1
        else:
            cached.clear()
    assert {h for h, n in cached.items() if n} == {int(text, 16) for text in state.pool.hashes.values()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_fields_are_those_of_vllm(name: str) -> None:
    for event in events_of(log_of(name)):
        wanted = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": {"type"}}[event["type"]]
        assert set(event) - {"group_idx"} == wanted
        if event["type"] == "BlockStored":
            assert len(event["token_ids"]) == event["block_size"] * len(event["block_hashes"])
            assert all(0 <= number < 2**64 for number in event["block_hashes"])


def test_a_block_is_told_with_the_tokens_that_are_in_it() -> None:
    log = log_of("prefix-warmup")
    first = events_of(log)[0]
    prompt = next(e.data["prompt_token_ids"] for e in log.events if e.kind == "request.arrived")
    assert first["token_ids"] == prompt[: len(first["token_ids"])]
    assert first["parent_block_hash"] is None
    chained = [e for e in events_of(log)[1:] if e["type"] == "BlockStored"]
    known = {number for event in events_of(log) for number in event.get("block_hashes", [])}
    assert chained
    assert all(event["parent_block_hash"] in known for event in chained)


def test_a_batch_an_iteration_with_its_time() -> None:
    logical = kv_event_batches(log := log_of("kv-pressure"))
    steps = sorted({e.step for e in log.events if e.kind in ("kv.stored", "kv.evicted")})
    assert [batch.ts for batch in logical] == steps, "without clocks, the number of the iteration"
    wall = kv_event_batches(log_of("two-processes"))
    assert all(batch.ts > 1.6e9 for batch in wall), "the time of day"


def test_a_reset_is_one_event() -> None:
    def event(seq: int, kind: str, **data: Any) -> Event:
        return Event(seq, 0, "engine_core", kind, block=1, data=data)

    reset = [event(0, "kv.evicted", hash="0" * 15 + "1", why="reset"), event(1, "kv.reset")]
    assert events_of(Log(Header(), reset)) == [{"type": "AllBlocksCleared"}]
    reused = [event(0, "kv.evicted", hash="0" * 15 + "1", why="reused")]
    assert events_of(Log(Header(), reused))[0]["block_hashes"] == [1]


def test_a_window_does_not_hold_the_tokens() -> None:
    with pytest.raises(ValueError, match="give a whole log"):
        kv_event_batches(read_window(get_scenario("kv-pressure").log_path, 3, 5))


def test_msgpack_says_the_same_as_json() -> None:
    batches = kv_event_batches(log_of("kv-pressure"))
    lines = [json.loads(line) for line in as_json_lines(batches)]
    assert msgspec.msgpack.decode(as_msgpack(batches)) == [[line["ts"], line["events"]] for line in lines]


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="MINIVLLM_VLLM_PYTHON names no interpreter with vLLM 0.27.1")
def test_vllm_itself_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "kv.bin"
    batches = kv_event_batches(log_of("kv-pressure"))
    path.write_bytes(as_msgpack(batches))
    ended = subprocess.run([str(PYTHON), "-c", DECODE, str(path)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    types = [event["type"] for batch in batches for event in batch.events]
    assert ended.stdout.strip().splitlines()[-1] == f"{len(batches)} {types}"


def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with hashes numbered as they come: two engines hash alike, and not to the same numbers."""
    numbers: dict[Any, int] = {None: -1}
    told = []
    for event in events:
        hashes = [numbers.setdefault(h, len(numbers)) for h in event.get("block_hashes", [])]
        parent = numbers.setdefault(event.get("parent_block_hash"), len(numbers))
        # vLLM also says, block by block, that nothing but tokens went into the hash.
        assert not any(event.get("extra_keys") or ())
        rest = {key: value for key, value in event.items() if value is not None and key != "extra_keys"}
        told.append({**rest, "block_hashes": hashes, "parent_block_hash": parent})
    return told


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="MINIVLLM_VLLM_PYTHON names no interpreter with vLLM 0.27.1")
def test_they_are_the_events_of_vllm_for_the_same_workload(tmp_path: Path) -> None:
    workloads = [generate_workload(seed) for seed in range(40)]
    lines = "".join(json.dumps(workload) + "\n" for workload in workloads)
    script = Path(__file__).with_name("vllm_kv_events.py")
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
    ended = subprocess.run([str(PYTHON), str(script)], input=lines, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]
    compared = 0
    for workload, line in zip(workloads, ended.stdout.splitlines(), strict=True):
        theirs = json.loads(line)
        if theirs is None:
            continue
        path = tmp_path / "workload.json"
        path.write_text(json.dumps(workload))
        log = read_log(simulated_log(load_workload(path, "vllm-0.27.1")))
        assert numbered(events_of(log)) == numbered(theirs), workload["name"]
        compared += len(theirs)
    assert compared > 500
