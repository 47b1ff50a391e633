"""One step of the engine, with its last two lines exchanged."""

from __future__ import annotations

from minivllm.core.messages import EngineCoreOutputs
from minivllm.engine.core import EngineCore


def step_sync(self: EngineCore) -> EngineCoreOutputs | None:
    """Plan, run, commit: one step from end to end."""
    if not self.scheduler.has_requests():
        return None
    plan = self.scheduler.schedule()
    output = self._submit(plan).result()
    outputs = self.scheduler.update_from_output(plan, output)
    self._process_aborts_queue()
    return self._stats.attach(outputs, self.scheduler)
