"""Runs in an interpreter that has vLLM 0.27.1: plans workloads with its scheduler, and tells the KV events of each.

Workloads come as JSON lines on stdin; one line of events goes to stdout for each (null where vLLM itself failed).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "differential"))

import msgspec
from vllm_reference import Reference, Run


def events_of(reference: Reference, workload: dict) -> list[dict]:
    """The events of one run, in order, as vLLM would publish them."""
    scheduler = reference.make_scheduler(workload["config"])
    manager = scheduler.kv_cache_manager
    manager.block_pool.enable_kv_cache_events = True
    told: list[dict] = []

    def take() -> list:
        events = manager.block_pool.take_events()
        told.extend(msgspec.to_builtins(event) for event in events)
        return []

    manager.take_events = take
    Run(scheduler, workload).run()
    take()
    scheduler.shutdown()
    return told


def main() -> None:
    """Answer every line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM may print
    reference = Reference()
    for line in sys.stdin:
        workload = json.loads(line)
        try:
            told = events_of(reference, workload)
        except Exception as error:  # what vLLM trips over is not what is compared here
            print(type(error), error, file=sys.stderr)
            told = None
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
