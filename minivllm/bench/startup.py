"""Owns timing a start of our engine: the process, its imports, the model, kernels, memory, graphs, to the first token.

Each start is a process of its own. Where kernels are compiled, Triton's cache is a folder of our own: empty for a cold
start, and as that one left it for a warm one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("startup_script.py")
_MOST_HELPER_SECONDS = 60.0


def measure_startup(
    arguments: dict[str, Any], prompt_tokens: int, repeats: int, on_run: Callable[[int], None] = lambda tokens: None
) -> list[dict[str, Any]]:
    """Start the engine again and again.

    Args:
        arguments: The engine's, `model` among them.
        prompt_tokens: Of the request whose first token is waited for.
        repeats: Starts of each kind.
        on_run: Is told of each start that has ended.

    Returns:
        Of each kind of start ("cold", "warm"; "no kernels" where none are compiled) the median, least and most seconds
        to the first token and of each phase, and how many kernels and graphs there were in the last start.

    Raises:
        ValueError: The engine could not be started.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        # A helper of the start (`compile_ahead`) may still be at work there when it is removed.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            for kind in ("cold", "warm"):
                run = start_once(arguments, prompt_tokens, cache)
                on_run(1)
                if not any(run["kernels"].values()):
                    runs.setdefault("no kernels", []).append(run)
                    break
                runs.setdefault(kind, []).append(run)
                _wait_for_helper(Path(cache))
    return [{"cache": kind, **_summary(group)} for kind, group in runs.items()]


def _wait_for_helper(cache: Path) -> None:
    """Wait for what compiles beside an engine (`compile_ahead`), so that it is not beside the next one."""
    end = time.monotonic() + _MOST_HELPER_SECONDS
    while any(cache.glob("*.begun")) and time.monotonic() < end:
        time.sleep(0.1)


def start_once(arguments: dict[str, Any], prompt_tokens: int, cache: str) -> dict[str, Any]:
    """One start, with Triton's cache in a folder. Raises ValueError if there was no first token."""
    command = [sys.executable, str(_SCRIPT), repr(time.time()), json.dumps(arguments), str(prompt_tokens)]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "TRITON_CACHE_DIR": cache}
        )
        assert process.stdout is not None, "the process was started with a pipe"
        try:
            line = process.stdout.readline()
            seconds = time.perf_counter() - start
            process.communicate()
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if not line:
            errors.seek(0)
            reason = (errors.read().strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"the engine could not be started: {reason}")
    told: dict[str, Any] = json.loads(line)
    return {"total_s": seconds, **told}


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    phases = [{"name": name, **_spread([run["phases"].get(name, 0.0) for run in runs])} for name in runs[-1]["phases"]]
    total = _spread([run["total_s"] for run in runs])
    told = sum(phase["median"] for phase in phases)
    rest = {"name": "not in a phase", "median": total["median"] - told, "min": 0.0, "max": 0.0}
    return {
        "starts": len(runs),
        "total_s": total,
        "phases": [*phases, rest],
        "kernels": runs[-1]["kernels"],
        "graphs": runs[-1]["graphs"],
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
