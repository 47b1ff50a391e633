"""Owns what profiled steps tell of one that was not profiled: the kernels of the nearest step of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minivllm.analysis.explain_answer import Table
from minivllm.trace.reader import Log

_MOST_ROWS = 12


@dataclass(frozen=True, slots=True)
class Profile:
    """One profiled step.

    Attributes:
        iteration: Which.
        of: "forward" or "replay".
        rows: Name, calls, own CPU time and device time in ns, the longest first.
    """

    iteration: int
    of: str
    rows: list[tuple[str, int, int, int]]

    @property
    def on_device(self) -> list[tuple[str, int, int, int]]:
        """The kernels; where the CPU is the device, the operations."""
        return [row for row in self.rows if row[3]] or self.rows

    @property
    def launches(self) -> int:
        return sum(row[1] for row in self.on_device)

    @property
    def total_ns(self) -> int:
        return sum(row[3] or row[2] for row in self.on_device)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {"name": name, "calls": calls, "cpu_ns": cpu, "device_ns": device} for name, calls, cpu, device in self.rows
        ]
        return {"iteration": self.iteration, "of": self.of, "kernels": rows}

    def table(self) -> Table:
        """The longest ones."""
        rows = [
            (name, str(calls), f"{(device or cpu) / 1e6:.3f} ms", f"{(device or cpu) / max(1, self.total_ns):.0%}")
            for name, calls, cpu, device in self.on_device[:_MOST_ROWS]
        ]
        title = f"kernels of the {self.of} of iteration {self.iteration}, profiled (a profiled step is slower)"
        return Table(title, ("kernel", "calls", "time", "share"), rows)


def nearest_profile(log: Log, iteration: int, is_graph: bool) -> Profile | None:
    """The profiled step nearest to an iteration that ran in the same way; None if the log has none."""
    of = "replay" if is_graph else "forward"
    found = [event for event in log.events if event.kind == "kernels" and event.data["of"] == of]
    if not found:
        return None
    event = min(found, key=lambda e: (abs(e.step - iteration), e.step))
    return Profile(event.step, of, [tuple(row) for row in event.data["kernels"]])
