"""What happens to an output for a caller who is busy. The engine runs this function instead of its own; it has a
fault."""

from __future__ import annotations

from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.outputs import RequestOutput


def put(self: RequestOutputCollector, output: RequestOutput) -> None:
    """Add an output to what the caller has not fetched yet; never waits.

    Args:
        self: The mailbox. `self.output` is what waits in it, or None; `self.aggregate` says that later outputs continue
            earlier ones (deltas) instead of saying everything anew.
        output: What is new; `self.output.add(output, self.aggregate)` merges it into what waits, by completion.
    """
    if self.output is None or not self.aggregate:
        self.output = output  # the newest says everything
    else:
        self.output.add(output, self.aggregate)
    self._ready.set()
