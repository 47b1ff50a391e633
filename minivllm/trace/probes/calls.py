"""Owns the tree of calls: every call of every function that is on the map, in which other one, and for how long."""

from __future__ import annotations

import threading

from minivllm.sourcemap.registry import entries
from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Around, Call, Probe

# These run as long as their process: `process.started` names them, for they never end.
LOOPS = (
    "minivllm.engine.core_proc:EngineCoreProc.run_busy_loop",
    "minivllm.engine.core_proc:EngineCoreProc.process_input_sockets",
    "minivllm.engine.core_proc:EngineCoreProc.process_output_sockets",
)


class CallProbes:
    """`call`, of every symbol that the modules imported so far have registered.

    Args:
        log: Gets the events.
        roles: The processes that this one is.
    """

    def __init__(self, log: EventLog, roles: frozenset[str]) -> None:
        self._log = log
        self._roles = roles
        self._role = "engine_core" if "engine_core" in roles else "frontend"

    def probes(self) -> dict[str, Probe]:
        probe = Around(None, self._call, self._call)
        return {entry.ours: probe for entry in entries() if entry.ours not in LOOPS}

    def _call(self, call: Call) -> None:
        thread = threading.current_thread()
        data = {"id": call.id, "parent": call.parent, "depth": call.depth, "plane": call.entry.plane}
        if call.error is not None:
            data["error"] = type(call.error).__name__
        process = call.entry.process
        self._log.add(
            process if process in self._roles else self._role,  # both ends of a socket encode
            "call",
            data=data,
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - call.start_ns,
            thread=None if thread is threading.main_thread() else thread.name,
        )
