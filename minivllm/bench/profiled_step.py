"""Owns which kernels an engine's decode step is made of: PyTorch's profiler around a few steps of a real engine.

    python -m minivllm.bench.profiled_step --model qwen3-0.6b 1x292 64x166 256x168 128x100-1700

Each argument is requests x tokens of context, or x a range of it; the contexts are spread evenly over the range. The
first figures are of steps without a profiler, whose kernels need not wait for it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

from minivllm import LLM, SamplingParams
from minivllm.bench.shapes import model_arguments

_TIMED, _PROFILED = 40, 6


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests, and the tokens that each has before the steps that are looked at."""

    contexts: list[int]

    @classmethod
    def of_text(cls, text: str) -> Batch:
        """From 64x166 or 64x100-1000."""
        count, _, contexts = text.partition("x")
        least, _, most = contexts.partition("-")
        low, high = int(least), int(most or least)
        steps = max(1, int(count) - 1)
        return cls([low + (high - low) * index // steps for index in range(int(count))])


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: launches a step, and microseconds of each and of all."""

    name: str
    launches: float
    each_us: float
    step_us: float


def start(llm: LLM, batch: Batch, temperature: float, top_p: float, seed: int) -> None:
    """Add the requests, in a random order, and run their prompts."""
    numbers = random.Random(seed)
    most = _TIMED + 2 * _PROFILED + 40
    params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=most, ignore_eos=True, detokenize=False)
    for index, length in enumerate(numbers.sample(batch.contexts, len(batch.contexts))):
        prompt = [numbers.randrange(10_000) for _ in range(length)]
        llm.llm_engine.add_request(f"{seed}-{index}", {"prompt_token_ids": prompt}, params)
    seen = 0
    while seen < len(batch.contexts):  # until each has a token
        seen = max(seen, len(llm.llm_engine.step()))
    for _ in range(4):
        llm.llm_engine.step()


def profile(llm: LLM, batch: Batch, temperature: float, top_p: float, seed: int) -> tuple[float, list[Kernel]]:
    """Milliseconds of a step, and its kernels, the longest first."""
    start(llm, batch, temperature, top_p, seed)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_TIMED):
        llm.llm_engine.step()
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - began) / _TIMED * 1e3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED):
            llm.llm_engine.step()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events() or ():
        if str(event.device_type).endswith("CUDA"):
            times[event.name].append(event.time_range.elapsed_us())
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    kernels = [
        Kernel(name, len(all_us) / _PROFILED, sum(all_us) / len(all_us), sum(all_us) / _PROFILED)
        for name, all_us in times.items()
    ]
    return step_ms, sorted(kernels, key=lambda kernel: -kernel.step_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batches", nargs="+", metavar="REQUESTSxTOKENS")
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=14, help="kernels that are shown")
    args = parser.parse_args()
    arguments: dict[str, Any] = {"max_num_seqs": 1024, "max_num_batched_tokens": 16384, "max_model_len": 4608}
    llm = LLM(**model_arguments(args.model), dtype="bfloat16", **arguments)
    for seed, text in enumerate(args.batches):
        step_ms, kernels = profile(llm, Batch.of_text(text), args.temperature, args.top_p, seed)
        total = sum(kernel.step_us for kernel in kernels) / 1e3
        print(f"\n{text}: {step_ms:.3f} ms a step; kernels {total:.3f} ms", flush=True)
        for kernel in kernels[: args.rows]:
            print(f"  {kernel.step_us:9.1f} us  {kernel.launches:6.1f} x {kernel.each_us:8.2f}  {kernel.name[:90]}")


if __name__ == "__main__":
    main()
