"""A workload in which a bit of everything happens, and the log of its simulation."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import Workload, load_workload


def mixed_document(**config: Any) -> dict[str, Any]:
    """Chunks, a prefix hit, preemptions, a refusal, aborts of both phases, and an idle step."""
    shared = list(range(10, 34))
    requests: list[dict[str, Any]] = [
        {"id": "A", "arrival_step": 0, "prompt_token_ids": shared, "max_tokens": 30},
        {"id": "B", "arrival_step": 1, "prompt_token_ids": [*shared[:16], 1, 2, 3], "max_tokens": 30},
        {"id": "C", "arrival_step": 2, "prompt_token_ids": list(range(40, 90)), "max_tokens": 20},
        {"id": "too-long", "arrival_step": 2, "prompt_token_ids": [1] * 128, "max_tokens": 9},
        {"id": "D", "arrival_step": 3, "prompt_token_ids": [7, 8], "max_tokens": 50, "abort_step": 8},
        {
            "id": "E",
            "arrival_step": 4,
            "prompt_token_ids": [9],
            "max_tokens": 50,
            "abort_step": 9,
            "abort_phase": "mid",
        },
        {"id": "F", "arrival_step": 90, "prompt_token_ids": [5] * 9, "max_tokens": 3, "stop_token_ids": [4]},
    ]
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "block_size": 4, "num_gpu_blocks": 26}
    return {"name": "mixed", "config": {**limits, "max_model_len": 128, **config}, "requests": requests}


def mixed_workload(**config: Any) -> Workload:
    """The same, ready to run."""
    return workload_of(mixed_document(**config))


def workload_of(document: dict[str, Any]) -> Workload:
    """A document, ready to run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.json"
        path.write_text(json.dumps(document))
        return load_workload(path, "fixed")


def simulated_log(workload: Workload, name: str = "run.jsonl") -> Path:
    """Where the log of its simulation is."""
    path = Path(tempfile.mkdtemp()) / name
    simulate_to_log(workload, path)
    return path
