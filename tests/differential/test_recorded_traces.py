"""The recorded workloads: `simulate` makes vLLM 0.27.1's own plans, in every field of every step, and its summary.

tests/data/oracle holds NAME.json.gz (a workload) and NAME.trace.jsonl.gz (what vLLM's scheduler did with it).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.differential.comparison import first_mismatch, our_lines

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in ORACLE.glob("*.json.gz"))


def test_the_recorded_workloads_are_here() -> None:
    assert len(NAMES) >= 26


@pytest.mark.parametrize("name", NAMES)
def test_simulate_equals_the_recorded_trace(name: str, tmp_path: Path) -> None:
    workload = tmp_path / f"{name}.json"
    workload.write_bytes(gzip.decompress((ORACLE / f"{name}.json.gz").read_bytes()))
    trace = gzip.decompress((ORACLE / f"{name}.trace.jsonl.gz").read_bytes()).decode()
    mismatch = first_mismatch(our_lines(workload), [json.loads(line) for line in trace.splitlines()])
    assert mismatch is None, str(mismatch)
