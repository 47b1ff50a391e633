"""Owns timing whole generations, ours beside other engines: each in a process of its own, taking turns."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model

_SCRIPT = Path(__file__).with_name("generation_script.py")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in one process it may use every core
}
THROUGHPUT = {"requests": 32, "prompt_tokens": "64 to 256, random, 5,775 in all", "output_tokens": 64}
LATENCY = {"requests": 1, "prompt_tokens": "64, random", "output_tokens": 128}


class Engine:
    """One engine with its model loaded, waiting for work.

    Args:
        name: "minivllm", "vllm" or "transformers".
        python: The interpreter that has it.
        model: A folder in Hugging Face layout, or for minivllm any model.
        dtype: "float32" or "bfloat16".

    Raises:
        ValueError: It could not be started.
    """

    def __init__(self, name: str, python: Path, model: str, dtype: str) -> None:
        self.name, self.dtype, self._python = name, dtype, python
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process); a pipe would fill up
        bin_first = os.pathsep.join((str(python.parent), os.environ.get("PATH", "")))
        try:
            self._process = subprocess.Popen(
                [str(python), str(_SCRIPT), name, model, dtype],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={**os.environ, **_ENVIRONMENT, "PATH": bin_first},
            )
        except OSError as error:
            raise ValueError(f"{python}: cannot be run: {error.strerror}") from None
        self.facts = self._answer()

    def generate(self, prompts: list[list[int]], output_len: int) -> dict[str, float]:
        """Seconds from the first prompt to the last token, and what else the engine tells."""
        assert self._process.stdin is not None, "the process was started with a pipe"
        self._process.stdin.write(json.dumps({"prompts": prompts, "output_len": output_len}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "the process was started with a pipe"
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            reason = (self._errors.read().strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"{self.name} could not be run with {self._python}: {reason}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def workload(seed: int, count: int, low: int, high: int, vocab_size: int = 49_000) -> list[list[int]]:
    """Prompts of random tokens, the same on every machine."""
    rng = random.Random(seed)
    return [[rng.randrange(100, vocab_size) for _ in range(rng.randint(low, high))] for _ in range(count)]


def run(engines: list[Engine], bench: str, repeats: int, vocab_size: int) -> list[dict[str, Any]]:
    """Let the engines take turns, `repeats` rounds; what is told is the median and the range."""
    for engine in engines:
        engine.generate(workload(9, 4, 64, 256, vocab_size), 8)  # warm up
    one_round = _throughput if bench == "throughput" else _latency
    rounds: list[list[dict[str, float]]] = [
        [one_round(engine, vocab_size) for engine in engines] for _ in range(repeats)
    ]
    results = []
    for k, engine in enumerate(engines):
        figures = {name: _spread([figure[k][name] for figure in rounds]) for name in rounds[0][k]}
        results.append({"engine": engine.name, "dtype": engine.dtype, **engine.facts, **figures})
    return results


def _throughput(engine: Engine, vocab_size: int) -> dict[str, float]:
    prompts = workload(0, 32, 64, 256, vocab_size)
    answer = engine.generate(prompts, 64)
    told = {"output_tokens_per_s": len(prompts) * 64 / answer.pop("seconds"), **answer}
    if "host_ms" in told:
        told["host_share"] = told["host_ms"] / told["decode_step_ms"]
    return told


def _latency(engine: Engine, vocab_size: int) -> dict[str, float]:
    prompts = workload(5, 1, 64, 64, vocab_size)
    first = engine.generate(prompts, 1)["seconds"]
    whole = engine.generate(prompts, 129)["seconds"]
    return {"decode_tokens_per_s": 128 / (whole - first), "time_to_first_token_ms": first * 1e3}


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(
    bench: str, model: str, dtypes: list[str], repeats: int, vllm_python: Path | None, transformers_python: Path | None
) -> list[dict[str, Any]]:
    """Start every engine in every precision, and let them take turns.

    Raises:
        ValueError: An engine could not be started.
    """
    pythons = {"minivllm": Path(sys.executable), "vllm": vllm_python, "transformers": transformers_python}
    engines: list[Engine] = []
    try:
        for dtype in dtypes:
            for name, python in pythons.items():
                if python is not None:
                    engines.append(Engine(name, python, model, dtype))
        vocab_size = ModelLoader(find_model(model)).config.vocab_size
        return run(engines, bench, repeats, min(vocab_size, 49_000))
    finally:
        for engine in engines:
            engine.close()
