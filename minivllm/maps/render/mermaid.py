"""Owns maps as Mermaid text, for pages that draw it: the process map as a sequence, the requests as a state machine."""

from __future__ import annotations

from typing import Any

from minivllm.maps.lifecycle import START
from minivllm.maps.process import in_order, messages_of
from minivllm.maps.render.frame import in_bytes, in_ms
from minivllm.maps.stages import WHOLE_STEP
from minivllm.maps.tell_process import TITLES


def sequence_diagram(process: dict[str, Any], iterations: list[dict[str, Any]]) -> str:
    """Iterations of a process map as a `sequenceDiagram`."""
    lines = ["sequenceDiagram"]
    for entry in process["processes"]:
        pid = f" (pid {entry['pid']})" if entry["pid"] is not None else ""
        lines.append(f"    participant {entry['name']} as {TITLES[entry['name']]}{pid}")
    first, last = process["processes"][0]["name"], process["processes"][-1]["name"]
    for iteration in iterations:
        over = first if first == last else f"{first},{last}"
        lines.append(f"    Note over {over}: iteration {iteration['iteration']}, {iteration['num_tokens']} tokens")
        for kind, item in in_order(iteration, messages_of(process, iteration)):
            if kind == "message":
                lines.append(_arrow(item))
            elif kind == "stage" and item["name"] != WHOLE_STEP:
                lines.append(f"    Note over {item['process']}: {item['name']}{_time(item['dur_ns'])}")
            elif kind == "wait":
                text = f"waits for {TITLES[item['for']]}{_time(item['dur_ns'])}"
                lines.append(f"    Note over {item['process']}: {text}")
    return "\n".join(lines) + "\n"


def _arrow(message: dict[str, Any]) -> str:
    # Solid to where the work goes, dotted on its way back, as sequence diagrams have it.
    arrow = "->>" if message["to"] in ("worker", "device") or message["from"] == "frontend" else "-->>"
    facts = [message["type"], in_bytes(message["bytes"])]
    if message["send_ns"] is not None and message["recv_ns"] is not None:
        facts.append(in_ms(message["recv_ns"] - message["send_ns"]))
    text = " · ".join(_safe(fact) for fact in facts if fact)
    return f"    {message['from']}{arrow}{message['to']}: {'①②③'[message['boundary'] - 1]} {text}"


def _time(ns: int | None) -> str:
    return "" if ns is None else f" {in_ms(ns)}"


def state_diagram(transitions: list[dict[str, Any]]) -> str:
    """The changes of status of a run as a `stateDiagram-v2`; on each arrow what did it, and how often."""
    lines = ["stateDiagram-v2"]
    for change in transitions:
        times = "" if change["count"] == 1 else f" ×{change['count']}"
        lines.append(f"    {change['from']} --> {change['to']}: {_safe(change['by'])}{times}")
    ends = dict.fromkeys(c["to"] for c in transitions if c["to"].startswith(("FINISHED", "REFUSED")))
    lines += [f"    {end} --> {START}" for end in ends]
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Without what ends a Mermaid statement."""
    return text.replace(";", ",").replace("#", "").replace("\n", " ")
