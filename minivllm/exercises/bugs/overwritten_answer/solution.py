"""What happens to an output for a caller who is busy: it is merged into what waits, completion by completion."""

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
    if self.output is None:
        self.output = output
    else:
        self.output.add(output, self.aggregate)
    self._ready.set()
