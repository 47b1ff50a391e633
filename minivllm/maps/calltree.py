"""Owns who called whom in a step, as a tree: from the log's calls, from its stages, or from the events alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minivllm.maps.stages import SYNC, WHOLE_STEP, Stage, stages_of
from minivllm.trace.events import Event

# Loops that never end and calls that only wait for another process. Their length is no work, and what they call stands
# for itself.
_RESIDENT = frozenset(
    {
        "EngineCoreProc.run_busy_loop",
        "EngineCoreProc.process_input_sockets",
        "EngineCoreProc.process_output_sockets",
        "AsyncLLM._handle_outputs",
        "AsyncLLM.generate",
        "SyncMPClient.get_output",
        "AsyncMPClient.get_output_async",
    }
)


@dataclass(slots=True)
class Node:
    """One call, or all calls of one symbol at one place of the tree.

    Attributes:
        name: The symbol without its module, or the stage.
        calls: How many.
        cpu_ns: From call to return, on the calling thread; None without clocks.
        device_ns: What the device did for it.
        is_sync: The CPU waits for the device here.
    """

    name: str
    plane: str
    process: str
    thread: str | None
    src: str | None
    ref: str | None
    start_ns: int | None
    cpu_ns: int | None
    device_ns: int | None = None
    calls: int = 1
    is_sync: bool = False
    children: list[Node] = field(default_factory=list)

    @property
    def self_ns(self) -> int | None:
        """Its time without that of what it called; two clocks that disagree never make it negative."""
        if self.cpu_ns is None:
            return None
        return max(self.cpu_ns - sum(child.cpu_ns or 0 for child in self.children), 0)

    def contains(self, other: Node) -> bool:
        """Whether another ran inside it, on the same thread."""
        if None in (self.start_ns, self.cpu_ns, other.start_ns, other.cpu_ns):
            return False
        start, end = self.start_ns, self.start_ns + self.cpu_ns  # type: ignore[operator]
        inside = start <= other.start_ns and other.start_ns + other.cpu_ns <= end  # type: ignore[operator]
        return inside and self.thread == other.thread and _shares_a_stack(self.process, other.process)


def _shares_a_stack(role: str, other: str) -> bool:
    """A worker may run in the core's process, by plain calls; the frontend's calls say themselves whom they called."""
    return role == other or {role, other} == {"engine_core", "worker"}


def call_tree(events: Iterable[Event], *, stages_only: bool = False) -> list[Node]:
    """The calls of one iteration.

    Args:
        events: Of one iteration.
        stages_only: Leave out calls even if the log has them.

    Returns:
        The calls that nobody on the map called, in the order in which they began.
    """
    events = list(events)
    measured = stages_of(events)
    stages = [_node(stage) for stage in measured]
    calls = [] if stages_only else [event for event in events if event.kind == "call"]
    if calls:
        return _with_stages(_by_parent(calls), stages)
    if any(stage.start_ns is not None for stage in measured):
        return _nested(stages)
    return _by_order(measured, events)


def merged(nodes: Iterable[Node]) -> list[Node]:
    """Nodes of one symbol at one place become one, with the sum of their numbers; at every level."""
    groups: dict[tuple[str, str, str | None], list[Node]] = {}
    for node in nodes:
        groups.setdefault((node.name, node.process, node.src), []).append(node)
    return [_sum(group) for group in groups.values()]


def _sum(group: list[Node]) -> Node:
    first = group[0]
    cpu = [node.cpu_ns for node in group if node.cpu_ns is not None]
    device = [node.device_ns for node in group if node.device_ns is not None]
    return Node(
        first.name,
        first.plane,
        first.process,
        first.thread,
        first.src,
        first.ref,
        first.start_ns,
        sum(cpu) if cpu else None,
        sum(device) if device else None,
        sum(node.calls for node in group),
        first.is_sync,
        merged(child for node in group for child in node.children),
    )


def _node(stage: Stage) -> Node:
    return Node(
        _qualname(stage.src) if stage.name == WHOLE_STEP and stage.src else stage.name,
        stage.plane,
        stage.process,
        stage.thread,
        stage.src,
        stage.ref,
        stage.start_ns,
        stage.dur_ns,
        stage.device_ns,
        is_sync=stage.name == SYNC,
    )


def _qualname(src: str | None) -> str:
    return (src or "").partition(":")[2] or "?"


def _by_parent(calls: list[Event]) -> list[Node]:
    """A tree from the calls' own ids. They were logged when they returned, so a parent comes behind its children."""
    nodes = {}
    for event in calls:
        start = None if event.wall_ns is None else event.wall_ns - (event.dur_ns or 0)
        nodes[event.data["id"]] = Node(
            _qualname(event.src),
            event.data.get("plane") or "control",
            event.process,
            event.thread,
            event.src,
            event.ref,
            start,
            event.dur_ns,
        )
    roots = []
    for event in calls:
        node, parent = nodes[event.data["id"]], nodes.get(event.data.get("parent"))
        if node.name in _RESIDENT:
            continue
        if parent is None or parent.name in _RESIDENT:
            roots.append(node)
        else:
            parent.children.append(node)
    _order(roots)
    return roots


def _order(nodes: list[Node]) -> None:
    nodes.sort(key=lambda node: node.start_ns or 0)
    for node in nodes:
        _order(node.children)


def _with_stages(roots: list[Node], stages: list[Node]) -> list[Node]:
    """Put into a tree of calls what only the stages know: where the CPU waits, and what the device did."""
    for stage in stages:
        if not stage.is_sync and stage.device_ns is None:
            continue
        around = _innermost(roots, stage)
        if stage.is_sync and around is not None and around.src == stage.src:
            around.is_sync = True
        elif stage.is_sync and around is not None:
            around.children.append(stage)
            around.children.sort(key=lambda node: node.start_ns or 0)
        elif around is not None:
            around.device_ns = (around.device_ns or 0) + (stage.device_ns or 0)
    return roots


def _innermost(nodes: list[Node], stage: Node) -> Node | None:
    """The smallest call that a stage happened in; or the stage itself, if its symbol's call is there."""
    for node in nodes:
        if node.src is not None and node.src == stage.src and not stage.is_sync and node.contains(stage):
            return node
        if node.contains(stage):
            return _innermost(node.children, stage) or node
    return None


def _nested(stages: list[Node]) -> list[Node]:
    """A tree by what lies inside what. Stages come in the order in which they began, the longer first."""
    roots: list[Node] = []
    open_stages: list[Node] = []
    for stage in stages:
        while open_stages and not open_stages[-1].contains(stage):
            open_stages.pop()
        (open_stages[-1].children if open_stages else roots).append(stage)
        open_stages.append(stage)
    return roots


def _by_order(stages: list[Stage], events: list[Event]) -> list[Node]:
    """Without clocks: a stage's event was logged when it returned, and behind what was logged while it ran."""
    nodes = []
    before = -1
    for stage in stages:
        node = _node(stage)
        for event in events:
            if before < event.seq < stage.seq and event.kind.startswith("kv.") and event.src is not None:
                inside = Node(_qualname(event.src), node.plane, event.process, None, event.src, event.ref, None, None)
                node.children.append(inside)
        before = stage.seq
        nodes.append(node)
    return nodes
