"""Owns the viewer: a run as one HTML file that needs nothing else, neither a network nor minivllm.

The page holds the maps as JSON, exactly as `minivllm map --format json` gives them, and draws them anew in the browser;
its code stands in viewer/. What repeats is left out: of the block pool, an iteration holds only the blocks that are not
as in the one before, the first one only those that are not free (`thin_pools`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from minivllm.maps import tell_hotpath, tell_process
from minivllm.maps.hotpath import hot_map
from minivllm.maps.plan import plan_map
from minivllm.maps.process import in_order, messages_of, process_map
from minivllm.maps.stages import requests_of
from minivllm.maps.state import state_map
from minivllm.maps.timeline import timeline_map
from minivllm.sourcemap.locate import locate, shown
from minivllm.trace.reader import Log

SCHEMA = "minivllm.viewer/1"
# A page with more iterations than these opens slowly; of a longer run it holds a window.
MAX_ITERATIONS = 240

_ASSETS = Path(__file__).parent / "viewer"
_SCRIPTS = ("dom", "words", "plan", "state", "process", "hot", "timeline", "search", "app")

Facts = dict[str, Any]


def window_around(iteration: int, last: int) -> tuple[int, int]:
    """First and last iteration of the window that a page can hold: the one asked for is in its middle, if it can be."""
    first = max(min(iteration - MAX_ITERATIONS // 2, last - MAX_ITERATIONS + 1), 0)
    return first, min(first + MAX_ITERATIONS - 1, last)


def viewer_document(log: Log, look_at: int, last: int, source: str = "--log LOG") -> Facts:
    """Everything that the page holds.

    Args:
        log: The run, or the window of it that is shown.
        look_at: Iteration that is shown first.
        last: The run's last iteration.
        source: What names the run on the command line.
    """
    steps = sorted(log.by_step())
    process = process_map(log)
    run_hot = hot_map(log)
    hot = [hot_map(log, [step]) for step in steps]
    document: Facts = {
        "schema": SCHEMA,
        "run": _run(log),
        "notes": _notes(log, steps, last),
        "source": source,
        "look_at": look_at,
        "last_iteration": last,
        "requests": requests_of(log),
        "plan": plan_map(log),
        "state": thin_pools(state_map(log)),
        "process": process,
        "process_order": {entry["iteration"]: _order(process, entry) for entry in process["iterations"]},
        "hot": {"run": run_hot, "iterations": [_without_run(entry) for entry in hot]},
        "timeline": timeline_map(log),
        "stories": {
            "process": {
                entry["iteration"]: tell_process.tell(process, entry, messages_of(process, entry), log.header)
                for entry in process["iterations"]
            },
            "hot": {
                step: tell_hotpath.tell(entry, run_hot, log.header) for step, entry in zip(steps, hot, strict=True)
            },
        },
    }
    named = [
        process["iterations"],
        process["messages"],
        process["processes"],
        document["hot"],
        document["state"]["source"],
    ]
    named += [entry["source"] for entry in document["plan"]["iterations"]]
    document["places"] = {src: shown(src) for src in sorted(set(_symbols(named))) if locate(src) is not None}
    return document


def viewer_page(document: Facts) -> str:
    """The page: its code, its looks and its data in one HTML text."""
    parts = {
        "TITLE": escape(f"{document['run']['title']} · minivllm"),
        "STYLE": _asset("viewer.css"),
        "SCRIPT": "\n".join(_asset(f"{name}.js") for name in _SCRIPTS),
        "DATA": for_script(document),
    }
    # In one pass, so that nothing that the data says is taken for a place to fill in.
    return re.sub(r"@@(TITLE|STYLE|SCRIPT|DATA)@@", lambda place: parts[place[1]], _asset("viewer.html"))


def for_script(document: Facts) -> str:
    """JSON that can stand in a script element: no text in it, a prompt say, can end the element."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Half of a character that was split between two tokens is no text that can be written.
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


def thin_pools(state: Facts) -> Facts:
    """A state map whose pools hold only blocks that are not as in the iteration before; `num_blocks` says how many."""
    iterations = []
    num_blocks = max((len(entry["pool"]) for entry in state["iterations"]), default=0)
    before = _free_blocks(num_blocks)
    for entry in state["iterations"]:
        iterations.append({**entry, "pool": [block for block in entry["pool"] if before[block["block_id"]] != block]})
        before = entry["pool"]
    return {**state, "num_blocks": num_blocks, "iterations": iterations}


def whole_pools(state: Facts) -> Facts:
    """The inverse of `thin_pools`, as the page does it."""
    iterations = []
    blocks = _free_blocks(state["num_blocks"])
    for entry in state["iterations"]:
        for block in entry["pool"]:
            blocks[block["block_id"]] = block
        iterations.append({**entry, "pool": list(blocks)})
    return {**{key: value for key, value in state.items() if key != "num_blocks"}, "iterations": iterations}


def _free_blocks(count: int) -> list[Facts]:
    nobodys: Facts = {"state": "free", "ref_cnt": 0, "owners": [], "hash": None, "changed": False, "happened": []}
    return [{"block_id": block_id, **nobodys} for block_id in range(count)]


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _run(log: Log) -> Facts:
    header = log.header
    scheduler, cache = (header.config.get(f"{part}_config", {}) for part in ("scheduler", "cache"))
    return {
        "title": header.scenario or header.model or "a run",
        "scenario": header.scenario,
        "model": header.model,
        "device": header.device,
        "clock": header.clock,
        "level": header.level,
        "started_at": header.started_at,
        "batch": header.config.get("batch"),
        "async_scheduling": scheduler.get("async_scheduling", False),
        "settings": {
            **{key: scheduler.get(key) for key in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")},
            **{key: cache.get(key) for key in ("block_size", "num_gpu_blocks", "enable_prefix_caching")},
        },
    }


def _notes(log: Log, steps: list[int], last: int) -> list[str]:
    """What a reader must know before believing that this is all."""
    notes = []
    if steps and (steps[0] > 0 or steps[-1] < last):
        notes.append(
            f"This page holds iterations {steps[0]} to {steps[-1]} of 0 to {last}: a longer one would open slowly. "
            "For others: minivllm export html --iteration N"
        )
    if log.num_dropped:
        notes.append(f"The log leaves out its last {log.num_dropped} events: the run had too many.")
    if log.truncated:
        notes.append("The log was cut off: this is what came before the cut.")
    return notes


def _order(process: Facts, iteration: Facts) -> list[tuple[str, int]]:
    """Stages, messages and waits in the order in which they began: what each is, and its place in its list."""
    messages = messages_of(process, iteration)
    places = {id(message): place for place, message in enumerate(process["messages"])}
    places |= {id(stage): place for place, stage in enumerate(iteration["stages"])}
    places |= {id(wait): place for place, wait in enumerate(iteration["waits"])}
    return [(kind, places[id(item)]) for kind, item in in_order(iteration, messages)]


def _without_run(hot: Facts) -> Facts:
    """The map of one iteration without what is said of the whole run."""
    return {key: value for key, value in hot.items() if key != "latency"}


def _symbols(part: Any) -> Iterator[str]:
    """Every symbol of ours that a part of a map names."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("src", "ours", "loop") and isinstance(value, str):
                yield value
            else:
                yield from _symbols(value)
    elif isinstance(part, list):
        for value in part:
            yield from _symbols(value)
