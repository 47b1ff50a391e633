"""Owns timing how fast one iteration of a long log opens, and how much memory that takes.

    python -m minivllm.bench.log_window [--iterations 10000] [--requests 64] [--model MODEL] [--log LOG]

The log is made first (by the simulator, or with --model by a real one, and then it holds the worker and the text, too),
then each iteration is opened in a process of its own, as a command would.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Far from a keyframe, near one, the first and the last: the distance is what the time depends on.
_PLACES = (0.0, 0.25, 0.5, 0.9, 1.0)
_REPEATS = 3

_OPEN = """
import re, sys, time
from pathlib import Path
start, cpu = time.perf_counter(), time.process_time()
from minivllm.maps.plan import plan_map
from minivllm.maps.state import state_map
from minivllm.trace.reader import read_window
imported = time.perf_counter()
window = read_window(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[2]))
read = time.perf_counter()
maps = plan_map(window), state_map(window)
end = time.perf_counter()
assert [len(made["iterations"]) for made in maps] == [1, 1]
assert "torch" not in sys.modules
# What getrusage says begins with the size of the process that started this one.
memory = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
print(imported - start, read - imported, end - read, time.process_time(), memory)
"""


def open_iteration(log: Path, iteration: int) -> dict[str, float]:
    """Open one iteration in a fresh process and make its plan map and state map; the best of several runs."""
    runs = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _OPEN, str(log), str(iteration)], check=True, capture_output=True, text=True
        )
        wall = time.perf_counter() - start
        imports, read, maps, cpu, memory = map(float, done.stdout.split())
        runs.append(
            {"wall_s": wall, "imports_s": imports, "read_s": read, "maps_s": maps, "cpu_s": cpu, "memory_mib": memory}
        )
    return min(runs, key=lambda run: run["wall_s"])


def make_simulated_log(path: Path, iterations: int, requests: int) -> None:
    """Requests that are there from the first iteration to the last: 64 prompt tokens, then one token a step."""
    from minivllm.scenarios.simulate import simulate_to_log
    from minivllm.scenarios.workload import load_workload

    block_size = 16
    longest = iterations + 80
    config = {
        "max_num_seqs": requests,
        "max_num_batched_tokens": 64 * requests,
        "max_model_len": longest,
        "block_size": block_size,
        "num_gpu_blocks": requests * (longest // block_size + 2),
        "max_steps": iterations + 10,
    }
    arrivals = [
        {"id": f"R{k}", "arrival_step": 0, "prompt_token_ids": [k] * 64, "max_tokens": iterations - 1}
        for k in range(requests)
    ]
    workload = path.with_suffix(".workload.json")
    workload.write_text(json.dumps({"name": "long", "config": config, "requests": arrivals}))
    simulate_to_log(load_workload(workload, "fixed"), path)


def make_real_log(path: Path, iterations: int, requests: int, model: str) -> None:
    """As many requests at any time, each of 16 prompt tokens and 100 output tokens: worker and text are logged, too."""
    from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest
    from minivllm.scenarios.run import run_scenario

    output_len = 100
    engine = {"max_model_len": 128, "block_size": 16, "max_num_seqs": requests}
    arrivals = tuple(
        ScenarioRequest(f"R{k}", (Piece(k % 1000, 16),), output_len, k * output_len // requests, sampling=GO_ON)
        for k in range((iterations - output_len) * requests // output_len)
    )
    engine["num_gpu_blocks_override"] = requests * 9
    run_scenario(Scenario("long", "", "", engine, arrivals), {"model": model}, log_path=path)


def main() -> None:
    """Print one line an iteration that was opened, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--model", help="run this model instead of the simulator")
    parser.add_argument("--log", type=Path, help="a log that is there already")
    options = parser.parse_args()
    from minivllm.trace.reader import last_iteration

    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "long.jsonl"
        if options.log is None:
            if options.model is None:
                make_simulated_log(log, options.iterations, options.requests)
            else:
                make_real_log(log, options.iterations, options.requests, options.model)
        last = last_iteration(log)
        facts: dict[str, Any] = {"log_mib": round(log.stat().st_size / 2**20, 1), "iterations": last + 1}
        print(json.dumps(facts), flush=True)
        for place in _PLACES:
            iteration = round(place * last)
            times = {name: round(value, 3) for name, value in open_iteration(log, iteration).items()}
            print(json.dumps({"iteration": iteration, **times}), flush=True)


if __name__ == "__main__":
    main()
