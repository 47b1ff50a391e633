"""Owns running vLLM's own scheduler on our benchmark's workloads, in vLLM's own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minivllm.bench.scheduler import BLOCK_SIZE, SAMPLED_TOKEN, Case

# Runs under an interpreter that has vLLM and perhaps not minivllm: it must be self-contained.
_SCRIPT = Path(__file__).with_name("vllm_scheduler_script.py")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def run_vllm_cases(python: Path, cases: list[Case], repeats: int) -> list[dict[str, Any]]:
    """Time vLLM's scheduler; one result a case, in order.

    Raises:
        ValueError: That Python has no vLLM, or its scheduler could not be run.
    """
    job = {
        "cases": [asdict(case) for case in cases],
        "repeats": repeats,
        "block_size": BLOCK_SIZE,
        "sampled_token": SAMPLED_TOKEN,
    }
    try:
        done = subprocess.run(
            [str(python), str(_SCRIPT)],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **_ENVIRONMENT},
        )
    except OSError as error:
        raise ValueError(f"{python}: cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"vLLM's scheduler could not be run with {python}: {reason}")
    try:
        results: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise ValueError(f"{python}: gave no result: is it a Python with vLLM 0.27.1?") from None
    return results
