"""Owns all that one process records of itself: which probes it needs, by its roles and by how much is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from minivllm.sourcemap.registry import lookup
from minivllm.trace.device_clock import DeviceClock
from minivllm.trace.events import EventLog
from minivllm.trace.install import Installation, Probes, merge
from minivllm.trace.probes import (
    BlockProbes,
    CallProbes,
    FrontendProbes,
    KernelProbes,
    LogitsProbes,
    MessageProbes,
    PlanProbes,
    SocketProbes,
    SpanProbes,
    WorkerProbes,
    queue_state,
)

ALL_ROLES = frozenset({"frontend", "engine_core", "worker"})


class Recorder:
    """The probes of a process.

    Args:
        log: Gets the events. Its header says how much is asked for, and a logical log gets nothing that has a clock.
        roles: What this process is: "frontend", "engine_core", "worker".
        tokenizer: Gives single tokens a text.
        device: "cuda" if the worker's device is one.
        logits: Tell the likeliest tokens of every sampled position.
        clock: The device's; None takes what fits.
    """

    def __init__(
        self,
        log: EventLog,
        roles: frozenset[str] = ALL_ROLES,
        *,
        tokenizer: Any = None,
        device: str = "cpu",
        logits: bool = False,
        clock: DeviceClock | None = None,
    ) -> None:
        self.log = log
        self.roles = roles
        self.blocks = BlockProbes(log)
        self._is_nested = log.header.level != "step" and not log.logical
        self._groups: list[Any] = []
        if "engine_core" in roles:
            self._groups += [PlanProbes(log), self.blocks]
        if "worker" in roles:
            self._groups.append(WorkerProbes(log))
            if logits:
                self._groups.append(LogitsProbes(log))
        if "frontend" in roles:
            self._groups.append(FrontendProbes(log, tokenizer))
        if not log.logical:
            self._groups += [SpanProbes(log, roles, clock or DeviceClock.of(device)), MessageProbes(log, roles, device)]
            if log.header.level == "kernel" and "worker" in roles:
                self._groups.append(KernelProbes(log, device))
            if not {"frontend", "engine_core"} <= roles:
                self._groups.append(SocketProbes(log, "frontend" if "frontend" in roles else "engine_core"))

    def installation(self, more: Sequence[Any] = ()) -> Installation:
        """The probes, to be put on by a `with` block: before threads start, and before functions are handed on.

        Args:
            more: Further groups of probes.
        """
        groups = [*self._groups, *more]
        if self._is_nested:
            groups.append(CallProbes(self.log, self.roles))
        probes: Probes = merge(group.probes() for group in groups)
        return Installation(probes, self._probe_failed, nested=self._is_nested)

    def process_started(self, threads: Sequence[tuple[str, str]]) -> None:
        """Tell who this process is, and what runs in it as long as it does.

        Args:
            threads: Name of each thread, and the loop that it runs.
        """
        if not self.log.logical:
            for role in sorted(self.roles):
                loops = [{"name": name, "loop": loop} for name, loop in threads]
                self.log.add(role, "process.started", data={"role": role, "pid": os.getpid(), "threads": loops})

    def process_ended(self) -> None:
        """Tell that nothing more comes of this process."""
        if not self.log.logical:
            for role in sorted(self.roles):
                self.log.add(role, "process.ended", data={"role": role, "pid": os.getpid()})

    def end_step(self, scheduler: Any) -> None:
        """Tell how a step left the queues and the pool."""
        self.log.add("engine_core", "step.end", data=queue_state(scheduler) | self.blocks.step_changes())

    def _probe_failed(self, symbol: str, message: str) -> None:
        process = lookup(symbol).process
        self.log.add(process, "probe.failed", data={"symbol": symbol, "message": message}, src=symbol)
