"""The documented keys of `trace` and `map --json`, just where the contract puts them, over every scenario."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.scenarios import definition, registry
from tests.cli.conftest import Run

SCENARIOS = [scenario.name for scenario in registry.all_scenarios()]

# A name is a key with any value; a dict a key with an object of these keys; a list of one a list of such objects.
Shape = dict[str, Any]
BUDGET = {"tokens": int, "used": int, "max_num_seqs": int}
ITERATION: Shape = {
    "iteration": int,
    "budget": BUDGET,
    "scheduled": [
        {
            "request": str,
            "kind": ("new", "resumed", "running"),
            "num_tokens": int,
            "num_computed_before": int,
            "num_tokens_known": int,
            "num_cached": int,
            "num_drafts": int,
        }
    ],
    "not_scheduled": [{"request": str, "reason": str, "detail": str}],
    "stop": {"reason": str, "detail": str},
    "preempted": list,
    "finished": [{"request": str, "reason": str, "stop_reason": object}],
    "batch": {
        "order": list,
        "query_start_loc": list,
        "seq_lens": list,
        "positions": list,
        "slot_mapping": list,
        "block_table": dict,
        "logits_indices": list,
        "num_tokens": int,
        "num_tokens_padded": int,
        "graph_mode": str,
        "attention_backend": str,
    },
    "sampled": dict,
    "blocks": {"free": int, "owned": int, "cached": int, "allocated": dict, "freed": list, "evicted": list},
    "narration": list,
}
PLAN: Shape = {"log": str, "iterations": [ITERATION], "requests": [{"request": str}], "violations": list}
PROCESS: Shape = {
    "processes": [{"name": str, "pid": object, "loops": list}],
    "messages": [
        {
            "iteration": int,
            "boundary": (1, 2, 3),
            "channel": object,
            "from": str,
            "to": str,
            "type": str,
            "bytes": object,
            "requests": list,
            "send_ns": object,
            "recv_ns": object,
        }
    ],
}
STATE: Shape = {
    "iterations": [
        {
            "iteration": int,
            "requests": [
                {
                    "request": str,
                    "frontend": {"sent": int, "held": object},
                    "scheduler": {
                        "status": str,
                        "num_tokens": int,
                        "num_computed_tokens": int,
                        "num_scheduled": int,
                        "block_ids": list,
                    },
                    "worker": {"row": int, "num_computed_tokens": int, "block_ids": list},
                }
            ],
            "pool": [
                {
                    "block_id": int,
                    "state": ("null", "owned", "shared", "cached_free", "free"),
                    "ref_cnt": int,
                    "owners": list,
                    "changed": object,
                }
            ],
        }
    ]
}
HOT: Shape = {
    "steps": int,
    "stages": [
        {
            "name": str,
            "plane": ("control", "data"),
            "calls": int,
            "cpu_ns": object,
            "self_ns": object,
            "device_ns": object,
            "share": object,
        }
    ],
    "tree": list,
    "sync_points": list,
    "latency": {"ttft_ms": object, "tpot_ms": object, "itl_ms": object, "queue_ms": object},
}
MAPS = {"plan": PLAN, "process": PROCESS, "state": STATE, "hot": HOT}
# What there may be none of: an iteration that planned nothing, a loop that was not stopped, a request elsewhere.
MAY_BE_NULL = {"budget", "stop", "batch", "frontend", "worker"}


def mistakes(value: Any, shape: Any, where: str, seen: set[str]) -> list[str]:
    """Where a document is not as documented; every place of the shape that was met goes into `seen`."""
    if value is None and where.rpartition(".")[2] in MAY_BE_NULL:
        return []
    seen.add(where)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{where} is no object"]
        missing = [f"{where}.{key} is missing" for key in shape.keys() - value.keys()]
        present = (mistakes(value[key], shape[key], f"{where}.{key}", seen) for key in shape if key in value)
        return missing + [line for lines in present for line in lines]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        return [line for entry in value for line in mistakes(entry, shape[0], f"{where}[]", seen)]
    if isinstance(shape, tuple):
        return [] if value in shape else [f"{where} is {value!r}, none of {shape}"]
    return [] if isinstance(value, shape) else [f"{where} is {value!r}, no {shape.__name__}"]


def places(shape: Any, where: str) -> set[str]:
    """Every place of a shape."""
    below = set()
    if isinstance(shape, dict):
        below = {place for key, part in shape.items() for place in places(part, f"{where}.{key}")}
    elif isinstance(shape, list):
        below = places(shape[0], f"{where}[]")
    return {where} | below


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs that ship with the package, not those of the tiny model."""
    monkeypatch.setattr(definition, "LOGS", definition.Path(definition.__file__).parent / "logs")


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.usefixtures("shipped")
def test_the_documents_have_the_keys_of_the_contract_over_all_scenarios(run: Run, kind: str) -> None:
    seen: set[str] = set()
    for name in SCENARIOS:
        ended = run("map", kind, "-s", name, "--json")
        assert ended.code == 0, ended.err
        document = ended.json
        assert document["schema"] == f"minivllm.map-{kind}/1"
        assert not mistakes(document, MAPS[kind], kind, seen), name
    assert places(MAPS[kind], kind) - seen == set(), "a place of the contract that no scenario shows"


def test_a_trace_has_them_too(run: Run) -> None:
    ended = run("trace", "-s", "kv-pressure", "--json", "--map", "plan,process,state,hot")
    document = ended.json
    assert document["schema"] == "minivllm.trace/1"
    assert not mistakes(document, PLAN, "trace", set())
    for kind in ("process", "state", "hot"):
        assert not mistakes(document["maps"][kind], MAPS[kind], kind, set())
